"""One cell of "prediction against measurement": a join with the knobs that the tuner proposes, what
was predicted of it, and what it then did.

On the real device the seconds are those of the wall clock, spent inside the join; the cell warms up
until the state is steady or its time is over, then times segments. On a modelled device pages are
read for real, the device's seconds and those of the papers' processor are added up, and the numbers
of rows follow from the prediction alone: two runs agree to the last digit.

A measurement begins and ends right after a step of the disk phase, so that it has whole steps; that
of a scan on a modelled device has whole cycles.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.report import spread
from benchmarks.lib.running import answered, push
from benchmarks.lib.warm_up import rows_until_steady, through_a_map
from benchmarks.prediction.setup import Cell, open_on, proposed
from experiments.lib.modelled import DeviceUse, ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, cpu_seconds
from semistream.join.stats import Stats
from semistream.master import Master
from semistream.master.facts import facts
from semistream.planning.predict import Prediction
from semistream.testing import ManualClock

TIMED_WINDOWS = {"sweep": 8, "scan": 2, "seek": 3, "pages": 4, "lookup": 0, "none": 0}
MISSES = 4_000  # that are counted at least, on a modelled device
MADE = 200_000  # stream rows that are made at a time
MOST_WARM, MOST_COUNTED = 8_000_000, 3_000_000  # rows, on a modelled device


@dataclass(frozen=True)
class Point:
    """What a join had done at some time, and by when."""

    stats: Stats
    seconds: float
    use: DeviceUse


# --- the run ------------------------------------------------------------------------------------


class Course:
    """A join on its way through a stream that has no end."""

    def __init__(self, cell: Cell, found: Prediction) -> None:
        self.cell, self.found = cell, found
        self._clock = ManualClock()
        self.busy = 0.0  # seconds inside the join
        self.warm = 0  # rows that came before anything was counted
        self.master = open_on(cell.device, cell.store, self._clock)
        self.join = ss.SemiStreamJoin(
            self.master,
            workload.KEY,
            algorithm=cell.algorithm,
            memory=found.case.memory,
            params=found.case.params,
        )
        self._first = self.join.stats
        info = self.master.describe()
        self._batches = _endless(cell, info.rows, found.case.workload.batch_rows)
        self._page_rows = info.rows / max(1, info.pages)

    def go(self) -> None:
        """Push one more batch."""
        batch = next(self._batches)
        begin = time.perf_counter()
        push(self.join, [batch])
        self.busy += time.perf_counter() - begin

    def point(self) -> Point:
        now = self.join.stats
        if not isinstance(self.master, ModelledMaster):
            return Point(now, self.busy, DeviceUse())
        spent = cpu_seconds(self._first, now, self._page_rows, PAPER_CPU)
        return Point(now, self._clock() + spent, self.master.use)

    @property
    def rows(self) -> int:
        return self.join.stats.rows_in

    @property
    def phase(self) -> Any:
        return self.join._engine.phase  # there is no public way to look at it

    @property
    def asleep(self) -> bool:
        return bool(self.join._engine.front.asleep)


def run(cell: Cell) -> dict[str, Any]:
    """Predict, do, compare; {"refused": why} where the budget is too small."""
    try:
        found = proposed(cell, facts(open_on(cell.device, cell.store)))
    except ss.BudgetError as error:
        return {"refused": str(error)}
    course = Course(cell, found)
    enough = rows_until_steady(found)
    if cell.modelled:
        _warm(course, min(enough, MOST_WARM), float("inf"))
        points = _count(course)
    else:
        _check_pages(course.master)
        _warm(course, enough, cell.warm_seconds)
        points = _time(course)
    return {**_predicted(found), **_measured(course, points), "steady": course.warm >= enough}


def _warm(course: Course, rows: float, seconds: float) -> None:
    """Push rows that nobody counts. A join that reads one page after another has its front stage
    warmed through a map of the same store: the same rows and keys, in less time."""
    course.go()  # compiles what is not compiled yet, and builds the parts
    algorithm = course.found.case.algorithm
    quick = algorithm.disk == "lookup" and algorithm.front == "groups" and not course.master.mapped
    begin = course.busy
    with through_a_map(course.join, course.cell.store) if quick else nullcontext():
        while course.rows < rows and course.busy - begin < seconds:
            course.go()
    course.warm = course.rows
    _to_the_end_of_a_step(course)


def _to_the_end_of_a_step(course: Course, rows: float = 0, seconds: float = 0) -> None:
    """Push until so many rows and seconds have passed, the last batch having made a step."""
    begin, first = course.busy, course.join.stats
    while True:
        before = course.join.stats.steps
        course.go()
        now = course.join.stats
        made = now.steps > before or not course.phase.keeps
        if made and now.rows_in - first.rows_in >= rows and course.busy - begin >= seconds:
            return


def _count(course: Course) -> list[Point]:
    """On a modelled device: one long segment, by numbers of rows. Rows leave a scan in waves that
    come back with every cycle, so that a scan is counted for whole ones."""
    found = course.found
    misses = max(1e-6, found.work.misses)
    windows = TIMED_WINDOWS[found.case.algorithm.disk] * found.work.waiting / misses
    rows = min(MOST_COUNTED, max(windows, MISSES / misses))
    points = [course.point()]
    if found.case.algorithm.disk == "scan":
        _whole_cycles(course, rows)
    else:
        _to_the_end_of_a_step(course, rows)
    return [*points, course.point()]


def _whole_cycles(course: Course, rows: float) -> None:
    """As many as it takes to push so many rows."""
    pages, first = course.master.describe().pages, course.join.stats
    end = first.pages_read
    while course.rows < first.rows_in + rows:
        end += pages
        while course.join.stats.pages_read < end:
            course.go()


def _time(course: Course) -> list[Point]:
    """On the real device: segments, by the clock."""
    points, cell = [course.point()], course.cell
    for _ in range(cell.segments):
        _to_the_end_of_a_step(course, seconds=cell.timed_seconds / cell.segments)
        points.append(course.point())
    return points


def _check_pages(master: Master) -> None:
    """Bring all pages into the page cache, and have those of a map checked: each is once only."""
    pages = master.describe().pages
    if master.mapped:
        master.touch(np.ones(pages, np.bool_))
        return
    at = 0
    while at < pages:
        at += max(1, len(master.scan(at, 8 << 20, [workload.KEY]).numbers))


def _endless(cell: Cell, keys: int, rows: int) -> Iterator[pa.RecordBatch]:
    """The stream. It must not repeat itself: a large cache would learn which rare keys its few
    million rows happen to have, and answer more of them than it could of a stream that goes on."""
    rng = np.random.default_rng(cell.seed)
    while True:
        some = workload.stream_table(rng, MADE, keys, cell.skew)
        yield from some.combine_chunks().to_batches(max_chunksize=rows)


# --- what came of it ----------------------------------------------------------------------------


def _predicted(found: Prediction) -> dict[str, Any]:
    work, params = found.work, found.case.params
    return {
        "predicted": found.rate,
        "predicted_hits": work.hits,
        "predicted_pages": work.disk.pages,
        "predicted_reads": work.disk.reads,
        "predicted_jumps": work.disk.jumps,
        "predicted_bytes": work.disk.bytes,
        "predicted_slots": work.waiting,
        "predicted_asleep": work.asleep,
        "cached_keys": work.cached,
        "front_share": params.front_share,
        "read_bytes": found.split.read,
        "page_pool": params.page_pool,
        "batch_rows": found.case.workload.batch_rows,
    }


def _measured(course: Course, points: list[Point]) -> dict[str, Any]:
    first, last = points[0], points[-1]
    came = last.stats.rows_in - first.stats.rows_in
    left = answered(last.stats) - answered(first.stats)
    use, modelled = last.use - first.use, course.cell.modelled
    rates = [
        (answered(b.stats) - answered(a.stats)) / (b.seconds - a.seconds)
        for a, b in pairwise(points)
    ]
    rate = spread(rates)
    return {
        "measured": rate.median,
        "low": rate.low,
        "high": rate.high,
        "hits": (last.stats.front_hits - first.stats.front_hits) / came,
        "pages": (last.stats.pages_read - first.stats.pages_read) / left,
        "reads": use.requests / left if modelled else None,
        "jumps": (use.requests - use.sequential) / left if modelled else None,
        "bytes": use.bytes / left if modelled else None,
        "slots": last.stats.slots,
        "asleep": course.asleep,
        "warm_rows": course.warm,
        "timed_rows": came,
        "timed_steps": last.stats.steps - first.stats.steps,
        "matched": last.stats.rows_matched == answered(last.stats),
    }
