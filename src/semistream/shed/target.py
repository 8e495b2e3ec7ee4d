"""Where shed rows go: segments, and a directory of them. (Over the network: remote.py.)

A segment is one Arrow IPC file with one batch of stream rows. It appears whole or not at all
(written beside, synced, renamed, the directory synced), and says in its schema's metadata which
question its rows belong to. Names are ordered by when the rows were shed; a random part keeps two
writers from ever replacing each other's segments.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from ..errors import ShedError, StateError

_NAME = re.compile(r"shed-(\d{12})-[0-9a-f]{8}\.arrow")
_META = b"semistream-shed"
HINT = "rows stay where they were: call again when it works"


@dataclass(frozen=True)
class Segment:
    """What is known of a segment without reading its rows."""

    name: str
    rows: int
    bytes: int  # of the file
    widest: int  # bytes of its widest row
    question: str


def number_of(name: str) -> int:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ShedError(f"{name!r} is not the name of a segment; names are like {new_name(1)}")
    return int(match[1])


def new_name(number: int) -> str:
    return f"shed-{number:012d}-{secrets.token_hex(4)}.arrow"


class Target(ABC):
    """Holds segments. Every failure is a ShedError, and then nothing has happened."""

    place: str  # for messages
    allocates = True  # False: `get` maps a file

    @abstractmethod
    def put(self, name: str, rows: pa.RecordBatch, widest: int, question: str) -> None: ...

    @abstractmethod
    def get(self, name: str) -> pa.RecordBatch: ...

    @abstractmethod
    def delete(self, name: str) -> None:
        """It may be gone already."""

    @abstractmethod
    def list(self) -> list[Segment]:
        """What is there, oldest first."""


def asked(spec: str, schema: pa.Schema) -> str:
    """The question that shed rows belong to, as every segment carries it."""
    columns = [[field.name, str(field.type)] for field in schema]
    return json.dumps({"spec": spec, "columns": columns})


def check_question(segment: Segment, question: str, place: str) -> None:
    """Rows of another stream, or for another join, are not ours to answer."""
    if segment.question == question:
        return
    theirs, ours = json.loads(segment.question), json.loads(question)
    what = "columns" if theirs["columns"] != ours["columns"] else "spec"
    raise StateError(
        f"the shed rows in {place} belong to another question: {segment.name} has {what} "
        f"{theirs[what]}, this join {ours[what]}; answer them with the join that they come from, "
        "or shed to another place"
    )


# --- a directory --------------------------------------------------------------------------------


class Folder(Target):
    allocates = False

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for left in path.glob("shed-*.arrow.tmp"):  # of a process that was killed
                left.unlink(missing_ok=True)
        except OSError as error:
            raise ShedError(
                f"rows cannot be shed to {path}: {error}; name a directory that can be written to"
            ) from error

    def put(self, name: str, rows: pa.RecordBatch, widest: int, question: str) -> None:
        self.write(name, lambda file: write_segment(file, rows, widest, question))

    def write(self, name: str, fill: Callable[[IO[bytes]], None]) -> None:
        """A new segment, durable when this returns."""
        number_of(name)
        final = self.path / name
        beside = final.with_name(name + ".tmp")
        try:
            with open(beside, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(final)
            self._sync()
        except BaseException as error:
            for path in (beside, final):
                with suppress(OSError):
                    path.unlink()
            if isinstance(error, OSError | pa.ArrowException):
                raise ShedError(f"{final} cannot be written: {error}; {HINT}") from error
            raise

    def _sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def get(self, name: str) -> pa.RecordBatch:
        path = self.file(name)
        try:
            with pa.memory_map(str(path)) as file:
                return read_segment(file)
        except (OSError, pa.ArrowException) as error:
            raise damaged(str(path), error) from error

    def file(self, name: str) -> Path:
        number_of(name)
        return self.path / name

    def delete(self, name: str) -> None:
        try:
            self.file(name).unlink(missing_ok=True)
        except OSError as error:
            raise ShedError(f"{self.path / name} cannot be deleted: {error}") from error

    def list(self) -> list[Segment]:
        try:
            names = [p.name for p in self.path.iterdir() if _NAME.fullmatch(p.name)]
        except OSError as error:
            raise ShedError(f"{self.path} cannot be listed: {error}") from error
        return [self._describe(name) for name in sorted(names)]

    def _describe(self, name: str) -> Segment:
        path = self.path / name
        try:
            size = path.stat().st_size
            with pa.memory_map(str(path)) as file:
                about = json.loads(pa.ipc.open_file(file).schema.metadata[_META])
            return Segment(name, about["rows"], size, about["widest"], about["question"])
        except (OSError, pa.ArrowException, TypeError, KeyError, ValueError) as error:
            raise damaged(str(path), error) from error


def write_segment(file: Any, rows: pa.RecordBatch, widest: int, question: str) -> None:
    about = {"rows": len(rows), "widest": widest, "question": question}
    schema = rows.schema.with_metadata({_META: json.dumps(about)})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(rows.columns, schema=schema))


def read_segment(source: Any) -> pa.RecordBatch:
    batch = pa.ipc.open_file(source).get_batch(0)
    batch.validate()
    return batch


def damaged(place: str, error: Exception) -> ShedError:
    return ShedError(f"the segment {place} cannot be read: {error}; restore it, or move it away")
