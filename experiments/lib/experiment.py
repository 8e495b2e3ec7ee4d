"""What an experiment is: rows that it measures, a verdict on a claim, and a chart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.lib.report import say

Row = dict[str, Any]
T = TypeVar("T")

SCALES = ("smoke", "laptop", "paper")
REPRODUCED, DIRECTION, NOT = "reproduced", "same direction", "not reproduced"


@dataclass(frozen=True)
class Run:
    """One call of an experiment."""

    scale: str
    seed: int = 1
    data: Path = Path("experiments-out/data")  # where tables are made, and kept for the next time

    def pick(self, smoke: T, laptop: T, paper: T) -> T:
        """The value for this scale."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.scale]


@dataclass(frozen=True)
class Verdict:
    """What the numbers say about a claim. All three are words for people."""

    word: str  # reproduced | same direction | not reproduced
    ours: str  # our numbers
    reason: str  # why it is so; where it differs, by the cost model

    def __post_init__(self) -> None:
        if self.word not in (REPRODUCED, DIRECTION, NOT):
            raise ValueError(f"{self.word!r} is no verdict")
        if not self.ours.strip() or not self.reason.strip():
            raise ValueError("a verdict needs numbers and a reason")


@dataclass(frozen=True)
class Experiment:
    id: str  # of the claim: P4.1
    title: str
    claim: str  # in short
    paper: str  # its numbers
    method: str  # one sentence: what is measured, cold or warm
    minutes: Mapping[str, float]  # by scale, about
    measure: Callable[[Run], Iterable[Row]]
    judge: Callable[[Sequence[Row]], Verdict]
    draw: Callable[[Sequence[Row]], Any]  # a matplotlib Figure
    data: str = "synthetic"  # which tables

    @property
    def files(self) -> tuple[str, str, str]:
        return (f"{self.id}.csv", f"{self.id}.json", f"{self.id}.png")


@dataclass
class Progress:
    """A line for each thing done, and the time that is left if the others take as long."""

    total: int
    done: int = 0
    begun: float = field(default_factory=time.monotonic)

    def tell(self, what: str) -> None:
        self.done += 1
        spent = time.monotonic() - self.begun
        left = spent / self.done * max(0, self.total - self.done)
        say(f"  {self.done}/{self.total}  {what}; about {left:.0f} s left")


def each(
    todo: Iterable[tuple[Row, T]], work: Callable[[T], Iterable[Row]], what: Callable[[Row], str]
) -> Iterator[Row]:
    """Do all of it: labels and a thing to measure each. The labels go in front of every row."""
    every = list(todo)
    progress = Progress(len(every))
    for labels, thing in every:
        rows = [{**labels, **found} for found in work(thing)]
        yield from rows
        progress.tell("; ".join(what(row) for row in rows))
