"""One join under one setting: warmed up, then measured, every output column built.

    modelled disk   every page is really read, and counted as that disk's time (`ModelledMaster`).
                    To it comes the processor's time, either this one's, as measured, or that of
                    the papers' days, as charged by operation. One run gives both. Which rows are
                    pushed depends on the seed alone, so two runs count the same reads.
    this machine    the wall clock, spent inside the join; the file is in the page cache

A measurement is cut into segments that end with a step of the disk phase. The rate is that of all
of them together; the interval is the 95 % interval of the mean of the segments' rates (Student's
t). Rows leave a scan in waves that come back with every cycle, so that on a modelled disk whole
cycles are timed, in quarters, and a quarter is compared with the same ones of the other cycles.
docs/measurement.md says how this compares with the papers' methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

import semistream as ss
from benchmarks.lib.running import answered
from benchmarks.lib.warm_up import rows_until_steady, through_a_map
from experiments.lib.cell import HERE, MEASURED, PAPER, Cell, machine_of, opened, planned
from experiments.lib.experiment import Row
from experiments.lib.modelled import DeviceUse, ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, cpu_seconds
from semistream.errors import BudgetError
from semistream.join.stats import Stats
from semistream.planning.predict import predict
from semistream.testing import ManualClock

LEARNING = 3  # times as long a warm-up for joins that learn, on this machine
LONGER = 2  # times as many rows at most, on a modelled disk
TIMED_WINDOWS = {"sweep": 7, "scan": 2, "seek": 3, "pages": 4, "lookup": 0, "none": 0}
QUARTERS = 4  # segments of a cycle
MOST_ROUNDS = 4  # of a sweep in parts on a modelled disk; each is a segment
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 1 .. 10 degrees


@dataclass(frozen=True)
class Point:
    """All counters at one time."""

    stats: Stats
    use: DeviceUse
    busy: float  # seconds of this machine's processor (modelled disk) or clock, inside the join


def measure(cell: Cell, begin: Callable[[Cell], Course] | None = None) -> list[Row]:
    """A row for each processor: two on a modelled disk, one on this machine. Where the memory is
    too small for the algorithm, one row that says `refused`. `begin`: another kind of course. A
    cell that several experiments of one run have is measured once."""
    return [dict(row) for row in _once(cell, begin)]


@cache
def _once(cell: Cell, begin: Callable[[Cell], Course] | None) -> list[Row]:
    return measure_anew(cell, begin)


def measure_anew(cell: Cell, begin: Callable[[Cell], Course] | None = None) -> list[Row]:
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
        return self.cell.seconds * (LEARNING if self._learns else 1)

    @property
    def _slow_to_learn(self) -> bool:
        """A front stage before look-ups of row after row on a modelled disk."""
        looks_up = self.found.case.algorithm.disk == "lookup"
        return self._learns and looks_up and self.cell.device is not None

    @property
    def _learns(self) -> bool:
        return self.found.case.algorithm.front == "groups"

    @property
    def _rounds(self) -> bool:
        """Whether it sweeps in parts, going round."""
        return self.found.case.algorithm.disk == "sweep" and self.cell.device is not None

    def warm_up(self) -> None:
        self.go()  # compiles what is not compiled yet, and loads what must be in memory
        cell, begin = self.cell, self.busy
        most = cell.most_rows * (LONGER if self._learns else 1)
        rows: float = cell.warm_rows or min(most, rows_until_steady(self.found))
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
        return [self.point(), *(self.point() for _ in self.segments())]

    def segments(self) -> Iterator[None]:
        """Push rows, and come back at the end of each segment."""
        cell = self.cell
        if self.phases > 1:
            yield from self._quarters()
            return
        segments = min(cell.segments, MOST_ROUNDS) if self._rounds else cell.segments
        rows = (cell.timed_rows or self._timed_rows()) / segments
        for _ in range(segments):
            if cell.device is None:
                least = max(self.cycle, cell.timed_rows or 0)
                self._to_the_end_of_a_step(least / segments, cell.seconds / segments)
            else:
                self._to_the_end_of_a_step(rows, 0.0)
            yield

    @property
    def phases(self) -> int:
        """Segments after which the first one's wave is back."""
        scans = self.found.case.algorithm.disk == "scan" and self.cell.device is not None
        return QUARTERS if scans and not self.cell.timed_rows else 1

    def _quarters(self) -> Iterator[None]:
        """Whole cycles, as many as `most_rows` allows, at least one. A front stage that knows all
        keys makes no step ever, so that rows end a quarter as well."""
        work, pages = self.found.work, self.master.describe().pages
        cycle = work.waiting / max(1e-3, work.misses)
        cycles = max(1, min(self.cell.cycles, int(self.cell.most_rows / cycle)))
        enough = max(4 * cycle, self.cell.most_rows / cycles) / QUARTERS
        begin = self.join.stats.pages_read
        for i in range(1, QUARTERS * cycles + 1):
            end, first = begin + i * pages / QUARTERS, self.join.stats.rows_in
            while self.join.stats.pages_read < end and self.join.stats.rows_in < first + enough:
                self.go()
            yield

    def _timed_rows(self) -> float:
        work, disk = self.found.work, self.found.case.algorithm.disk
        misses = max(1e-3, work.misses)
        windows = (self.cell.windows or TIMED_WINDOWS[disk]) * work.waiting / misses
        return min(self.cell.most_rows, max(windows, self.cell.misses / misses))

    @property
    def _round_over(self) -> bool:
        """Whether a sweep in parts has just ended a round: its parts are not all alike. On this
        machine a batch may have several of them, and the clock decides."""
        engine = self.join._engine
        if not self._rounds or engine is None or not engine.phase.keeps:
            return True
        return engine.phase.position == 0

    def _to_the_end_of_a_step(self, rows: float, seconds: float) -> None:
        """Push until so many rows and seconds have passed, and the last batch made a step."""
        begin, first = self.busy, self.join.stats
        steps = self.join._engine is not None and self.join._engine.phase.keeps
        while True:
            before = self.join.stats.steps
            self.go()
            now = self.join.stats
            came = now.rows_in - first.rows_in  # a front stage with all keys makes no step ever
            made = not steps or (now.steps > before and self._round_over)
            made = made or came >= max(4 * rows, self.cell.most_rows)
            if made and came >= rows and self.busy - begin >= seconds:
                return

    def point(self) -> Point:
        use = self.master.use if isinstance(self.master, ModelledMaster) else DeviceUse()
        return Point(self.join.stats, use, self.busy)

    def close(self) -> None:
        self.join.close()
        self.master.close()


# --- what came of it -----------------------------------------------------------------------------


def _row(course: Course, points: Sequence[Point], cpu: str) -> Row:
    cell, first, last = course.cell, points[0], points[-1]
    pairs = list(pairwise(points))
    times = [_seconds(course, a, b, cpu) for a, b in pairs]
    done = [answered(b.stats) - answered(a.stats) for a, b in pairs]
    low, high = interval([n / t for n, t in zip(done, times, strict=True)], course.phases)
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


def interval(rates: Sequence[float], phases: int = 1) -> tuple[float, float]:
    """95 % interval of the mean of some measurements in a row, by Student's t. With `phases` each
    is compared with those of its own phase only, if there are several."""
    n = len(rates)
    if n < 2:
        return (rates[0], rates[0])
    if n % phases or n == phases:
        phases = 1
    table = np.reshape(np.asarray(rates), (-1, phases))
    free = n - phases
    spread = math.sqrt(float(np.sum((table - table.mean(axis=0)) ** 2)) / free)
    t = T_95[free - 1] if free <= len(T_95) else 1.96 + 2.5 / free
    half = t * spread / math.sqrt(n)
    return (float(table.mean()) - half, float(table.mean()) + half)


def told(row: Row) -> str:
    """A row in a few words, for those who watch."""
    if "refused" in row:
        return f"{row['algorithm']} refused"
    rate: Any = row["rate"]
    return f"{row['algorithm']} on {row['device']}, {row['cpu']}: {rate:,.0f} rows/s"
