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

from ...errors import BudgetError, SemiStreamError
from ...join import SemiStreamJoin
from .hot_keys import forget_hot, load_hot, save_hot

IDLE = 120.0  # seconds after which a join that nobody asks for makes room
GROW = 1.5  # a join with less than its share by this factor is made anew with more
SAVE = 10.0  # seconds between two savings of what a join has learnt
KEY_BYTES = 64  # what a popular key takes while it is saved
WORTH = 4  # popular keys that are kept for every row of a task: to learn costs about as much


@dataclass(frozen=True)
class JoinRequest:
    """A join that a task needs."""

    identity: str
    memory: int
    make: Callable[[int], SemiStreamJoin]  # with so many bytes
    move: Callable[[SemiStreamJoin], None]  # to the version of the task


@dataclass
class WarmJoin:
    join: SemiStreamJoin | None  # None: it had to make room, and will be made anew
    asked: int  # bytes
    task: int  # bytes asked for the whole task it was last used in
    used: float  # when
    saved: float = 0.0
    tasks: int = 0  # that the join has served

    def learnt(self) -> bytes:
        """What its successor should begin with, which takes no longer than a few tasks."""
        assert self.join is not None
        stats = self.join.stats
        room = (self.join.budget - stats.bytes_held) // KEY_BYTES
        return self.join.learnt(min(WORTH * (stats.rows_in // max(1, self.tasks)), max(0, room)))


class JoinPool:
    """All joins of this process. A worker runs one task at a time, so none is used twice at once;
    within a task every join is given out once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.living: dict[str, WarmJoin] = {}

    def take(self, wanted: Sequence[JoinRequest]) -> list[SemiStreamJoin]:
        """The joins of a task, warm where they are here, at the version that they should have."""
        names = _distinct([each.identity for each in wanted])
        others = [name for name in self.living if name not in names]
        for name in others:
            if self._clock() - self.living[name].used > IDLE:
                self._forget(name)
        try:
            return self._take(names, wanted)
        except BudgetError:
            if not set(self.living) - set(names):
                raise
        for name in list(self.living):  # there is not enough to share
            self._forget(name)
        return self._take(names, wanted)

    def _take(self, names: list[str], wanted: Sequence[JoinRequest]) -> list[SemiStreamJoin]:
        task, now = sum(each.memory for each in wanted), self._clock()
        for name, each in zip(names, wanted, strict=True):
            living = self.living.setdefault(name, WarmJoin(None, each.memory, task, now))
            living.asked, living.task, living.used = each.memory, task, now
        grants = self._grants()
        for name, living in self.living.items():  # before anyone gets more
            has = grants[name] if living.join is None else living.join.budget
            if has > grants[name] or (name in names and has * GROW < grants[name]):
                self._end(name)
        return [
            self._ready(name, each, grants[name]) for name, each in zip(names, wanted, strict=True)
        ]

    def _grants(self) -> dict[str, int]:
        """As much as the largest task asked for, divided among all."""
        limit = max(each.task for each in self.living.values())
        part = min(1.0, limit / sum(each.asked for each in self.living.values()))
        return {name: int(part * each.asked) for name, each in self.living.items()}

    def _ready(self, name: str, wanted: JoinRequest, memory: int) -> SemiStreamJoin:
        join = self.living[name].join
        if join is not None:
            try:
                wanted.move(join)
                return join
            except BudgetError:  # the master has grown
                self._close(name)
            except BaseException:
                self._close(name)
                raise
        self.living[name].join = join = wanted.make(memory)
        try:
            join.learn(load_hot(name))
        except SemiStreamError:  # it is a help, not a need
            forget_hot(name)
            self._close(name)
            self.living[name].join = join = wanted.make(memory)
        return join

    def give_back(self, joins: Sequence[SemiStreamJoin]) -> None:
        """A task is over; rows that it left behind are not for the next one."""
        for join in joins:
            join.reset()
            living, now = self.living[self._name(join)], self._clock()
            living.used = now
            living.tasks += 1
            if now - living.saved >= SAVE:
                living.saved = now
                save_hot(self._name(join), living.learnt())

    def drop(self, joins: Sequence[SemiStreamJoin]) -> None:
        """These failed."""
        for join in joins:
            name = self._name(join)
            self._close(name)
            del self.living[name]

    def _name(self, join: SemiStreamJoin) -> str:
        return next(name for name, each in self.living.items() if each.join is join)

    def _forget(self, name: str) -> None:
        self._end(name)
        del self.living[name]

    def _end(self, name: str) -> None:
        """Let go of the memory, keep what was learnt."""
        if self.living[name].join is not None:
            save_hot(name, self.living[name].learnt())
            self._close(name)

    def _close(self, name: str) -> None:
        join, self.living[name].join, self.living[name].tasks = self.living[name].join, None, 0
        if join is not None:
            join.close()
            join.master.close()


def _distinct(names: list[str]) -> list[str]:
    """One task may ask the same question twice (semi joins add no columns)."""
    return [f"{name} {names[:i].count(name)}" for i, name in enumerate(names)]


POOL = JoinPool()
