"""Where shed rows go, and the plain case: a directory. (Over the network: remote.py.)

A segment appears whole or not at all: it is written beside, synced, renamed, and the directory is
synced. One that was deleted does not come back: the directory is synced then, too.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa

from ...errors import ShedError
from .segment import (
    BAD,
    HINT,
    Doubtful,
    Packed,
    Segment,
    Unreadable,
    check_segment,
    gone,
    is_name,
    number_of,
    read_about,
    read_rows,
    unreadable,
)


@dataclass
class FoundSegments:
    """What is in a target, oldest first, and of what cannot be used, why."""

    segments: list[Segment] = field(default_factory=list)
    unreadable: dict[str, Unreadable] = field(default_factory=dict)  # by name

    def add(self, name: str, what: Segment | Unreadable | None) -> None:
        if isinstance(what, Segment):
            self.segments.append(what)
        elif what is not None:
            self.unreadable[name] = what


class Target(ABC):
    """Holds segments. Every failure is a ShedError, and then nothing has happened; but for
    Doubtful, which says that nobody knows."""

    place: str  # for messages
    allocates = True  # False: `get` maps a file

    @abstractmethod
    def put(self, name: str, rows: pa.RecordBatch, question: str) -> int:
        """Store a new segment, for good; returns its bytes."""

    @abstractmethod
    def get(self, name: str, size: int | None = None) -> pa.RecordBatch:
        """The rows of a segment, which has `size` bytes if that is known."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """They may be gone already. They do not come back, whoever is still storing them."""

    @abstractmethod
    def look(self) -> FoundSegments:
        """What is there."""

    def list(self) -> list[Segment]:
        """The segments that can be read, from the first whose rows were; an error where there are
        some and none of them can be."""
        found = self.look()
        errors = [*found.unreadable.values()]
        for at, segment in enumerate(found.segments):
            try:
                self.get(segment.name, segment.bytes)
            except Unreadable as error:
                errors.append(error)
            else:
                return found.segments[at:]
        if errors:
            raise errors[0]
        return []


class Folder(Target):
    allocates = False

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)  # rows of the stream, for nobody else to read
            for left in path.glob("shed-*.arrow.tmp"):  # of a process that was killed
                left.unlink(missing_ok=True)
        except OSError as error:
            raise ShedError(
                f"rows cannot be shed to {path}: {error}; name a directory that can be written to"
            ) from error

    def file(self, name: str) -> Path:
        number_of(name)
        return self.path / name

    def _beside(self, name: str) -> Path:
        return self.file(name).with_name(name + ".tmp")

    # --- storing -------------------------------------------------------------------------------

    def put(self, name: str, rows: pa.RecordBatch, question: str) -> int:
        packed = Packed(rows, question)
        with self.draft(name) as file:
            packed.write(file)
        self.publish(name)
        return packed.size

    @contextmanager
    def draft(self, name: str) -> Iterator[IO[bytes]]:
        """A new file beside, durable when the block ends and gone if it fails."""
        final, beside = self.file(name), self._beside(name)
        if final.exists():
            raise ShedError(f"the segment {final} is there already; {HINT}")
        try:
            # Nobody else's file, nor one that a link of somebody else leads to.
            handle = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            raise _cannot_write(final, error) from error
        try:
            with open(handle, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            self.discard(name)
            if isinstance(error, OSError | pa.ArrowException):
                raise _cannot_write(final, error) from error
            raise

    def check_draft(self, name: str) -> None:
        """Raise if the draft is not a segment; its content is written and need not be durable."""
        try:
            with pa.memory_map(str(self._beside(name))) as file:
                check_segment(file.read_buffer())
        except (OSError, *BAD) as error:
            raise ShedError(f"these bytes are not a segment: {error}; {HINT}") from error

    def discard(self, name: str) -> None:
        """The draft is not wanted."""
        with suppress(OSError):
            self._beside(name).unlink(missing_ok=True)

    def publish(self, name: str) -> None:
        """The draft becomes a segment."""
        try:
            self._beside(name).rename(self.file(name))
            self._sync()
        except OSError as error:
            raise Doubtful(str(_cannot_write(self.file(name), error))) from error

    def delete(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._beside(name).unlink(missing_ok=True)
                self.file(name).unlink(missing_ok=True)
            self._sync()
        except OSError as error:
            raise ShedError(
                f"segments in {self.path} cannot be deleted: {error}; {HINT}"
            ) from error

    def _sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # --- reading -------------------------------------------------------------------------------

    def get(self, name: str, size: int | None = None) -> pa.RecordBatch:
        path = self.file(name)
        try:
            with pa.memory_map(str(path)) as file:
                return read_rows(file.read_buffer())
        except FileNotFoundError as error:
            raise gone(str(path)) from error
        except (OSError, *BAD) as error:
            raise unreadable(str(path), error) from error

    def look(self) -> FoundSegments:
        found = FoundSegments()
        for name in self.names():
            found.add(name, self.describe(name))
        return found

    def names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.path) if is_name(name))
        except OSError as error:
            raise ShedError(f"{self.path} cannot be listed: {error}; {HINT}") from error

    def describe(self, name: str) -> Segment | Unreadable | None:
        """What a segment says of itself, or why it cannot; None: it is not there any more."""
        path = self.file(name)
        try:
            with open(path, "rb") as file:
                return read_about(file, name, os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return None
        except (OSError, *BAD) as error:
            return unreadable(str(path), error)


def _cannot_write(path: Path, error: BaseException) -> ShedError:
    return ShedError(f"{path} cannot be written: {error}; {HINT}")
