"""A join's state as bytes: an Arrow stream of its waiting rows, with a JSON header. No pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .disk import DiskPhase
from .errors import BudgetError, StateError
from .output import Counters
from .plan import Division
from .spec import Params

KNOBS = ("front_share", "read_bytes", "page_pool")
_HEADER = b"semistream"
_EXTRA = [
    pa.field("__matched", pa.bool_()),
    pa.field("__resume", pa.int32()),
    pa.field("__age", pa.int64()),
]


@dataclass(frozen=True)
class Saved:
    """What a snapshot holds."""

    rows: pa.Table  # waiting rows, the stream's columns
    extra: pa.Table  # per waiting row: matched before, page to go on from, age
    counters: dict[str, int]
    phase: dict[str, Any]
    knobs: dict[str, Any]  # those that a plan chooses, as they were
    division: Division | None  # of memory, where it was not the plan's

    def refill(self, phase: DiskPhase, rows: pa.RecordBatch, codes: NDArray[np.int64]) -> None:
        """Let the rows wait again, as far along as they were."""
        backlog = phase.parts.backlog
        phase.make_room(len(codes), rows.nbytes)
        if len(codes) > backlog.free_rows or rows.nbytes > backlog.free_bytes:
            least = 2 * backlog.limit + 2 * rows.nbytes + 256 * len(codes)
            raise BudgetError(
                f"the snapshot's {len(codes)} waiting rows do not fit into this join's budget; "
                f"give memory={2 * least}",
                2 * least,
            )
        slots = backlog.add(rows, codes)
        backlog.matched[slots] = np.asarray(self.extra["__matched"])
        backlog.resume[slots] = np.asarray(self.extra["__resume"])
        phase.restore(self.phase, slots, np.asarray(self.extra["__age"]))


def save(
    schema: pa.Schema,
    question: dict[str, Any],
    counters: Counters,
    phase: DiskPhase | None,
    params: Params,
    division: Division | None = None,
) -> bytes:
    header = {**question, "counters": vars(counters), "phase": phase.state() if phase else {}}
    header["knobs"] = {name: getattr(params, name) for name in KNOBS}
    if division is not None:
        header["division"] = asdict(division)
    full = pa.schema([*schema, *_EXTRA], metadata={_HEADER: json.dumps(header)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, full) as writer:
        if phase is not None and len(phase.parts.backlog):
            backlog = phase.parts.backlog
            slots = backlog.oldest_first()
            columns = backlog.take(slots).columns[: len(schema)]
            columns += [pa.array(backlog.matched[slots]), pa.array(backlog.resume[slots])]
            columns.append(pa.array(phase.ages(slots)))
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=full))
    return bytes(sink.getvalue().to_pybytes())


def load(snapshot: bytes, question: dict[str, Any]) -> Saved:
    """Read a snapshot; one that belongs to another question is refused."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(snapshot)) as reader:
            table = reader.read_all()
        header = json.loads(table.schema.metadata[_HEADER])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"these bytes are not a snapshot of a join: {error}") from error
    for name, value in question.items():
        if header.get(name) != value:
            raise StateError(
                f"the snapshot has {name} {header.get(name)!r}, this join {value!r}; restore it "
                "into a join with the same question, algorithm and master version"
            )
    table = table.replace_schema_metadata(None)
    names = [f.name for f in _EXTRA]
    stream = table.select([n for n in table.column_names if n not in names])
    division = Division(**header["division"]) if "division" in header else None
    knobs = {name: header.get("knobs", {}).get(name) for name in KNOBS if "knobs" in header}
    saved = header["counters"], header["phase"], knobs
    return Saved(stream, table.select(names), *saved, division)
