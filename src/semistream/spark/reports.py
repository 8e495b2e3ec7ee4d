"""What tasks have reported, kept on the driver and added up when somebody asks.

Spark may run a task more than once (it failed, it was slow, its output was lost), an action may run
a frame again, and a micro-batch may be replayed. Each must count once. So reports are kept apart:

- A **task** that is repeated replaces what was reported for its partition. Only parts with the
  same attempt are added: `coalesce` lets one task do the work of several.
- An **action** that runs the same frame again has an execution of its own. The one that covers most
  partitions counts, of equals the last: `limit` and a cache run only some.
- A **replayed micro-batch** has another root, and replaces everything.

Memory is bounded: 100 micro-batches per query, 100 queries, 100 calls that no query makes; and of
all but the newest of them sums only.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .task import ADDED, PHASES, Report

LOG = logging.getLogger("semistream.spark")
KEPT = 100
OPEN_BATCHES = 2  # micro-batches of a query whose partitions are still apart
OPEN_CALLS = 32  # and calls outside of queries, which may run at the same time
EXECUTIONS = 8  # of one frame that are kept apart

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Entry = dict[str, Any]
_MOST = ("peak_bytes", "budget_bytes", "version")
_NAMES = ("master", "algorithm", "bytes_held", "version_age", *_MOST, *ADDED, *PHASES)


def add_up(entries: list[Entry]) -> Entry:
    """One entry for many tasks. What no task knows (none had a row) is missing."""
    total: Entry = {"master": entries[0]["master"]}
    for name in (*ADDED, *PHASES, "tasks"):
        total[name] = sum(entry[name] for entry in entries)
    for name, rule in (*((n, max) for n in _MOST), ("version_age", min), ("algorithm", max)):
        known = [entry[name] for entry in entries if entry[name] is not None]
        total[name] = rule(known) if known else None
    total["bytes_held"] = sum(entry["bytes_held"] or 0 for entry in entries)
    return total


@dataclass
class _Execution:
    """One action: the tasks of one call's frame, each with an entry per join."""

    parts: dict[int, tuple[int, list[Entry]]] = field(default_factory=dict)
    total: list[Entry] | None = None  # instead of the parts, once it is closed

    def take(self, partition: int, attempt: int, joins: list[Entry]) -> None:
        # Names of ours: each report came with a copy of its own.
        joins = [{name: entry.get(name) for name in _NAMES} | {"tasks": 1} for entry in joins]
        before = self.parts.get(partition)
        if before is not None and before[0] == attempt:
            joins = [add_up(list(both)) for both in zip(before[1], joins, strict=True)]
        self.parts[partition] = attempt, joins

    def sums(self) -> list[Entry]:
        if self.total is not None:
            return self.total
        every = (joins for _, joins in self.parts.values())
        return [add_up(list(each)) for each in zip(*every, strict=True)]

    @property
    def covered(self) -> int:
        every = [self.total] if self.total is not None else [j for _, j in self.parts.values()]
        return sum(joins[0]["tasks"] for joins in every)

    def close(self) -> None:
        self.total, self.parts = self.sums(), {}


@dataclass
class _Unit:
    """A micro-batch, or a call of enrich outside of a query."""

    run: tuple[str | None, int] = (None, 0)  # application and root execution
    calls: dict[str, dict[str, _Execution]] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        run = (report["app"], report["root"])
        if report["query"] is not None and run != self.run:
            if run[0] == self.run[0] and run[1] < self.run[1]:
                return  # a task that outlived the run it belonged to
            self.calls.clear()
        self.run = run
        executions = self.calls.setdefault(report["call"], {})
        if report["execution"] not in executions:
            executions[report["execution"]] = _Execution()
            if len(executions) > EXECUTIONS:
                older = list(executions)[:-1]
                del executions[min(older, key=lambda name: executions[name].covered)]
        executions[report["execution"]].take(
            report["partition"], report["attempt"], report["joins"]
        )

    def close(self) -> None:
        for call, executions in self.calls.items():
            best = _best(executions)
            best.close()
            self.calls[call] = {"closed": best}  # a straggler covers less

    def sums(self) -> list[tuple[str, int, Entry]]:
        """(call, position of the join, its counters)"""
        return [
            (call, position, entry)
            for call, executions in sorted(self.calls.items())  # as they were made
            for position, entry in enumerate(_best(executions).sums())
        ]


def _best(executions: dict[str, _Execution]) -> _Execution:
    newest_first = reversed(executions.values())
    return max(newest_first, key=lambda each: each.covered)  # of equals the first


Found = list[tuple[int | None, str, int, Entry]]  # micro-batch, call, position, counters


class Book:
    """All reports of this driver. Tasks' reports come in another thread than questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, OrderedDict[int, _Unit]] = OrderedDict()
        self._calls: OrderedDict[str, _Unit] = OrderedDict()

    def take(self, reports: list[Report]) -> None:
        with self._lock:
            for report in reports:
                self._of(report).take(report)

    def _of(self, report: Report) -> _Unit:
        query, batch, call = report["query"], report["batch"], report["call"]
        if query is None or batch is None:
            return _unit(self._calls, call, OPEN_CALLS)
        batches: OrderedDict[int, _Unit] = _newest(self._queries, query, OrderedDict)
        return _unit(batches, batch, OPEN_BATCHES)

    def of_query(self, query: str, batch: int | None = None) -> Found:
        """Of one micro-batch, or of all that are kept, oldest first."""
        with self._lock:
            units = self._queries.get(query, OrderedDict())
            some = sorted(units) if batch is None else [batch] if batch in units else []
            return [(number, *found) for number in some for found in units[number].sums()]

    def of_call(self, call: str) -> Found:
        with self._lock:
            unit = self._calls.get(call)
            return [] if unit is None else [(None, *found) for found in unit.sums()]


def _unit(units: OrderedDict[K, _Unit], key: K, still_open: int) -> _Unit:
    """The unit of this key; where that is another than before, an older one closes."""
    before = next(reversed(units), None)
    unit = _newest(units, key, _Unit)
    if key != before and len(units) > still_open:
        units[list(units)[-1 - still_open]].close()
    return unit


def _newest(kept: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value, made if it is new. It becomes the newest; the oldest may go for it."""
    if key in kept:
        kept.move_to_end(key)
    else:
        kept[key] = make()
        if len(kept) > KEPT:
            kept.popitem(last=False)
    return kept[key]


class Reports:
    """How Spark's accumulator adds: a list in a task, the book on the driver. It is an
    AccumulatorParam, without importing that in workers."""

    def zero(self, value: object) -> list[Report]:
        return []

    def addInPlace(self, have: Any, more: list[Report]) -> Any:  # Spark's name
        if not isinstance(have, Book):
            have.extend(more)
            return have
        try:
            have.take(more)
        except Exception:  # an error would end the thread that serves all accumulators of Spark
            LOG.exception("a report of a task was left out; do executors have another semistream?")
        return have
