"""A join's state as bytes: a JSON header, then Arrow streams. No pickle. The join seals them
(safety/sealed.py), so that damage is noticed before anything is read.

    header   which join this is, its counters and its division of memory, the stream's columns
    waiting  rows that wait, and for each: matched before, page to go on from, age
    input    rows of the last push that were not taken in yet
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..budget import Division
from ..disk import DiskPhase
from ..errors import BudgetError, StateError
from ..spec import Params
from .engine import Engine

KNOBS = ("front_share", "read_bytes", "page_pool")
PORTION = 64 << 20  # bytes of waiting rows in one batch
# Columns of ours, behind the stream's; they are found by position, so their names cannot clash.
_EXTRA = [
    pa.field("matched", pa.bool_()),
    pa.field("resume", pa.int32()),
    pa.field("age", pa.int64()),
]
_LENGTH = struct.Struct("<QQQ")  # of header, waiting and input


@dataclass(frozen=True)
class Saved:
    """What a snapshot holds."""

    columns: pa.Schema  # of the stream, as it came
    waiting: list[pa.RecordBatch]
    input: list[pa.RecordBatch]
    algorithm: str
    counters: dict[str, int]
    phase: dict[str, Any]
    knobs: dict[str, Any]  # those that a plan chooses, as they were
    division: Division | None  # of memory, where it was not the plan's

    def refill(self, engine: Engine) -> None:
        """Let the rows wait again, as far along as they were."""
        phase, inside = engine.phase, engine.schema
        if not self.waiting:
            return
        backlog, extended = phase.backlog, []
        for batch in self.waiting:
            columns = batch.columns[: len(inside)]
            stream = pa.RecordBatch.from_arrays(columns, schema=inside)
            encoded = engine.design.coder.encode(stream)
            rows = engine.design.shape.extend(stream, encoded.arrays, 0)
            extended.append((rows, encoded.codes))
        count, size = sum(len(r) for r, _ in extended), sum(r.nbytes for r, _ in extended)
        phase.make_room(count, size)
        if count > backlog.free_rows or size > backlog.free_bytes:
            least = 4 * backlog.limit + 4 * size + 512 * count
            raise BudgetError(
                f"the snapshot's {count} waiting rows do not fit into this join's budget; give "
                f"memory={least}",
                least,
            )
        slots = np.concatenate([backlog.add(rows, codes) for rows, codes in extended])
        backlog.matched[slots] = self._extra(0)
        backlog.resume[slots] = self._extra(1)
        phase.restore(self.phase, slots, self._extra(2))

    def _extra(self, which: int) -> NDArray[Any]:
        at = which - len(_EXTRA)
        return np.concatenate([np.asarray(b.column(b.num_columns + at)) for b in self.waiting])


def save(engine: Engine, algorithm: str, question: dict[str, Any], params: Params) -> bytes:
    header = {
        "question": question,
        "algorithm": algorithm,
        "columns": base64.b64encode(engine.encodings.outside.serialize()).decode(),
        "counters": vars(engine.counters),
        "phase": engine.phase.state(),
        "knobs": {name: getattr(params, name) for name in KNOBS},
        "division": None if engine.division is None else asdict(engine.division),
    }
    text = json.dumps(header).encode()
    plain = engine.encodings.plain
    full = pa.schema([*engine.schema, *_EXTRA])
    waiting = _stream(full, _waiting(engine.phase, full))
    unread = _stream(engine.schema, (plain(b) for b in engine.input if len(b)))
    lengths = _LENGTH.pack(len(text), waiting.size, unread.size)
    return b"".join((lengths, text, waiting, unread))


def _waiting(phase: DiskPhase, full: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Waiting rows, oldest first, in batches of bounded size."""
    if not phase.waiting:
        return
    backlog = phase.backlog
    slots, stream = backlog.oldest_first(), len(full) - len(_EXTRA)
    ends = backlog.chunks.widths(backlog.loc[slots])
    at = 0
    while at < len(slots):
        stop = max(at + 1, int(np.searchsorted(ends, ends[at] + PORTION, "right")) - 1)
        some = slots[at:stop]
        columns = backlog.take(some).columns[:stream]
        columns += [pa.array(backlog.matched[some]), pa.array(backlog.resume[some])]
        columns.append(pa.array(phase.waited(some)))
        yield pa.RecordBatch.from_arrays(columns, schema=full)
        at = stop


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def load(content: pa.Buffer, question: dict[str, Any]) -> Saved:
    """Read a snapshot; one that belongs to another question is refused."""
    try:
        parts, at = [], _LENGTH.size
        for length in _LENGTH.unpack(content.slice(0, at).to_pybytes()):
            parts.append(content.slice(at, length))
            at += length
        header = json.loads(parts[0].to_pybytes())
        waiting, unread = (_batches(part) for part in parts[1:])
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["columns"])))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, struct.error) as error:
        raise StateError(f"these bytes are not a snapshot of a join: {error}") from error
    for name, value in question.items():
        if header["question"].get(name) != value:
            raise StateError(
                f"the snapshot has {name} {header['question'].get(name)!r}, this join {value!r}; "
                "restore it into a join with the same question on the same version of the master"
            )
    division = Division(**header["division"]) if header["division"] is not None else None
    state = header["counters"], header["phase"], header["knobs"], division
    return Saved(columns, waiting, unread, header["algorithm"], *state)


def _batches(part: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(part) as reader:
        return list(reader)
