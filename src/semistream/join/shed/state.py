"""What a snapshot of a shedding join holds beside its waiting rows.

    sealed "shed"     JSON: the segments that are out, how many rows of each came back, and where
                      the rows in memory came from
    sealed "rows"     an Arrow stream: the buffered rows, in the stream's own columns
    sealed "waiting"  the snapshot of everything else

Rows that are out stay in the target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...errors import StateError
from ...output import Counters
from ...safety import seal, split_sealed, unseal
from .engine import SheddingEngine
from .segment import BAD


@dataclass(frozen=True)
class SavedShed:
    rows: list[pa.RecordBatch]  # buffered, as the buffer had them
    state: dict[str, Any]


def save_shed(engine: SheddingEngine, waiting: bytes) -> bytes:
    """`waiting` is the snapshot of everything else."""
    outside, chunks = engine.outside, engine.buffer.chunks()
    known = {str(n): [o.segment.name, o.taken] for n, o in outside.segments.items()}
    state = {
        "segments": known,
        "doubtful": sorted(outside.doubtful),
        "origin": engine.origins(),
        "buffer": [chunk.origin for chunk in chunks],
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, engine.schema) as writer:
        for chunk in chunks:
            writer.write_batch(chunk.rows)
    about, rows = json.dumps(state).encode(), sink.getvalue().to_pybytes()
    return seal("shed", about) + seal("rows", rows) + seal("waiting", waiting)


def load_shed(snapshot: pa.Buffer) -> tuple[pa.Buffer, SavedShed]:
    try:
        about, rest = split_sealed("shed", snapshot)
        rows, rest = split_sealed("rows", rest)
        waiting, state = unseal("waiting", rest), json.loads(about.to_pybytes())
        with pa.ipc.open_stream(rows) as reader:
            return waiting, SavedShed(list(reader), state)
    except (OSError, *BAD) as error:
        raise StateError(
            f"these bytes are not a snapshot of a join that sheds ({error}); restore it into a "
            "join without shed=, or take one that is not damaged"
        ) from error


def restore_shed(engine: SheddingEngine, saved: SavedShed) -> None:
    """Segments that the snapshot knows go on where they were; of those that came since, all rows
    are to be answered; those that are gone were answered by the join that went on."""
    before = set(engine.outside.segments)
    try:
        before |= _pick_up(engine, saved)
        _restore(engine, saved)
    except BaseException:  # a part of the rows is worse than none: nothing has happened
        engine.outside.take_back(before)
        engine.counters.set(vars(Counters()))
        engine.reset()
        engine.counters.shed = engine.shed_out
        raise


def _pick_up(engine: SheddingEngine, saved: SavedShed) -> set[int]:
    """Find what is out, but for what was perhaps stored; returns our numbers."""
    outside = engine.outside
    outside.doubtful |= set(saved.state["doubtful"])
    for name, number in outside.names().items():
        if name in outside.doubtful:
            outside.forget(number)
    engine.pick_up()
    return set(outside.segments)


def _restore(engine: SheddingEngine, saved: SavedShed) -> None:
    outside = engine.outside
    here = outside.names()
    numbers = {0: 0}
    for old, (name, taken) in saved.state["segments"].items():
        if name in here:
            numbers[int(old)] = here[name]
            outside.took(here[name], taken)
    slots = engine.backlog.oldest_first()
    engine.admitted(slots, [numbers.get(n, 0) for n in saved.state["origin"]])
    for batch, origin in zip(saved.rows, saved.state["buffer"], strict=True):
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=engine.schema)
        n = engine.buffer.add(rows, numbers.get(origin, 0))
        engine.put_out(rows.slice(n))  # of a larger buffer, or planned for wider rows
    counters = engine.counters
    answered = counters.rows_matched + counters.rows_unmatched
    counters.rows_in = answered + engine.waiting + engine.buffered + engine.shed_out
    counters.shed = counters.reloaded + engine.shed_out
