"""Load shedding: how much to move out, which rows, and what is out. After CACHEJOIN, section 4.

The paper, in our words: if the stream buffer holds more than twice what the last iteration served,
move (buffer - 2 w) rows from the end of the queue out; if it holds less, bring 2 w rows back.
Corrected: w there counts disk matches only while the buffer is before the front stage; here
capacity c is all rows answered in an iteration, smoothed. Slots of moved rows come back. Only what
is missing to c is brought back, and not right after moving out, so that rows do not go to and fro.

Victims: the paper's `considering` (the oldest waiting rows) and `upfront` (rows not looked at yet,
MESHJOIN's "keep"); `random`; and ours, `popularity`: waiting rows of the pages that the fewest rows
ask for, since a read of such a page answers the fewest. The theorem that considering beats upfront
needs popular keys to lie together; the popularity of a page is measured, wherever its keys lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..backlog import Backlog
from ..errors import SpecError
from .buffer import widths
from .remote import open_target, tcp_address
from .target import Segment, Target, new_name, number_of

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
SHEDS = ("chybridjoin", "sweepjoin")  # algorithms that can
VICTIMS = ("popularity", "considering", "upfront", "random")


@dataclass(frozen=True)
class Shedding:
    """Where rows go that a join cannot serve in time, and which rows."""

    target: str | os.PathLike[str]  # a directory, or tcp://host:port of a ShedReceiver
    victims: str = "popularity"
    seed: int = 0  # of victims="random"
    timeout: float = 10.0  # seconds that a receiver may be silent

    def __post_init__(self) -> None:
        if not isinstance(self.target, str | os.PathLike) or not str(self.target):
            raise SpecError(f"target={self.target!r}: give a directory, or tcp://host:port")
        try:
            remote = tcp_address(self.target)
        except ValueError as error:
            raise SpecError(f"target={error}") from None
        if remote is None and os.path.exists(self.target) and not os.path.isdir(self.target):
            raise SpecError(f"target={self.target!r} is a file; give a directory for shed rows")
        if self.victims not in VICTIMS:
            raise SpecError(
                f"victims={self.victims!r} does not exist; choose one of {', '.join(VICTIMS)}"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise SpecError(f"seed={self.seed!r} must be a whole number, 0 or more")
        if not self.timeout > 0:
            raise SpecError(f"timeout={self.timeout!r} must be a positive number of seconds")


def shed_target(shed: Shedding | None, algorithm: str) -> Target | None:
    if shed is None:
        return None
    if not isinstance(shed, Shedding):
        raise SpecError(f"shed={shed!r}: give ss.Shedding(target=...)")
    if algorithm not in SHEDS:
        raise SpecError(
            f"{algorithm} cannot shed load; choose algorithm="
            f"{' or '.join(repr(name) for name in SHEDS)}, or leave shed= out"
        )
    return open_target(shed.target, shed.timeout)


# --- which rows ---------------------------------------------------------------------------------


class Popularity:
    """How many rows came to wait for each page (or block of pages that one read brings). Hot keys
    are answered from memory and do not count: they need no page."""

    def __init__(self, last: I64, block: int, most: int) -> None:
        """`last` is the last code of every page; at most `most` numbers are kept."""
        self._last = last
        aligned = -(-len(last) // max(1, most))
        self._pages = max(1, -(-aligned // block) * block)
        self.count = np.zeros(len(last) // self._pages + 1, np.float32)
        self._seen = 0

    def saw(self, codes: I64) -> I32:
        """These rows wait now; returns where each is counted."""
        place = self.place(codes)
        self.count += np.bincount(place, minlength=len(self.count)).astype(np.float32)
        self._seen += len(codes)
        return place

    def place(self, codes: I64) -> I32:
        page = np.searchsorted(self._last, codes)
        return (np.minimum(page, max(0, len(self._last) - 1)) // self._pages).astype(np.int32)

    def age(self, every: int) -> None:
        """Halve after so many rows: what was popular long ago is not."""
        if self._seen > every:
            self.count *= np.float32(0.5)
            self._seen //= 2


Choose = Callable[[Backlog, I32, int], I32]


def chooser(victims: str, places: Callable[[], I32], popularity: Popularity, seed: int) -> Choose:
    """choose(backlog, slots, n): n of the waiting rows in `slots`."""
    if victims == "random":
        rng = np.random.default_rng(seed)
        return lambda backlog, slots, n: slots[rng.choice(len(slots), n, replace=False)]
    if victims == "popularity":
        return lambda backlog, slots, n: _least_popular(
            backlog, slots, n, places()[slots], popularity.count
        )
    return _oldest


def _oldest(backlog: Backlog, slots: I32, n: int) -> I32:
    if n >= len(slots):
        return slots
    tickets = backlog.ticket[slots]
    chosen: I32 = slots[tickets <= np.partition(tickets, n - 1)[n - 1]]
    return chosen


def _least_popular(
    backlog: Backlog, slots: I32, n: int, place: I32, count: NDArray[np.float32]
) -> I32:
    """All rows of the least popular pages, as many as fit, and of the next page the oldest. Equally
    popular pages go one after the other, not a row of each: a read should find many rows or none.
    """
    waiting = np.bincount(place, minlength=len(count))
    order = np.argsort(count, kind="stable")
    ends = np.cumsum(waiting[order])
    whole = int(np.searchsorted(ends, n, "right"))  # so many pages go with all their rows
    gone = np.zeros(len(count), np.bool_)
    gone[order[:whole]] = True
    chosen = slots[gone[place]]
    if len(chosen) < n:
        chosen = np.append(chosen, _oldest(backlog, slots[place == order[whole]], n - len(chosen)))
    return chosen


# --- rows that are out --------------------------------------------------------------------------


@dataclass
class _Out:
    segment: Segment
    taken: int = 0  # rows that were brought back


class Outside:
    """The segments of one join: rows still out, and rows back in memory but not answered yet. A
    segment is deleted when none of its rows is either."""

    def __init__(self, target: Target, question: str) -> None:
        self.target, self._question = target, question
        self.segments: dict[int, _Out] = {}  # by a number of our own, oldest first
        self.rows = 0  # still out
        self._back: set[int] = set()  # segments with no row out
        self._numbers = self._last_name = 0

    def find(self, segment: Segment, taken: int = 0) -> int:
        """A segment that is there; returns our number for it."""
        self._numbers += 1
        self._last_name = max(self._last_name, number_of(segment.name))
        self.segments[self._numbers] = _Out(segment)
        self.rows += segment.rows
        self.took(self._numbers, taken)
        return self._numbers

    def put(self, rows: pa.RecordBatch) -> None:
        name = new_name(self._last_name + 1)
        widest = int(np.diff(widths(rows)).max())
        self.target.put(name, rows, widest, self._question)
        self.find(Segment(name, len(rows), rows.nbytes, widest, self._question))

    def oldest(self) -> int | None:
        """The oldest segment with rows out."""
        return next((n for n in self.segments if n not in self._back), None)

    def read(self, number: int) -> pa.RecordBatch:
        """Its rows that are still out."""
        out = self.segments[number]
        return self.target.get(out.segment.name).slice(out.taken)

    def took(self, number: int, n: int) -> None:
        out = self.segments[number]
        out.taken += n
        self.rows -= n
        if out.taken == out.segment.rows:
            self._back.add(number)

    def settle(self, alive: set[int]) -> None:
        """Delete segments whose rows are all answered; rows of those in `alive` are not."""
        for number in sorted(self._back - alive):
            self.target.delete(self.segments[number].segment.name)
            self._back.discard(number)
            del self.segments[number]
