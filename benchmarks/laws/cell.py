"""One join under one setting, for the laws of the model: on a modelled disk or on the real one.

On a modelled disk every page is really read, and time is what the device and the processor of the
papers would have taken: the same numbers on every machine. The stream is endless; rows that only
warm the join up come first, then the rows that count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.report import say
from benchmarks.lib.stores import store_of
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, cpu_seconds
from semistream.join.stats import Stats
from semistream.master import Master
from semistream.master.facts import facts
from semistream.planning.device import Device
from semistream.spec import MasterFacts, Workload
from semistream.testing import ManualClock

Row = dict[str, Any]

BATCH = 10_000
STREAM_ROW = 20  # bytes of a sale, nulls apart


@dataclass(frozen=True)
class Cell:
    store: Path
    algorithm: str
    memory: int
    skew: float
    warm_rows: int
    timed_rows: int
    device: Device | None = None  # None: the real one
    io: str = "pread"
    params: ss.Params = field(default_factory=ss.Params)
    columns: tuple[str, ...] | None = None  # of the master in the output; None: all
    ordered: bool = False  # the master lies in the order of popularity
    seed: int = 11


@dataclass(frozen=True)
class Found:
    """What the timed rows took."""

    rate: float  # stream rows per second, the processor's time included
    disk_rate: float  # with the device's time alone; on the real device the same as `rate`
    hits: float  # share of the rows that the front stage answered
    rows_per_read: float
    pages_per_row: float
    slots: int
    waiting: float  # rows that waited when a read began, on average; modelled disk only
    pinned_rows: float  # xhybridjoin's
    asleep: bool  # the front stage was of no use and gave up


class WatchedClock(ManualClock):
    """Also asks, whenever a read is charged, how many rows wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.ask: Callable[[], int] | None = None
        self.reads = self.seen = 0

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.reads += 1
        self.seen += self.ask() if self.ask is not None else 0


@dataclass(frozen=True)
class Moment:
    """All counters at one time."""

    stats: Stats
    disk: float  # seconds of the device so far; on the real device of everything
    reads: int
    seen: int

    @property
    def answered(self) -> int:
        return self.stats.rows_matched + self.stats.rows_unmatched


def run(cell: Cell) -> Found:
    """Warm the join up, then measure."""
    store = ss.Store.open(cell.store, io=cell.io)
    clock = WatchedClock()
    master: Master = store
    if cell.device is not None:
        master = ModelledMaster(store, cell.device, clock)
    rows = store.describe().rows
    join = ss.SemiStreamJoin(
        master,
        workload.KEY,
        columns=cell.columns,
        algorithm=cell.algorithm,
        memory=cell.memory,
        params=cell.params,
        stream_schema=workload.STREAM_SCHEMA,
    )
    engine = join._engine  # counters that no user needs: the law is about them
    assert engine is not None
    clock.ask = lambda: engine.waiting
    batches = _endless(rows, cell)

    def push(count: int) -> Moment:
        pushed = 0
        while pushed < count:
            batch = next(batches)
            pushed += len(batch)
            for _ in join.push(batch):
                pass
        now = clock() if cell.device is not None else time.perf_counter()
        return Moment(join.stats, now, clock.reads, clock.seen)

    before, after = push(max(1, cell.warm_rows)), push(max(1, cell.timed_rows))
    per_page = rows / store.describe().pages
    pinned = getattr(engine.phase, "_pinned_pages", 0) * per_page
    found = _between(before, after, per_page, cell, pinned, engine.front.asleep)
    store.close()
    return found


def _between(
    before: Moment, after: Moment, per_page: float, cell: Cell, pinned: float, asleep: bool
) -> Found:
    done = after.answered - before.answered
    came = after.stats.rows_in - before.stats.rows_in
    disk = max(1e-9, after.disk - before.disk)
    modelled = cell.device is not None
    cpu = cpu_seconds(before.stats, after.stats, per_page, PAPER_CPU) if modelled else 0.0
    reads = after.reads - before.reads
    return Found(
        rate=done / (disk + cpu),
        disk_rate=done / disk,
        hits=(after.stats.front_hits - before.stats.front_hits) / came,
        rows_per_read=done / max(1, reads),
        pages_per_row=(after.stats.pages_read - before.stats.pages_read) / max(1, done),
        slots=after.stats.slots,
        waiting=(after.seen - before.seen) / max(1, reads),
        pinned_rows=pinned,
        asleep=asleep,
    )


def _endless(rows: int, cell: Cell) -> Iterator[pa.RecordBatch]:
    number = 0
    while True:
        yield _batch(rows, cell.skew, cell.ordered, cell.seed, number)
        number += 1


@lru_cache(maxsize=512)
def _batch(rows: int, skew: float, ordered: bool, seed: int, number: int) -> pa.RecordBatch:
    """The same rows for every cell with the same stream."""
    rng = np.random.default_rng([seed, number])
    table = workload.stream_table(rng, BATCH, rows, skew, ordered=ordered)
    return table.combine_chunks().to_batches()[0]


# --- what every law needs -----------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A master of products on disk, and what is known of it where nothing is mapped."""

    path: Path
    facts: MasterFacts


def table_of(folder: Path, rows: int, io: str = "pread") -> Table:
    path = store_of(folder, rows, False)
    store = ss.Store.open(path, io=io)
    known = facts(store)
    store.close()
    return Table(path, known)


def stream_of(skew: float, ordered: bool = False) -> Workload:
    return Workload(skew, row_bytes=STREAM_ROW + 1, batch_rows=BATCH, ordered=ordered)


def curves(rows: list[Row], names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each curve, by its labels."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


class Progress:
    """A line per cell, with the time that is left if the others take as long."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.begun = total, 0, time.monotonic()

    def tell(self, what: str) -> None:
        self.done += 1
        each = (time.monotonic() - self.begun) / self.done
        left = each * (self.total - self.done)
        say(f"  {self.done}/{self.total} {what}; about {left:.0f} s left")
