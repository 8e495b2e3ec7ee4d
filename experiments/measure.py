"""One join under one setting: warmed up, then measured, every output column built.

    modelled disk   every page is really read, and counted as that disk's time (`ModelledMaster`).
                    To it comes the processor's time, either this one's, as measured, or that of
                    the papers' days, as charged by operation. One run gives both. Which rows are
                    pushed depends on the seed alone, so two runs count the same reads.
    this machine    the wall clock, spent inside the join; the file is in the page cache

A measurement is cut into segments that end with a step of the disk phase. The rate is that of all
of them together; the interval is the 95 % interval of the mean of the segments' rates (Student's
t). docs/measurement.md says how this compares with the papers' methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import semistream as ss
from benchmarks.prediction_setup import rows_until_steady, through_a_map
from experiments.base import Row, Run
from experiments.streams import Stream, known
from semistream.device import DEVICES, PAPER_CPU, Device
from semistream.errors import BudgetError
from semistream.machine import DEFAULT_MACHINE, Machine, this_machine
from semistream.master import Master
from semistream.master.facts import facts
from semistream.master.modelled import DeviceUse, ModelledMaster
from semistream.predict import Prediction, predict
from semistream.spec import ALGORITHMS
from semistream.stats import Stats, cpu_seconds
from semistream.testing import ManualClock
from semistream.tuner import tune
from semistream.work import Case, with_params

HDD = DEVICES["hdd-7200"]
HERE = "this machine"
PAPER, MEASURED = "paper-era CPU", "this CPU"
LEARNING = 3  # times as long a warm-up for joins that learn
TOUCHED = 256  # pages that are read together before the clock runs
BATCH, LOOKUP_BATCH, LEAST_BATCH, REAL_BATCH = 2_000, 500, 100, 20_000
TIMED_WINDOWS = {"sweep": 8, "scan": 1.5, "seek": 3, "plan": 4, "lookup": 0, "none": 0}
TUNED = ss.Params(sketch=False)  # all knobs open
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 1 .. 10 degrees


@dataclass(frozen=True)
class Cell:
    """What is measured. Knobs that `params` leaves open are tuned for the device by the model."""

    store: Path
    stream: Stream
    algorithm: str
    memory: int  # bytes; the algorithm `memory` takes what it needs
    device: Device | None = HDD  # None: this machine's own
    params: ss.Params = TUNED
    how: str = "inner"
    columns: tuple[str, ...] | None = None  # of the master, in the output; None: all
    batch_rows: int | None = None
    warm_rows: int | None = None  # None: until the model says that the state is steady
    timed_rows: int | None = None  # this machine: at least
    windows: float | None = None  # that are timed, of waiting rows; None: by the disk phase
    most_rows: int = 2_000_000  # of the warm-up, and of what is timed
    seconds: float = 0.8  # this machine: of the warm-up, and of what is timed, at most about
    segments: int = 8
    misses: int = 4_000  # that are counted at least
    io: str = "map"  # this machine: map | pread
    seed: int = 1


@dataclass(frozen=True)
class Point:
    """All counters at one time."""

    stats: Stats
    use: DeviceUse
    busy: float  # seconds of this machine's processor (modelled disk) or clock, inside the join


def measure(cell: Cell, begin: Callable[[Cell], Course] | None = None) -> list[Row]:
    """A row for each processor: two on a modelled disk, one on this machine. Where the memory is
    too small for the algorithm, one row that says `refused`. `begin`: another kind of course."""
    try:
        course = (begin or Course)(cell)
    except BudgetError as error:
        return [{"algorithm": cell.algorithm, "device": cell.device.name if cell.device else HERE,
                 "memory": cell.memory, "refused": str(error)}]  # fmt: skip
    try:
        course.warm_up()
        points = course.time()
        return [_row(course, points, cpu) for cpu in course.processors]
    finally:
        course.close()


def cell(run: Run, store: Path, stream: Stream, algorithm: str, memory: int, **more: Any) -> Cell:
    """A cell of this run: its seed, and at smoke scale just enough rows to see that it works."""
    if run.scale == "smoke":
        more = {"most_rows": 15_000, "seconds": 0.02, "segments": 2, "misses": 200, **more}
    return Cell(store, stream, algorithm, memory, seed=run.seed, **more)


class Course:
    """A join on its way through an endless stream."""

    def __init__(self, cell: Cell) -> None:
        self.clock, self.busy, self.warm = ManualClock(), 0.0, 0
        self.cell, self.master = cell, opened(cell, self.clock)
        self.found = planned(cell, self.master)
        self.join = ss.SemiStreamJoin(
            self.master,
            cell.stream.key,
            cell.how,
            columns=cell.columns,
            algorithm=cell.algorithm,
            memory=self.found.case.memory,
            params=self.found.case.params,
            stream_schema=cell.stream.schema,
            clock=self.clock if cell.device is not None else time.monotonic,
        )
        self.first = self.join.stats
        info = self.master.describe()
        self.page_rows = info.rows / max(1, info.pages)
        self._batches = cell.stream.batches(cell.seed, self.found.case.workload.batch_rows)

    @property
    def processors(self) -> Sequence[str]:
        return (PAPER, MEASURED) if self.cell.device is not None else (MEASURED,)

    @property
    def cycle(self) -> float:
        """Rows that come while a scan goes once round: before, none of them leaves. This machine
        is measured by the clock, which may be over sooner."""
        found = self.found
        scans = self.cell.device is None and found.case.algorithm.disk == "scan"
        return 1.1 * found.work.waiting / max(1e-3, found.work.misses) if scans else 0.0

    def go(self) -> None:
        """Push one more batch, and read all that comes of it."""
        batch = next(self._batches)
        now = time.process_time if self.cell.device is not None else time.perf_counter
        begin = now()
        for _ in self.join.push(batch):
            pass
        self.busy += now() - begin

    @property
    def _patience(self) -> float:
        """This machine: seconds of the warm-up at most. A cache has to learn."""
        learns = self.found.case.algorithm.front == "groups"
        return self.cell.seconds * (LEARNING if learns else 1)

    @property
    def _slow_to_learn(self) -> bool:
        """A front stage before look-ups of row after row on a modelled disk."""
        algorithm = self.found.case.algorithm
        learns = algorithm.disk == "lookup" and algorithm.front == "groups"
        return learns and self.cell.device is not None

    def warm_up(self) -> None:
        self.go()  # compiles what is not compiled yet, and loads what must be in memory
        cell, begin = self.cell, self.busy
        rows: float = cell.warm_rows or min(cell.most_rows, rows_until_steady(self.found))
        limit = math.inf if cell.device is not None or cell.warm_rows else self._patience
        rows = max(rows, self.cycle)
        with through_a_map(self.join, cell.store) if self._slow_to_learn else nullcontext():
            while (came := self.join.stats.rows_in) < rows:
                if self.busy - begin >= limit and came >= self.cycle:
                    break
                self.go()
        self._to_the_end_of_a_step(0, 0.0)
        self.warm = self.join.stats.rows_in

    def time(self) -> list[Point]:
        """What there was after each segment, and before the first."""
        cell, points = self.cell, [self.point()]
        rows = (cell.timed_rows or self._timed_rows()) / cell.segments
        for _ in range(cell.segments):
            if cell.device is None:
                least = max(self.cycle, cell.timed_rows or 0)
                self._to_the_end_of_a_step(least / cell.segments, cell.seconds / cell.segments)
            else:
                self._to_the_end_of_a_step(rows, 0.0)
            points.append(self.point())
        return points

    def _timed_rows(self) -> float:
        work, disk = self.found.work, self.found.case.algorithm.disk
        misses = max(1e-3, work.misses)
        windows = (self.cell.windows or TIMED_WINDOWS[disk]) * work.waiting / misses
        return min(self.cell.most_rows, max(windows, self.cell.misses / misses))

    def _to_the_end_of_a_step(self, rows: float, seconds: float) -> None:
        """Push until so many rows and seconds have passed, and the last batch made a step."""
        begin, first = self.busy, self.join.stats
        steps = self.join._engine is not None and self.join._engine.phase is not None
        while True:
            before = self.join.stats.steps
            self.go()
            now = self.join.stats
            came = now.rows_in - first.rows_in  # a front stage with all keys makes no step ever
            made = not steps or now.steps > before or came >= max(4 * rows, self.cell.most_rows)
            if made and came >= rows and self.busy - begin >= seconds:
                return

    def point(self) -> Point:
        use = self.master.use if isinstance(self.master, ModelledMaster) else DeviceUse()
        return Point(self.join.stats, use, self.busy)

    def close(self) -> None:
        self.join.close()
        self.master.close()


def opened(cell: Cell, clock: ManualClock) -> Master:
    """The master as the cell sees it. On this machine all its pages are touched first, so that none
    is read from disk, or checked for the first time, while the clock runs."""
    if cell.device is not None:
        return ModelledMaster(ss.Store.open(cell.store, io="map"), cell.device, clock)
    store = ss.Store.open(cell.store, io=cell.io)
    info = store.describe()
    if store.mapped:
        store.touch(np.ones(info.pages, np.bool_))
    for first in () if store.mapped else range(0, info.pages, TOUCHED):
        store.read(np.arange(first, min(info.pages, first + TOUCHED)), info.key)
    return store


def machine_of(cell: Cell, cpu: str = PAPER) -> Machine:
    """What the model should know for this cell. On a modelled disk the costs of operations do not
    depend on whether this machine was calibrated, nor do the knobs and the reads."""
    if cell.device is None:
        return this_machine()
    if cpu == PAPER:
        return Machine(device=cell.device, cpu=PAPER_CPU)
    return replace(DEFAULT_MACHINE, device=cell.device)


def planned(cell: Cell, master: Master) -> Prediction:
    """The knobs that the model proposes, and what it predicts of them."""
    algorithm, known_master = ALGORITHMS[cell.algorithm], facts(master)
    usual = REAL_BATCH if cell.device is None else BATCH
    slow = cell.device is not None and algorithm.disk == "lookup"  # a seek for each row
    rows = cell.batch_rows or (LOOKUP_BATCH if slow else usual)
    stream = known(cell.stream, cell.seed, rows, known_master.rows)
    shown = None if cell.columns is None else len(cell.columns)
    memory = cell.memory
    if algorithm.name == "memory":
        memory = 8 * known_master.bytes + (64 << 20)
    case = Case(algorithm, known_master, stream, memory, cell.params, shown)
    found = tuned(case, cell)
    if cell.device is None or cell.batch_rows is not None or algorithm.disk in ("lookup", "none"):
        return found
    # Few rows wait where memory is scarce: a batch must not be a whole segment.
    fewer = int(min(rows, max(LEAST_BATCH, found.work.waiting / cell.segments)))
    return tuned(replace(case, workload=replace(stream, batch_rows=fewer)), cell)


def tuned(case: Case, cell: Cell) -> Prediction:
    """On a modelled disk the size of reads is tuned for this processor, as the papers' costs have
    none per read and the smallest would always be best, and the rest for the papers' processor, by
    which claims are judged."""
    found = tune(case, machine_of(cell, MEASURED))
    if cell.device is None:
        return found
    rest = with_params(case, read_bytes=found.case.params.read_bytes)
    return tune(rest, machine_of(cell, PAPER))


# --- what came of it -----------------------------------------------------------------------------


def answered(stats: Stats) -> int:
    return stats.rows_matched + stats.rows_unmatched


def _row(course: Course, points: Sequence[Point], cpu: str) -> Row:
    cell, first, last = course.cell, points[0], points[-1]
    pairs = list(pairwise(points))
    times = [_seconds(course, a, b, cpu) for a, b in pairs]
    done = [answered(b.stats) - answered(a.stats) for a, b in pairs]
    low, high = interval([n / t for n, t in zip(done, times, strict=True)])
    left, use = max(1, sum(done)), last.use - first.use
    came, rate = last.stats.rows_in - first.stats.rows_in, sum(done) / sum(times)
    found, params = course.found, course.found.case.params
    return {
        "algorithm": cell.algorithm,
        "device": cell.device.name if cell.device is not None else f"{HERE}, {cell.io}",
        "cpu": cpu,
        "memory": found.case.memory,
        "rate": rate,
        "rate_low": min(low, rate),
        "rate_high": max(high, rate),
        "segments": len(pairs),
        "predicted": predict(found.case, machine_of(cell, cpu)).rate,
        "hits": (last.stats.front_hits - first.stats.front_hits) / max(1, came),
        "pages": (last.stats.pages_read - first.stats.pages_read) / left,
        "steps": (last.stats.steps - first.stats.steps) / left,
        "reads": use.requests / left if cell.device else None,
        "seeks": (use.requests - use.sequential) / left if cell.device else None,
        "bytes": use.bytes / left if cell.device else None,
        "io_seconds": use.seconds / left if cell.device else None,
        "matches": (last.stats.rows_out - first.stats.rows_out) / left,
        "slots": last.stats.slots,
        "front_share": params.front_share,
        "read_bytes": found.split.read,
        "warm_rows": course.warm,
        "timed_rows": came,
        "timed_reads": use.requests if cell.device else None,
    }


def _seconds(course: Course, before: Point, after: Point, cpu: str) -> float:
    spent = after.busy - before.busy
    if cpu == PAPER:
        spent = cpu_seconds(before.stats, after.stats, course.page_rows, PAPER_CPU)
    return max(1e-9, (after.use - before.use).seconds + spent)


def interval(rates: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of some measurements, by Student's t."""
    n = len(rates)
    if n < 2:
        return (rates[0], rates[0])
    t = T_95[n - 2] if n - 2 < len(T_95) else 1.96 + 2.5 / (n - 1)
    half = t * float(np.std(rates, ddof=1)) / math.sqrt(n)
    return (float(np.mean(rates)) - half, float(np.mean(rates)) + half)


def told(row: Row) -> str:
    """A row in a few words, for those who watch."""
    if "refused" in row:
        return f"{row['algorithm']} refused"
    rate: Any = row["rate"]
    return f"{row['algorithm']} on {row['device']}, {row['cpu']}: {rate:,.0f} rows/s"
