"""What a receiver keeps: segments in a directory, some of them perhaps just being stored.

A segment is taken in two steps: its draft is written and synced, then it is published. Until then
it can be withdrawn, and whoever deletes or lists waits while one is being published. So a delete
that was answered is final, also for a put that is still under way.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

from ...budget import show_bytes
from ...errors import ShedError
from .segment import Segment, number_of
from .target import Folder, FoundSegments

MOST_SEGMENT = 1 << 30  # bytes; joins make segments of some hundred kilobytes
PAGE_BYTES = 256 << 10  # of descriptions in one page of a list, about
WAIT = 5.0  # seconds that a delete waits while its segment is being published, then it fails


@dataclass(eq=False)
class Put:
    """One that is under way."""

    name: str
    size: int
    withdrawn: bool = False
    publishing: bool = False
    stored: bool = False


class Keeper:
    def __init__(self, directory: Path, most_bytes: int) -> None:
        self.folder, self._most = Folder(directory), most_bytes
        self._lock: int | None = None
        self._puts: dict[str, Put] = {}  # by name, from the request to the end
        self._changed = Condition()
        self._bytes = 0  # of segments, and of those that are being stored
        self._open = False

    # --- one receiver per directory ------------------------------------------------------------

    def open(self) -> None:
        """Take the directory for this receiver alone."""
        try:
            handle = os.open(self.folder.path, os.O_RDONLY)
        except OSError as error:
            raise ShedError(f"{self.folder.path} cannot be used: {error}; create it") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ShedError(
                f"another receiver keeps its rows in {self.folder.path}; stop it first, or name "
                "another directory"
            ) from None
        except OSError:
            pass  # a file system without locks
        self._lock, self._open = handle, True
        self._bytes = self._count()

    def close(self) -> None:
        """Nothing more is stored; returns when nothing is being published."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not any(p.publishing for p in self._puts.values()))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- storing -------------------------------------------------------------------------------

    @contextmanager
    def taking(self, name: object, size: object) -> Iterator[Put]:
        """A put, from its request to its end."""
        put = self._begin(name, size)
        try:
            yield put
        finally:
            if not put.stored:
                self.folder.discard(put.name)
            with self._changed:
                put.publishing = False
                del self._puts[put.name]
                self._bytes -= 0 if put.stored else put.size
                self._changed.notify_all()

    def _begin(self, name: object, size: object) -> Put:
        number_of(name)
        most = min(MOST_SEGMENT, self._most)
        if not isinstance(size, int) or not 0 < size <= most:
            raise ShedError(f"a segment of {size!r} bytes is not taken; {show_bytes(most)} is most")
        put = Put(str(name), size)
        with self._changed:
            if put.name in self._puts or self.folder.file(put.name).exists():
                raise ShedError(f"the segment {name} is there already")
            if self._bytes + size > self._most:  # somebody may have moved files away
                self._bytes = self._count() + sum(p.size for p in self._puts.values())
            if self._bytes + size > self._most:
                raise ShedError(
                    f"it is full: it keeps {show_bytes(self._bytes)} of at most "
                    f"{show_bytes(self._most)}, which most_bytes says"
                )
            self._puts[put.name] = put
            self._bytes += size
        return put

    def publish(self, put: Put) -> None:
        with self._changed:
            if put.withdrawn or not self._open:
                raise ShedError(f"the segment {put.name} was withdrawn before it was stored")
            put.publishing = True
        try:
            self.folder.publish(put.name)
        finally:
            put.stored = self.folder.file(put.name).exists()

    def _count(self) -> int:
        """Bytes of the segments that are there."""
        return sum(_size(self.folder.file(name)) for name in self.folder.names())

    # --- withdrawing ---------------------------------------------------------------------------

    def delete(self, names: object) -> None:
        if not isinstance(names, list):
            raise ShedError(f"names={names!r} is not a list")
        for name in names:
            number_of(name)
        with self._changed:
            self._withdraw(names)
            freed = sum(_size(self.folder.file(name)) for name in set(names))
            self.folder.delete(names)
            self._bytes -= freed

    def _withdraw(self, names: Sequence[str]) -> None:
        """None of these will be stored, or it is already. Called with the lock, which is free while
        this waits."""
        found = [self._puts[name] for name in names if name in self._puts]
        for put in found:
            put.withdrawn = True
        if not self._changed.wait_for(lambda: not any(p.publishing for p in found), WAIT):
            raise ShedError("its disk has been storing this segment for too long")

    # --- what is there -------------------------------------------------------------------------

    def page(self, after: str) -> tuple[FoundSegments, str]:
        """Descriptions of some segments whose names come after this one, and the name after which
        to go on; empty: that was all.

        Who asks for the first page is a join that begins, and takes over what it finds. A segment
        that is still being stored then belongs to nobody any more: its rows were never let go of by
        an earlier join, and are withdrawn rather than appear when everybody has looked."""
        if not after:
            with self._changed:
                self._withdraw(list(self._puts))
        found, size = FoundSegments(), 0
        names = [name for name in self.folder.names() if name > after]
        for name in names:
            what = self.folder.describe(name)
            found.add(name, what)
            size += 100 + len(what.question if isinstance(what, Segment) else str(what))
            if size > PAGE_BYTES and name != names[-1]:
                return found, name
        return found, ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
