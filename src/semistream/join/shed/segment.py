"""A segment: shed rows as bytes that are checked before use.

    sealed "segment"  JSON: how many rows, which question; blanks up to a multiple of 64 bytes
    sealed "rows"     an Arrow stream with one batch, where a memory map can use it as it lies

Names are ordered by when the rows were shed; a random part keeps two writers from ever using one
name for two segments.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa

from ...errors import ShedError, SpecError, StateError
from ...safety import (
    HEAD_BYTES,
    TAIL_BYTES,
    SealError,
    check_tail,
    checksum,
    content_length,
    seal,
    split_sealed,
    unseal,
    write_sealed,
)

_NAME = re.compile(r"shed-([0-9]{12})-[0-9a-f]{8}\.arrow")
_LAST = 10**12 - 1
_MOST_QUESTION = 1 << 20
MOST_ABOUT = 1 << 22  # bytes: a question in JSON, which is JSON itself
HINT = "rows stay where they were: call again when it works"
# What is wrong with bytes that are damaged, or that were made to look like a segment.
BAD = (pa.ArrowException, ValueError, TypeError, KeyError, StopIteration, RecursionError)


class Unreadable(ShedError):
    """One segment cannot be used; the others may be."""


class Gone(Unreadable):
    """The segment is not there."""


class Doubtful(ShedError):
    """Nobody can say whether the segment was stored. It is to be deleted before it counts as not
    stored."""


# --- names --------------------------------------------------------------------------------------


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def number_of(name: object) -> int:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ShedError(f"{name!r} is not the name of a segment; names are like {new_name(1)}")
    return int(match[1])


def new_name(number: int) -> str:
    return f"shed-{min(number, _LAST):012d}-{secrets.token_hex(4)}.arrow"


# --- whose rows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """What is known of a segment without reading its rows."""

    name: str
    rows: int
    bytes: int  # of the file
    question: str


def asked(spec: str, schema: pa.Schema) -> str:
    """The question that shed rows belong to, as every segment carries it."""
    columns = [[field.name, str(field.type)] for field in schema]
    question = json.dumps({"spec": spec, "columns": columns})
    if len(question) > _MOST_QUESTION:
        raise SpecError(
            f"the {len(schema)} columns of the stream take {len(question)} bytes to describe, and "
            f"every segment of shed rows says them in at most {_MOST_QUESTION}; leave shed= out"
        )
    return question


def check_question(segment: Segment, question: str, place: str) -> None:
    """Rows of another stream, or for another join, are not ours to answer."""
    if segment.question == question:
        return
    try:
        theirs, ours = json.loads(segment.question), json.loads(question)
        what = "columns" if theirs["columns"] != ours["columns"] else "spec"
        differs = f"{what} {theirs[what]}, this join {ours[what]}"
    except (ValueError, TypeError, KeyError):
        differs = f"the question {segment.question[:200]!r}"
    raise StateError(
        f"the shed rows in {place} belong to another question: {segment.name} has {differs}; "
        "answer them with the join that they come from, or shed to another place"
    )


# --- writing ------------------------------------------------------------------------------------


class Packed:
    """Rows as a segment that is still to be written: `size` is known before."""

    def __init__(self, rows: pa.RecordBatch, question: str) -> None:
        self._rows = rows
        about = json.dumps({"rows": len(rows), "question": question}).encode()
        about += b" " * (-(len(about) + TAIL_BYTES) % 64)
        self._about = seal("segment", about)
        counted = pa.MockOutputStream()
        self._write_rows(counted)
        self._length = int(counted.size())
        self.size = len(self._about) + HEAD_BYTES + self._length + TAIL_BYTES

    def write(self, file: IO[bytes]) -> None:
        file.write(self._about)
        write_sealed(file, "rows", self._length, self._write_rows)

    def _write_rows(self, file: Any) -> None:
        schema = self._rows.schema.remove_metadata()
        with pa.ipc.new_stream(file, schema) as writer:
            writer.write_batch(self._rows.replace_schema_metadata(None))


# --- reading ------------------------------------------------------------------------------------


def read_about(file: IO[bytes], name: str, size: int) -> Segment:
    """What a file of `size` bytes says of itself; all of it but the rows is checked."""
    length = content_length("segment", file.read(HEAD_BYTES))
    if length > MOST_ABOUT:
        raise SealError(f"its description has {length} bytes, more than {MOST_ABOUT}")
    about = file.read(length)
    check_tail(file.read(TAIL_BYTES), checksum(about))
    rows = content_length("rows", file.read(HEAD_BYTES))
    whole = 2 * (HEAD_BYTES + TAIL_BYTES) + length + rows
    if size != whole:
        raise SealError(f"it has {size} bytes and had {whole}")
    count, question = _about(about)
    return Segment(name, count, size, question)


def _about(content: bytes) -> tuple[int, str]:
    """Rows and question."""
    about = json.loads(content)
    count, question = about["rows"], about["question"]
    if not isinstance(count, int) or count < 0 or not isinstance(question, str):
        raise ValueError(f"{count!r} rows of {question!r}")
    return count, sys.intern(question)  # all segments of a join have the same


def check_segment(content: pa.Buffer) -> tuple[int, pa.Buffer]:
    """How many rows, and the Arrow stream that they are; no byte of it is other than it was."""
    about, rest = split_sealed("segment", content)
    if about.size > MOST_ABOUT:
        raise SealError(f"its description has {about.size} bytes, more than {MOST_ABOUT}")
    return _about(about.to_pybytes())[0], unseal("rows", rest)


def read_rows(content: pa.Buffer) -> pa.RecordBatch:
    """The rows of a segment, not copied."""
    count, stream = check_segment(content)
    with pa.ipc.open_stream(stream) as reader:
        rows = reader.read_next_batch()
    rows.validate(full=True)  # a seal shows damage, not malice
    if len(rows) != count:
        raise ValueError(f"it has {len(rows)} rows and says {count}")
    return rows


def unreadable(place: str, error: object) -> Unreadable:
    return Unreadable(
        f"the segment {place} cannot be read: {error}; put it back from a copy, or move it away to "
        "go on without its rows"
    )


def gone(place: str) -> Gone:
    return Gone(
        f"the segment {place} is not there, and its rows are not answered; put it back, or restore "
        "a snapshot into a new join to go on without them"
    )
