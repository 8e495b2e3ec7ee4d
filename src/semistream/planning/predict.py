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
from .phases import Operation, phase_of
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
    joins = device.sequential_free or phase_of(case.algorithm).joins_reads
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


def operations(case: Case, split: Split, work: Work) -> Iterator[Operation]:
    """What the processor does per stream row. `calibrate` finds what each of these costs."""
    algorithm, master, skew = case.algorithm, case.master, case.workload.skew
    shown = master.columns if case.columns is None else case.columns
    text = master.text_columns * shown / max(1, master.columns)
    columns = case.workload.columns + shown + 2 * text
    yield Operation("front stage", "take", 1.0)
    yield Operation("front stage", "piece", work.pieces)
    front, disk, phase = algorithm.front_facts, algorithm.disk_facts, phase_of(algorithm)
    if front.answers and not work.asleep and work.cached:
        hot = used_bytes(work.cached, master.rows, skew, master.row_bytes)
        yield Operation("front stage", "ask", 1.0, hot)
        yield Operation("output", "hit", work.hits * columns, hot)
    if front.whole:
        return
    table = float(split.backlog)
    waits = f"link {phase.cost}" if disk.linked else "wait"
    yield Operation("waiting", waits, work.misses, table)
    yield Operation("disk phase", f"step {phase.cost}", work.steps)
    if front.learns and not work.asleep:
        yield Operation("front stage", "learn", work.misses)
    reach = used_bytes(master.rows, master.rows, skew, master.row_bytes)
    near = reach if phase.finds_anywhere else 1.0
    yield Operation("output", "find", work.misses * columns, near)
    yield from phase.searching(work, table, reach)
    if not master.mapped:
        answers = phase.answers(case, split, work)
        yield Operation("disk phase", f"call {phase.cost}", answers)
    elif not disk.linked:  # what a scan or a block meets is counted by its rows
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
    calls = phase_of(case.algorithm).calls(case, split, work)
    reads = max(calls, disk.reads)
    goes_on = max(0.0, reads - disk.jumps)
    each = machine.device.seconds(reads / calls, disk.bytes / calls, goes_on / calls)
    return calls * each
