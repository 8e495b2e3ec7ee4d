"""The joins that live in a worker process, and the memory they share.

Spark gives the tasks of all queries, and of all `enrich` calls in a query, to any idle worker. So a
worker may meet several joins in turn. Each stays, found by its content, and the broker divides the
memory of a task among them: as much as the largest task asked for, in proportion to what each
wants. A join that has to give memory back, or was not used for long, ends; what it has learnt is
kept, and brought back when it is wanted again. Also when Spark has ended the worker meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import BudgetError, SemiStreamError
from ..join import SemiStreamJoin
from .hot import load_hot, save_hot

IDLE = 120.0  # seconds after which a join that nobody asks for makes room
GROW = 1.5  # a join with less than its share by this factor is made anew with more
SAVE = 10.0  # seconds between two savings of what a join has learnt


@dataclass(frozen=True)
class Wanted:
    """A join that a task needs."""

    identity: str
    memory: int
    make: Callable[[int], SemiStreamJoin]  # with so many bytes
    move: Callable[[SemiStreamJoin], None]  # to the version of the task


@dataclass
class Living:
    join: SemiStreamJoin
    asked: int  # bytes
    task: int  # bytes asked for the whole task it was last used in
    used: float = 0.0  # when
    saved: float = 0.0


class Broker:
    """All joins of this process. A worker runs one task at a time, so none is used twice at once;
    within a task every join is given out once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.living: dict[str, Living] = {}

    def take(self, wanted: Sequence[Wanted]) -> list[SemiStreamJoin]:
        """The joins of a task, warm where they are here, at the version that they should have."""
        names = _distinct([each.identity for each in wanted])
        task, now = sum(each.memory for each in wanted), self._clock()
        for name in [n for n, each in self.living.items() if now - each.used > IDLE]:
            self._end(name, names)
        try:
            return self._take(wanted, names, task, now)
        except BudgetError:
            if not set(self.living) - set(names):
                raise
        for name in list(self.living):  # there is not enough to share
            self._end(name)
        return self._take(wanted, names, task, now)

    def _take(
        self, wanted: Sequence[Wanted], names: list[str], task: int, now: float
    ) -> list[SemiStreamJoin]:
        grants = self._grants(dict(zip(names, (w.memory for w in wanted), strict=True)), task)
        for name in list(self.living):
            budget = self.living[name].join.budget
            if budget > grants[name] or (name in names and budget * GROW < grants[name]):
                self._end(name)
        joins = []
        for name, each in zip(names, wanted, strict=True):
            joins.append(self._ready(name, each, grants[name]))
            living = self.living[name]
            living.asked, living.task, living.used = each.memory, task, now
        return joins

    def _grants(self, asked: dict[str, int], task: int) -> dict[str, int]:
        others = {n: each for n, each in self.living.items() if n not in asked}
        limit = max([task, *(each.task for each in others.values())])
        every = asked | {n: each.asked for n, each in others.items()}
        part = min(1.0, limit / sum(every.values()))
        return {name: int(part * memory) for name, memory in every.items()}

    def _ready(self, name: str, wanted: Wanted, memory: int) -> SemiStreamJoin:
        living = self.living.get(name)
        if living is not None:
            try:
                wanted.move(living.join)
            except BaseException:
                self._close(name)
                raise
            return living.join
        join = wanted.make(memory)
        self.living[name] = Living(join, wanted.memory, wanted.memory)
        try:
            join.learn(load_hot(name))
        except SemiStreamError:
            join.reset()  # it is a help, not a need: the join learns by itself
        return join

    def give_back(self, joins: Sequence[SemiStreamJoin]) -> None:
        """A task is over; rows that it left behind are not for the next one."""
        for join in joins:
            join.reset()
            living, now = self.living[self._name(join)], self._clock()
            living.used = now
            if now - living.saved >= SAVE:
                living.saved = now
                save_hot(self._name(join), join.learnt())

    def drop(self, joins: Sequence[SemiStreamJoin]) -> None:
        """These failed."""
        for join in joins:
            self._close(self._name(join))

    def _name(self, join: SemiStreamJoin) -> str:
        return next(name for name, each in self.living.items() if each.join is join)

    def _end(self, name: str, but: Sequence[str] = ()) -> None:
        if name not in but:
            save_hot(name, self.living[name].join.learnt())
            self._close(name)

    def _close(self, name: str) -> None:
        join = self.living.pop(name).join
        join.close()
        join.master.close()


def _distinct(names: list[str]) -> list[str]:
    """One task may ask the same question twice (semi joins add no columns)."""
    return [f"{name} {names[:i].count(name)}" for i, name in enumerate(names)]


BROKER = Broker()
