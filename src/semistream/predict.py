"""What a join will do per stream row, and how long that takes: the model put together.

    facts of the master, workload, memory ──plan──> slots, cached keys, size of reads
                                          ──model──> hits, pages, reads, master rows per stream row
                                          ──machine──> seconds per stream row, rows per second

The counts describe our own joins in a steady state: a warm front stage, all slots in use. What an
operation costs comes from the machine: measured ones (`calibrate`) or those of the papers (`Cpu`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from .machine import Cpu, Machine
from .model import zipf
from .model.family import GUESSED, DiskWork, Setting, disk_work
from .plan import (
    CHUNK_BYTES,
    FEW,
    SMALL,
    STREAM_ROW,
    Split,
    cached_keys,
    split_memory,
    waiting_rows,
)
from .spec import Algorithm, MasterFacts, Params, Workload
from .summary import Summary

COLLECT = 8  # a scan's share of the front stage for key groups that are not complete yet
SUMMARY = 16  # what waiting rows may take, over what the summary of the stream takes: at least this
WORTH = 32  # waiting rows are brought together when one part in so many of their bytes comes back
LIES_ABOUT = 0.7  # of that, on average
KEPT_FREE = 1024  # bytes beside the rows of a chunk
FILLED = 0.9  # of a front stage's room: its youngest and oldest segments are being made
KNOWS = 0.56  # as many of the most popular keys would hit as often as those that it has found
ASLEEP = 0.12  # it sleeps where fewer rows than this share ask for a key again
AWAKE = 0.2
EMPTY = DiskWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Case:
    """What is to be predicted."""

    algorithm: Algorithm
    master: MasterFacts
    workload: Workload
    memory: int
    params: Params = field(default_factory=Params)
    columns: int | None = None  # of the master in the output; None: all
    ordered: bool = False  # output in the order of the stream


@dataclass(frozen=True)
class Work:
    """What a join does per stream row, on average."""

    hits: float  # answered by the front stage
    misses: float
    pieces: float  # parts of a batch that are taken in
    steps: float  # of the disk phase
    disk: DiskWork
    cached: float  # keys in the front stage
    waiting: int  # slots for waiting rows
    asleep: bool  # the front stage is of no use, and is left alone


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
    work = work_of(case, split, machine.device.gap_bytes)
    cpu = machine.cpu
    parts = _charged(case, work, cpu) if cpu is not None else _measured(case, split, work, machine)
    parts["reading"] = 0.0 if case.master.mapped else _reading(case, split, work, machine)
    return Prediction(case, split, work, parts)


# --- counts -------------------------------------------------------------------------------------


def work_of(case: Case, split: Split, gap_bytes: float = 0.0) -> Work:
    """`gap_bytes`: a device reads through gaps that are smaller."""
    algorithm, master, stream = case.algorithm, case.master, case.workload
    if algorithm.disk == "none" or master.rows == 0:
        pieces = _pieces(case, split, split.piece_rows)
        return Work(1.0, 0.0, pieces, 0.0, EMPTY, master.rows, 0, False)
    cached, hits, asleep = _front(case, split)
    linked = algorithm.disk in ("scan", "seek")
    limit = _for_waiting(case, split) + (split.front if asleep and algorithm.disk == "sweep" else 0)
    slots = waiting_rows(limit, max(STREAM_ROW, stream.row_bytes), linked, _own_bytes(stream))
    misses = 1 - hits
    in_use = _in_use(case, split, slots, cached > 0)
    disk = _disk(case, split, cached, in_use, gap_bytes)
    steps = _steps(case, split, disk, misses, slots)
    if algorithm.disk == "plan" and not master.mapped:
        disk = _in_file_order(disk, steps, master, gap_bytes)
    free = {"sweep": 1.0, "seek": 0.25, "plan": 0.35, "lookup": 1.0}.get(algorithm.disk, 0.0)
    pieces = _pieces(case, split, slots * free, steps, misses, slots / 16)
    return Work(hits, misses, pieces, steps, disk, cached, slots, asleep)


def _for_waiting(case: Case, split: Split) -> int:
    """Bytes for waiting rows: what the summary of the stream takes is taken from theirs."""
    least = Summary.least()
    summed_up = case.params.sketch and split.backlog >= SUMMARY * least
    return split.backlog - (least if summed_up else 0)


def _own_bytes(stream: Workload) -> int:
    """Bytes that a waiting row is planned with: its own, and a bit per column for NULL."""
    return stream.row_bytes + stream.columns // 8 + 1


def _front(case: Case, split: Split) -> tuple[float, float, bool]:
    """Keys that the front stage answers for, the share of rows it answers, whether it sleeps."""
    master, skew = case.master, case.workload.skew
    known = 1 - case.workload.orphans
    if case.algorithm.front == "pinned":
        # A page is in memory twice while it is packed.
        rows = min(master.rows, split.front / (2 * master.row_bytes + 72))
        mass = zipf.share(rows, master.rows, skew) if case.workload.ordered else rows / master.rows
        return rows, known * mass, False
    if case.algorithm.front != "groups" or (master.overlapping and case.algorithm.disk != "scan"):
        return 0.0, 0.0, False
    shows = master.unique or master.ordered
    limit = split.front
    if case.algorithm.disk == "scan" and not shows:
        limit -= limit // COLLECT
    room = cached_keys(limit, max(16, master.row_bytes))
    if room == 0:
        return 0.0, 0.0, False
    if _sleeps(master.rows, skew, room, split, case):
        return 0.0, 0.0, True
    keys = min(master.rows, FILLED * room)
    top = keys if keys >= master.rows else KNOWS * keys
    return top, known * zipf.share(top, master.rows, skew), False


def _sleeps(rows: int, skew: float, room: int, split: Split, case: Case) -> bool:
    """Whether too few rows ask for a key again, among as many rows as it watches at a time."""
    watched = max(1024, room * 16 // 18)
    if 1 - zipf.expected_distinct(watched, rows, skew) / watched >= ASLEEP:
        return False
    linked = case.algorithm.disk in ("scan", "seek")
    limit = _for_waiting(case, split)
    together = waiting_rows(limit, STREAM_ROW, linked, _own_bytes(case.workload))
    return 1 - zipf.expected_distinct(together, rows, skew) / together < AWAKE


def _disk(case: Case, split: Split, cached: float, slots: float, gap_bytes: float) -> DiskWork:
    master = case.master
    pages = max(1, master.pages)
    page = max(1, master.page_bytes)
    gap = 0.0 if master.mapped else math.ceil(gap_bytes / page) - 1
    return _disk_work(
        case.algorithm.name,
        Setting(
            rows=max(1, master.rows, pages),
            pages=pages,
            page_bytes=page,
            waiting=slots,
            skew=case.workload.skew,
            ordered=case.workload.ordered,
            cached=cached,
            read_pages=max(1.0, split.read // page),
            gap=max(0.0, gap),
            pool_pages=split.pool / page,
            release=case.params.release,
            mapped=master.mapped,
        ),
    )


def _in_use(case: Case, split: Split, slots: int, guesses: bool) -> float:
    """Slots that rows wait in. Behind a scan rows come in chunks, one per step, and each costs as
    much as many rows: where bytes run out, slots stay empty.

    Small chunks are brought together where FEW of them make less than a chunk that is not small;
    what has gone from those lies about until it is worth a copy (`Backlog.compact`): 0.56 to 0.88
    of what would be. Larger ones find no room for the copy in a backlog that is full."""
    if case.algorithm.disk != "scan" or case.master.rows == 0:
        return slots
    stream, limit = case.workload, _for_waiting(case, split)
    room = slots * _own_bytes(stream) + 2 * max(STREAM_ROW, stream.row_bytes) + 2 * CHUNK_BYTES
    room -= KEPT_FREE
    pages = max(1, split.read // max(1, case.master.page_bytes))
    chunk = slots / max(1.0, case.master.pages / pages)
    if chunk * FEW < SMALL:
        room -= FEW * CHUNK_BYTES + int(LIES_ABOUT * (limit // WORTH + CHUNK_BYTES))
        chunk = SMALL
    used = room / (stream.row_bytes + CHUNK_BYTES / chunk)
    return max(1.0, min(slots, used / GUESSED if guesses else used))


def _in_file_order(disk: DiskWork, steps: float, master: MasterFacts, gap_bytes: float) -> DiskWork:
    """ssij asks for page after page, in file order: some go on where the last one ended, and small
    gaps are read through."""
    pages = disk.pages / max(1e-12, steps)
    gap = max(0, math.ceil(gap_bytes / max(1, master.page_bytes)) - 1)
    reads, brought = zipf.expected_reads(min(pages, master.pages), master.pages, gap)
    each = steps * brought
    return replace(disk, jumps=steps * reads, bytes=each * master.page_bytes)


_disk_work = lru_cache(maxsize=4096)(disk_work)


def _steps(case: Case, split: Split, disk: DiskWork, misses: float, slots: int) -> float:
    """Calls of the disk phase per stream row."""
    if misses <= 0:
        return 0.0
    kind = case.algorithm.disk
    if kind == "scan":
        return disk.reads
    if kind == "seek":
        return disk.reads if not case.master.mapped else misses / max(1.0, 0.24 * slots)
    if kind == "plan":
        # Rows wait in 0.7 of the slots before a join phase and in half of these after it, so an
        # average one waits for 1.5 phases; cached pages answer the others.
        return misses * 1.5 / max(1.0, disk.waits)
    together = min(slots, case.workload.batch_rows * misses) if kind == "lookup" else slots
    return misses / max(1.0, together)


def _pieces(
    case: Case,
    split: Split,
    free: float,
    steps: float = 0.0,
    misses: float = 1.0,
    until: float = 0.0,
) -> float:
    """Parts that batches are taken in by, per stream row: as large as `piece_rows` and as the free
    slots allow. Hits leave slots free, so the last parts before a step become smaller and smaller
    until fewer than `until` slots are free."""
    batch = max(1, case.workload.batch_rows)
    whole = math.ceil(batch / max(1, min(split.piece_rows, max(1.0, free or batch)))) / batch
    if steps == 0:
        return whole
    last = 1.0
    if 0 < misses < 1 and until >= 1:
        begin = max(until, min(split.piece_rows, free))
        last += math.log(begin / until) / -math.log(1 - misses)
    return whole + steps * last


# --- seconds ------------------------------------------------------------------------------------


def _charged(case: Case, work: Work, cpu: Cpu) -> dict[str, float]:
    """By the operations that the papers count."""
    algorithm = case.algorithm
    asks = 1.0 if algorithm.front != "none" else 0.0
    probes = work.disk.master_rows if algorithm.disk in ("scan", "seek") else work.misses
    matched = 1 - case.workload.orphans
    return {
        "front stage": cpu.take_in + asks * cpu.probe,
        "waiting": work.misses * (cpu.append + cpu.expire),
        "disk phase": probes * cpu.probe_master,
        "output": matched * cpu.emit,
    }


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
    yield Operation("waiting", "link" if linked else "wait", work.misses, table)
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
    if master.mapped:
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
    calls = disk.reads
    if case.algorithm.disk == "sweep":
        calls = min(disk.pages, max(disk.bytes / max(1, split.read), work.steps))
    reads = max(calls, disk.reads)
    goes_on = max(0.0, reads - disk.jumps)
    each = machine.device.seconds(reads / calls, disk.bytes / calls, goes_on / calls)
    return calls * each


def with_params(case: Case, **params: object) -> Case:
    """The same case with other knobs."""
    return replace(case, params=replace(case.params, **params))  # type: ignore[arg-type]
