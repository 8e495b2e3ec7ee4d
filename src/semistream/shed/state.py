"""What a snapshot of a shedding join holds beside its waiting rows.

Buffered rows are in the snapshot. Rows that are out stay in the target; the snapshot names their
segments, how many rows of each came back, and which of the rows in memory are those.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import BudgetError, StateError
from .engine import SheddingEngine

_STATE = b"semistream-shed"
_WAITING = b"semistream-waiting"
_ORIGIN = pa.field("__origin", pa.int32())


@dataclass(frozen=True)
class SavedShed:
    rows: pa.Table  # buffered
    state: dict[str, Any]


def save_shed(engine: SheddingEngine, waiting: bytes) -> bytes:
    """`waiting` is the snapshot of everything else."""
    out = engine.outside.segments
    known = {str(n): {**asdict(o.segment), "taken": o.taken} for n, o in out.items()}
    state = {"segments": known, "origin": engine.origins()}
    full = pa.schema([*engine.schema, _ORIGIN])
    full = full.with_metadata({_STATE: json.dumps(state), _WAITING: waiting})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, full) as writer:
        for chunk in engine.buffer.chunks():
            origin = pa.array(np.full(len(chunk.rows), chunk.origin, np.int32))
            columns = [*chunk.rows.columns, origin]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=full))
    return bytes(sink.getvalue().to_pybytes())


def load_shed(snapshot: pa.Buffer) -> tuple[pa.Buffer, SavedShed]:
    try:
        with pa.ipc.open_stream(snapshot) as reader:
            table = reader.read_all()
        meta = table.schema.metadata
        waiting = pa.py_buffer(meta[_WAITING])
        return waiting, SavedShed(table, json.loads(meta[_STATE]))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"these bytes are not a snapshot of a join that sheds ({error}); restore it into a "
            "join without shed="
        ) from error


def restore_shed(engine: SheddingEngine, saved: SavedShed) -> None:
    """Segments that the snapshot knows go on where they were; of those that came since, all rows
    are to be answered; those that are gone were answered by the join that went on."""
    engine.pick_up()
    outside = engine.outside
    known = {s["name"]: (int(n), s["taken"]) for n, s in saved.state["segments"].items()}
    numbers = {0: 0}
    for number, out in list(outside.segments.items()):
        old, taken = known.get(out.segment.name, (0, 0))
        if old:
            outside.took(number, taken)
            numbers[old] = number
    slots = engine.backlog.oldest_first()
    engine.admitted(slots, [numbers.get(n, 0) for n in saved.state["origin"]])
    schema = pa.schema(list(saved.rows.schema)[:-1])
    for batch in saved.rows.to_batches():
        origin = numbers.get(batch.column(len(schema))[0].as_py(), 0)
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
        if engine.buffer.add(rows, origin) < len(rows):
            least = engine.question.budget + 4 * saved.rows.nbytes
            raise BudgetError(
                f"the snapshot's {saved.rows.num_rows} buffered rows do not fit into this join's "
                f"budget; give memory={least}",
                least,
            )
    counters = engine.counters
    answered = counters.rows_matched + counters.rows_unmatched
    counters.rows_in = answered + engine.waiting + engine.buffered + engine.shed_out
    counters.shed = counters.reloaded + engine.shed_out
