"""Load shedding: how much to move out, and which rows. After CACHEJOIN, section 4.

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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...disk import Backlog
from ...errors import SpecError
from ...kernels.arrays import I32, I64
from .remote import open_target, tcp_address
from .target import Target
from .wire import check_token

SHEDS = ("chybridjoin", "sweepjoin")  # algorithms that can
VICTIMS = ("popularity", "considering", "upfront", "random")


@dataclass(frozen=True)
class Shedding:
    """Where rows go that a join cannot serve in time, and which rows."""

    target: str | os.PathLike[str]  # a directory, or tcp://host:port of a ShedReceiver
    victims: str = "popularity"
    seed: int = 0  # of victims="random"
    timeout: float = 10.0  # seconds that a receiver may be silent
    token: str | None = field(default=None, repr=False)  # what the receiver was given

    def __post_init__(self) -> None:
        if not isinstance(self.target, str | os.PathLike) or not str(self.target):
            raise SpecError(f"target={self.target!r}: give a directory, or tcp://host:port")
        try:
            remote = tcp_address(self.target)
        except ValueError as error:
            raise SpecError(f"target={error}") from None
        check_token(self.token)
        if remote is None and self.token is not None:
            raise SpecError("token= is for a receiver, tcp://host:port, and target= is a directory")
        if remote is None and os.path.exists(self.target) and not os.path.isdir(self.target):
            raise SpecError(f"target={self.target!r} is a file; give a directory for shed rows")
        if self.victims not in VICTIMS:
            raise SpecError(
                f"victims={self.victims!r} does not exist; choose one of {', '.join(VICTIMS)}"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise SpecError(f"seed={self.seed!r} must be a whole number, 0 or more")
        if not isinstance(self.timeout, int | float) or not 0 < self.timeout < 1e6:
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
    return open_target(shed.target, shed.timeout, shed.token)


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
