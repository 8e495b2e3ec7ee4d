"""What a task counts, and how the driver gets it: with Spark's accumulators.

A task that ends sends one report; a task that fails or is given up half way sends none. Imports
nothing of pyspark but in a task, where it is there anyway.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from ...join import SemiStreamJoin, Stats
from .versions import BATCH, QUERY, task_context

Verb = Callable[..., Iterator[pa.RecordBatch]]  # push or drain
Report = dict[str, Any]  # plain data only: the driver unpickles it
Slot = tuple[str, int]  # what time is spent on, and for which join of the chain

# Spark's local properties. An action is an execution; all that a micro-batch does, once, has one
# root, and its replay another.
APP, EXECUTION, ROOT = "spark.app.id", "spark.sql.execution.id", "spark.sql.execution.root.id"

ROWS = ("rows_in", "rows_matched", "rows_unmatched", "rows_out", "front_hits")
ADDED = (*ROWS, "pages_read", "bytes_read")
PHASES = ("open", "input", "front", "disk", "output")

# A warm join's counters run on over tasks: those that each had when its last task was over.
_BEFORE: WeakKeyDictionary[SemiStreamJoin, Stats] = WeakKeyDictionary()


@dataclass(frozen=True)
class Counting:
    """What a task must know to report: travels with it."""

    call: str  # of enrich
    masters: tuple[str, ...]  # their names, in the order of the joins
    sink: Any  # the accumulator


class TaskTally:
    """Counters and times of one task. The clock is read per batch, never per row."""

    def __init__(
        self, counting: Counting | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._counting, self._clock = counting, clock
        self._joins: list[SemiStreamJoin] = []
        self._spent: defaultdict[Slot, float] = defaultdict(float)
        self._now: Slot = ("rest", 0)
        self._since = clock()
        self._began = time.time()

    # --- time: at any moment it runs for one thing only, so that nothing is counted twice ------

    @contextmanager
    def _at(self, what: str, position: int = 0) -> Iterator[None]:
        before = self._switch((what, position))
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, to: Slot) -> Slot:
        now = self._clock()
        self._spent[self._now] += now - self._since
        before, self._now, self._since = self._now, to, now
        return before

    # --- what a task does ----------------------------------------------------------------------

    def input(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's rows: waiting for them is time of its own."""
        while True:
            with self._at("input"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def open(self, take: Callable[[], list[SemiStreamJoin]]) -> list[SemiStreamJoin]:
        """The joins of the task's chain, which `take` opens or warms."""
        with self._at("open"):
            self._joins = take()
        return self._joins

    def work(self, position: int, verb: Verb, *args: Any) -> Iterator[pa.RecordBatch]:
        """What `verb`, a method of the join at this position, gives."""
        with self._at("join", position):
            outs = verb(*args)
        while True:
            with self._at("join", position):
                out = next(outs, None)
            if out is None:
                return
            yield out

    def around(self, outs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The task's whole output; then the report."""
        try:
            for out in outs:
                with self._at("output"):
                    yield out
            self._switch(("rest", 0))
            if self._counting is not None:
                self._counting.sink.add([self._report(self._counting)])
        finally:
            if hasattr(outs, "close"):
                outs.close()
            for join in self._joins:
                _BEFORE[join] = join.stats

    # --- the report ----------------------------------------------------------------------------

    def _report(self, counting: Counting) -> Report:
        joins = [self._entry(i, name) for i, name in enumerate(counting.masters)]
        seconds = self._spent
        joins[0] |= {"open": seconds["open", 0], "input": seconds["input", 0]}
        joins[-1]["output"] = seconds["output", 0]
        joins[-1]["front"] += seconds["rest", 0]
        return {"call": counting.call, **_where(), "joins": joins}

    def _entry(self, position: int, name: str) -> dict[str, Any]:
        """The counters of one join, for this task alone."""
        entry: dict[str, Any] = {"master": name, **dict.fromkeys(ADDED, 0)}
        entry |= dict.fromkeys(PHASES, 0.0)
        if not self._joins:  # no row came
            return entry
        join = self._joins[position]
        now, before, info = join.stats, _BEFORE.get(join), join.master.describe()
        disk = now.disk_seconds
        if before is not None:
            disk -= before.disk_seconds
        for field in ADDED:
            entry[field] = getattr(now, field) - getattr(before, field, 0)
        return entry | {
            "algorithm": now.algorithm,
            "bytes_held": now.bytes_held,
            "peak_bytes": now.peak_bytes,
            "budget_bytes": now.budget_bytes,
            "version": info.version,
            "version_age": None if info.created is None else max(0.0, self._began - info.created),
            "disk": disk,
            "front": max(0.0, self._spent["join", position] - disk),
        }


def _where() -> Report:
    """Which task this is."""
    task = task_context()
    assert task is not None
    batch, root, execution = map(task.getLocalProperty, (BATCH, ROOT, EXECUTION))
    return {
        "app": task.getLocalProperty(APP),
        "query": task.getLocalProperty(QUERY),
        "batch": None if batch is None else int(batch),
        "root": int(root or 0),
        "execution": f"stage {task.stageId()}" if execution is None else execution,
        "partition": task.partitionId(),
        "attempt": task.taskAttemptId(),
    }
