"""What a join will do per stream row: hits, waiting rows, steps, pages and reads.

    facts of the master, workload, memory ──plan──> slots, cached keys, size of reads
                                          ──model──> hits, pages, reads, master rows per stream row

The counts describe our own joins in a steady state: a warm front stage, all slots in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from .model import zipf
from .model.family import DiskWork, Setting, disk_work
from .plan import (
    ASLEEP,
    AWAKE,
    CHUNK_BYTES,
    COLLECT,
    FEW,
    SMALL,
    STREAM_ROW,
    Split,
    cached_keys,
    summary_bytes,
    waiting_rows,
)
from .spec import Algorithm, MasterFacts, Params, Workload

FILLED = 0.9  # of a front stage's room: its youngest and oldest segments are being made
KNOWS = 0.56  # as many of the most popular keys would hit as often as those that it has found
TOLD = 8  # a sample tells the popularity of one key in so many that it has seen
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


def with_params(case: Case, **params: object) -> Case:
    """The same case with other knobs."""
    return replace(case, params=replace(case.params, **params))  # type: ignore[arg-type]


def work_of(case: Case, split: Split, gap_bytes: float = 0.0) -> Work:
    """`gap_bytes`: a device reads through gaps that are smaller."""
    algorithm, master, stream = case.algorithm, case.master, case.workload
    if algorithm.disk == "none" or master.rows == 0:
        pieces = _pieces(case, split, split.piece_rows)
        return Work(1.0, 0.0, pieces, 0.0, EMPTY, master.rows, 0, False)
    cached, hits, asleep = _front(case, split)
    linked = algorithm.disk in ("scan", "seek")
    limit = _for_waiting(case, split)
    limit += split.front if asleep and algorithm.disk == "sweep" else 0
    widest = max(STREAM_ROW, stream.row_bytes)
    slots = waiting_rows(limit, widest, linked, stream.row_bytes)
    misses = 1 - hits
    disk = _disk(case, split, cached, _in_use(case, split, slots), gap_bytes)
    steps = _steps(case, split, disk, misses, slots)
    if algorithm.disk == "plan" and not master.mapped:
        disk = _in_file_order(disk, steps, master, gap_bytes)
    if algorithm.disk == "lookup" and master.mapped and misses > 0:
        together = misses / steps  # a map counts the pages of a step once
        per_page = (master.rows, max(1, master.pages), stream.skew, stream.ordered, cached)
        pages = steps * zipf.expected_pages(together, *per_page)
        disk = replace(disk, pages=pages, bytes=pages * master.page_bytes)
    free = {"sweep": 1.0, "seek": 0.25, "plan": 0.35, "lookup": 1.0}.get(algorithm.disk, 0.0)
    pieces = _pieces(case, split, slots * free, steps, misses, slots / 16)
    return Work(hits, misses, pieces, steps, disk, cached, slots, asleep)


def _for_waiting(case: Case, split: Split) -> int:
    """Bytes for waiting rows: what the summary of the stream takes is taken from theirs."""
    return split.backlog - summary_bytes(split.backlog, case.params.sketch)


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
    return top, known * popular(case.workload, top, master.rows), False


def popular(workload: Workload, top: float, rows: float) -> float:
    """The share of rows that ask for the `top` most popular keys: as measured, where enough keys
    were seen to tell, and by the Zipf law beyond."""
    law = zipf.share(top, rows, workload.skew)
    if not workload.popularity:
        return law
    keys, shares = np.array([(0, 0.0), *workload.popularity], np.float64).T
    sure = keys[-1] / TOLD  # of the keys further down only some were seen
    if top <= sure:
        return float(np.interp(top, keys, shares))
    edge, by_law = float(np.interp(sure, keys, shares)), zipf.share(sure, rows, workload.skew)
    return float(1 - (1 - edge) * (1 - law) / max(1e-9, 1 - by_law))


def _sleeps(rows: int, skew: float, room: int, split: Split, case: Case) -> bool:
    """Whether too few rows ask for a key again, among as many rows as it watches at a time."""
    watched = max(1024, room * 16 // 18)
    if 1 - zipf.expected_distinct(watched, rows, skew) / watched >= ASLEEP:
        return False
    linked = case.algorithm.disk in ("scan", "seek")
    together = waiting_rows(_for_waiting(case, split), STREAM_ROW, linked, case.workload.row_bytes)
    return 1 - zipf.expected_distinct(together, rows, skew) / together < AWAKE


def _disk(case: Case, split: Split, cached: float, slots: float, gap_bytes: float) -> DiskWork:
    master = case.master
    if master.by_key and case.algorithm.disk in ("sweep", "lookup"):
        return _fetched(case, split, cached, slots)
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


def _fetched(case: Case, split: Split, cached: float, slots: float) -> DiskWork:
    """A database brings the rows of many keys at once: each key once, as many as a read may hold.
    A key counts as a page."""
    master, skew = case.master, case.workload.skew
    together = slots
    if case.algorithm.disk == "lookup":
        together = min(slots, case.workload.batch_rows)
    missed = 1 - zipf.share(min(cached, master.rows), master.rows, skew)
    keys = zipf.expected_distinct(together, master.rows, skew, min(cached, master.rows - 1.0))
    calls = max(1.0, keys * master.row_bytes / max(1, split.read))
    each = missed / max(1.0, together)
    size = keys * each * master.row_bytes
    return DiskWork(calls * each, keys * each, size, 0.0, together / 2, calls * each)


def _in_use(case: Case, split: Split, slots: int) -> float:
    """Slots that rows wait in. Behind a scan rows come in small chunks, which are brought together,
    but never all of them; each costs as much as many rows."""
    if case.algorithm.disk != "scan" or case.master.rows == 0:
        return slots
    reads = max(1.0, case.master.bytes / max(1, split.read))
    chunk = slots / reads
    chunks = slots / max(SMALL, chunk) + (FEW / 2 if chunk < SMALL else 0)
    lost = chunks * (CHUNK_BYTES + 64 * case.workload.columns) / case.workload.row_bytes
    return max(1.0, slots - lost)


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
        return misses / max(1.0, 0.34 * slots)
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
