"""What a join will do per stream row: hits, waiting rows, steps, pages and reads.

    facts of the master, workload, memory ──plan──> slots, cached keys, size of reads
                                          ──model──> hits, pages, reads, master rows per stream row

The counts describe our own joins in a steady state: a warm front stage, all slots in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from ..budget import (
    ASLEEP,
    AWAKE,
    CHUNK_BYTES,
    COLLECT,
    FETCH_COPIES,
    FETCH_KEYS,
    PAGES_FILL,
    PINNED_ROW_BYTES,
    SEGMENTS,
    STREAM_ROW,
    Split,
    cached_keys,
    waiting_rows,
)
from ..spec import Algorithm, MasterFacts, Params, Workload
from .laws import DiskWork, Setting, disk_work, rounds, swept, zipf
from .laws import ssij as planned

FILLED = 0.9  # of a front stage's room: its youngest and oldest segments are being made
FILLING = 0.75  # of the repetition below which a front stage sleeps: with less it surely does
KNOWS = 0.65  # as many of the most popular keys would hit as often as those that it has found
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
        whole = Rhythm("none", master.mapped, stream.batch_rows, split.piece_rows, 0, 0.0)
        return Work(1.0, 0.0, whole.pieces, 0.0, EMPTY, master.rows, 0, False)
    cached, hits, asleep = _front(case, split)
    linked = algorithm.disk in ("scan", "seek")
    limit = split.backlog
    limit += split.front if asleep and algorithm.disk == "sweep" else 0
    widest = max(STREAM_ROW, stream.row_bytes)
    slots = waiting_rows(limit, widest, linked, _width(stream))
    misses = 1 - hits
    usable = _in_use(case, split, slots, guesses=cached > 0)
    setting = _setting(case, split, cached, usable, gap_bytes)
    disk = _disk(case, split, setting, misses)
    if misses > 0:
        disk = _per_missed_row(case, disk, cached, misses)
    rhythm = Rhythm(
        kind=algorithm.disk,
        mapped=master.mapped,
        batch=stream.batch_rows,
        piece=split.piece_rows,
        slots=slots,
        misses=misses,
        reads=disk.reads,
        at_once=_answered_at_once(case, split, slots) if algorithm.disk == "plan" else 0.0,
        part_rows=_part_rows(case, setting),
    )
    steps = rhythm.steps
    if master.mapped:
        disk = replace(disk, pages=_touched(case, split, disk, cached, misses, steps))
    elif algorithm.disk == "plan":
        disk = _in_file_order(disk, steps, master, gap_bytes)
    return Work(hits, misses, rhythm.pieces, steps, disk, cached, slots, asleep)


def _front(case: Case, split: Split) -> tuple[float, float, bool]:
    """Keys that the front stage answers for, the share of rows it answers, whether it sleeps."""
    master, skew = case.master, case.workload.skew
    known = 1 - case.workload.orphans
    if case.algorithm.front == "pinned":
        # A page is in memory twice while it is packed.
        rows = min(master.rows, split.front / (2 * master.row_bytes + PINNED_ROW_BYTES))
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
    """Whether too few rows ask for a key again, among as many rows as it watches at a time: at
    least a cycle of a scan, a round of a sweep in parts."""
    disk, master = case.algorithm.disk, case.master
    linked = disk in ("scan", "seek")
    together = waiting_rows(split.backlog, STREAM_ROW, linked, _width(case.workload))
    rounds = disk == "sweep" and not (master.mapped or master.by_key or case.ordered)
    least = together if disk == "scan" else 2 * together if rounds else 0
    watched = max(1024, room * SEGMENTS // (SEGMENTS + 2), least)
    # A round is so long that the cache answers rows before it is judged.
    limit = ASLEEP * (FILLING if rounds else 1.0)
    if 1 - zipf.expected_distinct(watched, rows, skew) / watched >= limit:
        return False
    return 1 - zipf.expected_distinct(together, rows, skew) / together < AWAKE


def _disk(case: Case, split: Split, setting: Setting, misses: float) -> DiskWork:
    if case.master.by_key and case.algorithm.disk in ("sweep", "lookup"):
        return _fetched(case, split, setting.cached, misses, setting.waiting)
    return _disk_work(case.algorithm.name, setting)


def _setting(case: Case, split: Split, cached: float, slots: float, gap_bytes: float) -> Setting:
    master = case.master
    # Where pages overlap, the one that is looked up answers its own key and no other.
    alone = case.algorithm.disk == "seek" and master.overlapping
    pages = max(1, master.rows if alone else master.pages)
    page = max(1, master.page_bytes)
    gap = 0.0 if master.mapped else math.ceil(gap_bytes / page) - 1
    return Setting(
        rows=max(1, master.rows, pages),
        pages=pages,
        page_bytes=page,
        waiting=slots,
        skew=case.workload.skew,
        ordered=case.workload.ordered,
        cached=cached,
        read_pages=1.0 if alone else max(1.0, split.read // max(page, master.max_page_bytes)),
        gap=max(0.0, gap),
        pool_pages=split.pool / page,
        release=case.params.release,
        mapped=master.mapped,
        in_order=case.ordered,
        spans=master.spans,
    )


def _part_rows(case: Case, setting: Setting) -> float:
    """Rows that one step of a sweep in parts answers; 0 where it answers all."""
    sweeps = case.algorithm.disk == "sweep" and not case.master.by_key
    if not sweeps or not setting.in_parts or setting.missed <= 0:
        return 0.0
    rows, parts = rounds(setting)
    return rows / parts


def _fetched(case: Case, split: Split, cached: float, misses: float, slots: float) -> DiskWork:
    """A database brings the rows of many keys at once: each key once, as many as a read may hold.
    A key counts as a page."""
    master, skew = case.master, case.workload.skew
    now = case.algorithm.disk == "lookup"
    batch = case.workload.batch_rows * misses / fills(case.workload.batch_rows, misses, slots)
    together = max(1.0, batch if now else swept(misses) * slots)
    missed = 1 - zipf.share(min(cached, master.rows), master.rows, skew)
    keys = zipf.expected_distinct(together, master.rows, skew, min(cached, master.rows - 1.0))
    at_once = max(1.0, min(FETCH_KEYS, split.read / FETCH_COPIES / max(16, master.row_bytes)))
    calls = math.ceil(keys / at_once)
    each = missed / max(1.0, together)
    size = keys * each * master.row_bytes
    waits = 0.0 if now else together / 2 / max(1e-9, missed)
    return DiskWork(calls * each, keys * each, size, 0.0, waits, calls * each)


def _per_missed_row(case: Case, disk: DiskWork, cached: float, misses: float) -> DiskWork:
    """The law counts per stream row, and takes the hits to be those of its Zipf law. More rows
    miss where some keys are not in the master (they ask for pages like others), fewer where a
    sample showed more popular keys."""
    rows = case.master.rows
    by_law = 1 - zipf.share(min(cached, rows), rows, case.workload.skew)
    if case.algorithm.front == "pinned" and not case.workload.ordered:
        by_law = 1 - min(1.0, cached / rows)
    if by_law <= 0:
        return disk
    more = misses / by_law
    return DiskWork(
        disk.reads * more,
        disk.pages * more,
        disk.bytes * more,
        disk.master_rows * more,
        disk.waits / more,
        disk.jumps * more,
    )


def _in_use(case: Case, split: Split, slots: int, guesses: bool) -> float:
    """Slots that rows can wait in. Before each read of a scan some rows come in as a chunk, and
    chunks cost bytes: small ones are brought together once that would give back a 32nd of all.
    (Where rows leave out of turn the law says how many slots that keeps from being used.)"""
    stream = case.workload
    if case.algorithm.disk != "scan" or case.params.release == "match" or case.master.rows == 0:
        return slots
    chunks = max(1.0, case.master.bytes / max(1, split.read)) * (GUESSES if guesses else 1.0)
    lost = min(chunks * (CHUNK_BYTES + 32 * stream.columns), split.backlog / 32)
    data = slots * _width(stream) + 2 * max(STREAM_ROW, stream.row_bytes)
    return float(np.clip((data - lost) / stream.row_bytes, 1.0, slots))


def _width(stream: Workload) -> int:
    """Bytes that a waiting row is planned with: its own, and a bit per column for NULL."""
    return stream.row_bytes + stream.columns // 8 + 1


def _in_file_order(disk: DiskWork, steps: float, master: MasterFacts, gap_bytes: float) -> DiskWork:
    """ssij asks for page after page, in file order: some go on where the last one ended, and small
    gaps are read through."""
    pages = disk.pages / max(1e-12, steps)
    gap = max(0, math.ceil(gap_bytes / max(1, master.page_bytes)) - 1)
    reads, brought = zipf.expected_reads(min(pages, master.pages), master.pages, gap)
    each = steps * brought
    return replace(disk, jumps=steps * reads, bytes=each * master.page_bytes)


def _answered_at_once(case: Case, split: Split, slots: int) -> float:
    """Share of rows whose page is in ssij's cache when they come."""
    master, stream = case.master, case.workload
    pages, pool = max(1, master.pages), split.pool / max(1, master.page_bytes)
    rows = max(1, master.rows, pages)
    return planned.solve(slots, rows, pages, stream.skew, stream.ordered, pool).cached_share


def _touched(
    case: Case, split: Split, disk: DiskWork, cached: float, misses: float, steps: float
) -> float:
    """Pages of a mapped master that are used: a lookup uses each page once for all rows of a step,
    and ssij those of its cache again in every step."""
    master, stream = case.master, case.workload
    pages = max(1, master.pages)
    if case.algorithm.disk == "plan":
        return disk.pages + steps * min(pages, split.pool / max(1, master.page_bytes))
    if case.algorithm.disk != "lookup" or steps <= 0:
        return disk.pages
    rows, cached = max(1, master.rows, pages), min(cached, master.rows - 1.0)
    together = misses / steps
    return steps * float(
        zipf.expected_pages(together, rows, pages, stream.skew, stream.ordered, max(0.0, cached))
    )


_disk_work = lru_cache(maxsize=4096)(disk_work)


GUESSES = 3.0  # pieces per read of a scan that does not know how many rows will miss: 1 to 7
PIECES = 64  # that are looked at one by one


def fills(batch: float, misses: float, slots: float) -> int:
    """How often a batch fills the slots, where all rows are answered before it ends."""
    return max(1, math.ceil(batch * misses / max(1.0, slots)))


@dataclass(frozen=True)
class Rhythm:
    """Steps and pieces per stream row."""

    kind: str  # of the disk phase
    mapped: bool
    batch: int  # rows that come at a time
    piece: int  # rows that are taken in at a time, at most
    slots: int
    misses: float  # share of rows that the front stage does not answer
    reads: float = 0.0  # per stream row
    at_once: float = 0.0  # share of rows that ssij's cached pages answer
    part_rows: float = 0.0  # that a step of a sweep in parts answers; 0: all that wait

    @cached_property
    def steps(self) -> float:
        """Calls of the disk phase per stream row."""
        if self.kind == "none" or self.misses <= 0:
            return 0.0
        if self.kind == "scan" or (self.kind == "seek" and not self.mapped):
            return self.reads
        if self.kind == "lookup":
            return fills(self.batch, self.misses, self.slots) / max(1, self.batch)
        return self.misses * (1 - self.at_once) / max(1.0, self._freed)

    @property
    def _freed(self) -> float:
        """Slots that one step makes free."""
        if self.kind == "seek":
            read = self.misses / max(1e-12, self.reads)
            return self.slots / 4 + read / 2 if self.mapped else read
        if self.kind == "plan":
            return PAGES_FILL / 2 * self.slots
        if self.part_rows:
            return self.part_rows
        return self.slots * (swept(self.misses) if self.kind == "sweep" else 1.0)

    @property
    def pieces(self) -> float:
        """Parts that batches are taken in by, per stream row."""
        batch, piece = max(1, self.batch), max(1, self.piece)
        if self.steps <= 0:
            return math.ceil(batch / piece) / batch
        if self.kind == "scan":
            often = GUESSES if self.misses < 1 else 1.0
            return max(often * self.steps, 1 / piece + self.steps / 2) + 1 / batch
        return self._piece_by_piece(batch, piece)

    def _piece_by_piece(self, batch: float, piece: float) -> float:
        most = (PAGES_FILL if self.kind == "plan" else 1.0) * self.slots
        # Fewer free slots than this are not filled. (ssij fills them all, but cached pages answer
        # rows only by the thousand, so that few of the last ones leave again.)
        least = {"lookup": 1.0, "plan": self.slots / 20}.get(self.kind, self.slots / 16)
        misses = self.misses * (1 - self.at_once)
        whole = self.kind == "sweep" and not self.part_rows
        freed = self.slots if whole else self._freed  # all, those still free too
        free, left, rows = 0.0, batch, 0.0
        for _ in range(PIECES):
            if free < least:  # one step, or as many as it takes
                free = min(most, free + max(freed, least - free + freed / 2))
            taken = min(piece, left, max(1.0, free))
            rows += taken
            free -= misses * taken
            left -= taken
            if left <= 0:
                left = batch
                free = most if self.kind == "lookup" else free
        return PIECES / rows
