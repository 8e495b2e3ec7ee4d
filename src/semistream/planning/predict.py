"""How long a join will take per stream row, and so how many rows per second it will answer.

    Case ──work──> counts per stream row ──machine──> seconds per stream row

What an operation costs comes from the machine, as `calibrate` has measured it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..budget import STREAM_ROW, Split, split_memory
from .laws import zipf
from .machine import Machine
from .work import Case, Work, work_of


@dataclass(frozen=True)
class Prediction:
    """The rate of one join, and where its time goes."""

    case: Case
    split: Split
    work: Work
    seconds: dict[str, float]  # per stream row, by part

    @property
    def rate(self) -> float:
        """Stream rows per second."""
        return 1 / max(1e-12, sum(self.seconds.values()))

    @property
    def wait_seconds(self) -> float:
        """How long a row that the front stage does not answer waits, at this rate."""
        return self.work.disk.waits / self.rate


def predict(case: Case, machine: Machine) -> Prediction:
    """Raises BudgetError or MasterError where the join would."""
    widest = max(STREAM_ROW, case.workload.row_bytes)
    split = split_memory(
        case.algorithm, case.master, case.memory, widest, case.params, case.ordered
    )
    device = machine.device
    # Pages that are asked for one by one are never joined to one request.
    joins = device.sequential_free or case.algorithm.disk != "plan"
    work = work_of(case, split, device.gap_bytes if joins else 0.0)
    cpu = machine.cpu
    parts = cpu.seconds(case, work) if cpu else _measured(case, split, work, machine)
    parts["reading"] = 0.0 if case.master.mapped else _reading(case, split, work, machine)
    return Prediction(case, split, work, parts)


# --- seconds ------------------------------------------------------------------------------------


def _measured(case: Case, split: Split, work: Work, machine: Machine) -> dict[str, float]:
    parts: dict[str, float] = {}
    for operation in operations(case, split, work):
        seconds = operation.count * machine.cost(operation.name, operation.size)
        parts[operation.part] = parts.get(operation.part, 0.0) + seconds
    return parts


@dataclass(frozen=True)
class Operation:
    """Something that costs time: how often per stream row, on how many bytes."""

    part: str
    name: str
    count: float
    size: float = 1.0


def operations(case: Case, split: Split, work: Work) -> Iterator[Operation]:
    """What the processor does per stream row. `calibrate` finds what each of these costs."""
    algorithm, master, skew = case.algorithm, case.master, case.workload.skew
    shown = master.columns if case.columns is None else case.columns
    text = master.text_columns * shown / max(1, master.columns)
    columns = case.workload.columns + shown + 2 * text
    yield Operation("front stage", "take", 1.0)
    yield Operation("front stage", "piece", work.pieces)
    if algorithm.front != "none" and not work.asleep and work.cached:
        hot = used_bytes(work.cached, master.rows, skew, master.row_bytes)
        yield Operation("front stage", "ask", 1.0, hot)
        yield Operation("output", "hit", work.hits * columns, hot)
    if algorithm.disk == "none":
        return
    table = float(split.backlog)
    kind = algorithm.disk
    linked = kind in ("scan", "seek")
    yield Operation("waiting", f"link {kind}" if linked else "wait", work.misses, table)
    yield Operation("disk phase", f"step {kind}", work.steps)
    if algorithm.front == "groups" and not work.asleep:
        yield Operation("front stage", "learn", work.misses)
    reach = used_bytes(master.rows, master.rows, skew, master.row_bytes)
    yield Operation("output", "find", work.misses * columns, reach if kind == "lookup" else 1.0)
    if kind == "plan":
        yield Operation("disk phase", "plan", work.steps * work.waiting)
    elif kind == "lookup":
        yield Operation("disk phase", "look", work.misses, reach)
    elif kind == "scan":
        yield Operation("disk phase", "scan", work.disk.master_rows, table)
    else:
        yield Operation("disk phase", "block", work.disk.reads)
        yield Operation("disk phase", "seek", work.disk.master_rows, table)
    if not master.mapped:
        yield Operation("disk phase", f"call {kind}", _answers(case, split, work))
    elif not linked:  # what a scan or a block meets is counted by its rows
        yield Operation("disk phase", "touch", work.disk.pages)


@lru_cache(maxsize=1024)
def used_bytes(keys: float, rows: int, skew: float, row_bytes: int) -> float:
    """Bytes that four fifths of the questions to the most popular `keys` rows go to: what has to
    be near for them to be fast."""
    if keys <= 0:
        return 1.0
    mass = 0.8 * zipf.share(keys, rows, skew)
    return max(1.0, zipf.top_for(mass, rows, skew) * row_bytes)


def _reading(case: Case, split: Split, work: Work, machine: Machine) -> float:
    """Seconds of the device per stream row: reads of one call are asked for together."""
    disk = work.disk
    if disk.reads <= 0:
        return 0.0
    calls = _calls(case, split, work)
    reads = max(calls, disk.reads)
    goes_on = max(0.0, reads - disk.jumps)
    each = machine.device.seconds(reads / calls, disk.bytes / calls, goes_on / calls)
    return calls * each


def _calls(case: Case, split: Split, work: Work) -> float:
    """Calls of the master: a sweep asks for as many pages at once as its buffer has room for."""
    disk = work.disk
    if case.algorithm.disk != "sweep" or case.master.by_key:
        return disk.reads
    return min(disk.pages, max(disk.bytes / max(1, split.read), work.steps))


def _answers(case: Case, split: Split, work: Work) -> float:
    """How often some rows are answered out of pages that were read: after each call; for each row
    of its own where rows are looked up; ssij also out of each page that it keeps."""
    if case.algorithm.disk == "lookup" and not case.master.by_key:
        return work.misses
    if case.algorithm.disk == "plan":
        kept = min(case.master.pages, split.pool / max(1, case.master.page_bytes))
        return work.disk.pages + work.steps * kept
    return _calls(case, split, work)
