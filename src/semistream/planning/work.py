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

from ..budget import (
    ASLEEP,
    AWAKE,
    COLLECT,
    FETCH_COPIES,
    FETCH_KEYS,
    PINNED_ROW_BYTES,
    SEGMENTS,
    STREAM_ROW,
    Split,
    cached_keys,
    waiting_rows,
)
from ..spec import Algorithm, MasterFacts, Params, Workload
from .laws import DiskWork, Setting, disk_work, require_law, swept, zipf
from .phases import Rhythm, fills, phase_of, width

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
    require_law(algorithm)
    phase, disk_facts = phase_of(algorithm), algorithm.disk_facts
    if algorithm.front_facts.whole or master.rows == 0:
        whole = Rhythm(master.mapped, stream.batch_rows, split.piece_rows, 0, 0.0)
        return Work(1.0, 0.0, whole.pieces, 0.0, EMPTY, master.rows, 0, False)
    cached, hits, asleep = _front(case, split)
    limit = split.backlog
    limit += split.front if asleep and disk_facts.borrows else 0
    widest = max(STREAM_ROW, stream.row_bytes)
    slots = waiting_rows(limit, widest, disk_facts.linked, width(stream))
    misses = 1 - hits
    usable = phase.slots_in_use(case, split, slots, guesses=cached > 0)
    setting = _setting(case, split, cached, usable, gap_bytes)
    disk = _disk(case, split, setting, misses)
    if misses > 0:
        disk = _per_missed_row(case, disk, cached, misses)
    rhythm = phase.rhythm(
        mapped=master.mapped,
        batch=stream.batch_rows,
        piece=split.piece_rows,
        slots=slots,
        misses=misses,
        reads=disk.reads,
        at_once=phase.answered_at_once(case, split, slots),
        part_rows=phase.part_rows(case, setting),
    )
    steps = rhythm.steps
    work = Work(hits, misses, rhythm.pieces, steps, disk, cached, slots, asleep)
    if master.mapped:
        return replace(work, disk=replace(disk, pages=phase.touched(case, split, work)))
    return replace(work, disk=phase.as_read(disk, steps, master, gap_bytes))


def _front(case: Case, split: Split) -> tuple[float, float, bool]:
    """Keys that the front stage answers for, the share of rows it answers, whether it sleeps."""
    master, skew = case.master, case.workload.skew
    front, scans = case.algorithm.front_facts, case.algorithm.disk_facts.scans
    known = 1 - case.workload.orphans
    if front.pins:
        # A page is in memory twice while it is packed.
        rows = min(master.rows, split.front / (2 * master.row_bytes + PINNED_ROW_BYTES))
        mass = zipf.share(rows, master.rows, skew) if case.workload.ordered else rows / master.rows
        return rows, known * mass, False
    if not front.learns or (master.overlapping and not scans):
        return 0.0, 0.0, False
    shows = master.unique or master.in_key_order
    limit = split.front
    if scans and not shows:
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
    disk, master = case.algorithm.disk_facts, case.master
    together = waiting_rows(split.backlog, STREAM_ROW, disk.linked, width(case.workload))
    rounds = disk.goes_round and not (master.mapped or master.by_key or case.ordered)
    least = together if disk.scans else 2 * together if rounds else 0
    watched = max(1024, room * SEGMENTS // (SEGMENTS + 2), least)
    # A round is so long that the cache answers rows before it is judged.
    limit = ASLEEP * (FILLING if rounds else 1.0)
    if 1 - zipf.expected_distinct(watched, rows, skew) / watched >= limit:
        return False
    return 1 - zipf.expected_distinct(together, rows, skew) / together < AWAKE


def _disk(case: Case, split: Split, setting: Setting, misses: float) -> DiskWork:
    if case.master.by_key and case.algorithm.disk_facts.fetch_word:
        return _fetched(case, split, setting.cached, misses, setting.waiting)
    return _disk_work(case.algorithm.name, setting)


def _setting(case: Case, split: Split, cached: float, slots: float, gap_bytes: float) -> Setting:
    master = case.master
    # Where pages overlap, the one that is looked up answers its own key and no other.
    alone = case.algorithm.disk_facts.blocks and master.overlapping
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


def _fetched(case: Case, split: Split, cached: float, misses: float, slots: float) -> DiskWork:
    """A database brings the rows of many keys at once: each key once, as many as a read may hold.
    A key counts as a page."""
    master, skew = case.master, case.workload.skew
    now = case.algorithm.disk_facts.answers_at_once
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
    if case.algorithm.front_facts.pins and not case.workload.ordered:
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


_disk_work = lru_cache(maxsize=4096)(disk_work)
