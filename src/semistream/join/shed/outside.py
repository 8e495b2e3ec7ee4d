"""The rows of one join that are out.

A segment counts while rows of it are out, or back in memory but not answered yet; then it is
deleted. One that cannot be read is set aside: the others go on, and it is tried again when somebody
asks for everything. One that was perhaps stored is doubtful and does not count: its rows never left
the join, and it is deleted before anything else is put into the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .segment import Doubtful, Gone, Segment, Unreadable, new_name, number_of
from .target import Target


@dataclass
class _Out:
    segment: Segment
    taken: int = 0  # rows that were brought back


class Outside:
    """The segments of one join."""

    def __init__(self, target: Target, question: str) -> None:
        self.target, self._question = target, question
        self.segments: dict[int, _Out] = {}  # by a number of our own, oldest first
        self.rows = 0  # still out
        self.doubtful: set[str] = set()  # names
        self.unreadable: dict[str, Unreadable] = {}  # by name; some are in `segments`
        self._blamed: set[str] = set()  # names that were unreadable before
        self._back: set[int] = set()  # segments with no row out
        self._numbers = self._last_name = 0

    # --- which there are -----------------------------------------------------------------------

    def names(self) -> dict[str, int]:
        """Our numbers of the segments."""
        return {out.segment.name: number for number, out in self.segments.items()}

    def find(self, segment: Segment) -> int:
        """A segment that is there; returns our number for it."""
        self._numbers += 1
        self._last_name = max(self._last_name, number_of(segment.name))
        self.segments[self._numbers] = _Out(segment)
        self.rows += segment.rows
        return self._numbers

    def forget(self, number: int) -> int:
        """A segment is not ours any more; returns how many of its rows were out."""
        out = self.segments.pop(number)
        self._back.discard(number)
        self.unreadable.pop(out.segment.name, None)
        lost = out.segment.rows - out.taken
        self.rows -= lost
        return lost

    def unfinished(self) -> bool:
        """Something is to be done that can be done."""
        return bool(self.doubtful) or any(
            out.segment.name not in self.unreadable for out in self.segments.values()
        )

    # --- out and back --------------------------------------------------------------------------

    def put(self, rows: pa.RecordBatch) -> None:
        self.withdraw()
        name = new_name(self._last_name + 1)
        try:
            size = self.target.put(name, rows, self._question)
        except Doubtful:
            self.doubtful.add(name)
            raise
        self.find(Segment(name, len(rows), size, self._question))

    def withdraw(self) -> None:
        """Delete what was perhaps stored."""
        if self.doubtful:
            self.target.delete(sorted(self.doubtful))
            self.doubtful.clear()

    def oldest(self) -> int | None:
        """The oldest segment with rows out that can be read."""
        for number, out in self.segments.items():
            if number not in self._back and out.segment.name not in self.unreadable:
                return number
        return None

    def read(self, number: int) -> pa.RecordBatch:
        """Its rows that are still out."""
        out = self.segments[number]
        return self.target.get(out.segment.name, out.segment.bytes).slice(out.taken)

    def took(self, number: int, n: int) -> None:
        out = self.segments[number]
        out.taken += n
        self.rows -= n
        if out.taken == out.segment.rows:
            self._back.add(number)

    def take_back(self, kept: set[int]) -> None:
        """None of the rows came back after all, and only the segments in `kept` were put."""
        for number in self.segments.keys() - kept:
            self.doubtful.add(self.segments[number].segment.name)
            self.forget(number)
        for out in self.segments.values():
            self.rows += out.taken
            out.taken = 0
        self._back.clear()

    def settle(self, alive: set[int]) -> None:
        """Delete segments whose rows are all answered; rows of those in `alive` are not."""
        self.withdraw()
        done = sorted(self._back - alive)
        if done:
            self.target.delete([self.segments[number].segment.name for number in done])
        for number in done:
            self.forget(number)

    # --- what cannot be read -------------------------------------------------------------------

    def set_aside(self, number: int, error: Unreadable) -> None:
        self.unreadable[self.segments[number].segment.name] = error

    def given_up(self, number: int) -> bool:
        """Whether somebody was told that it is damaged, and may have moved it away since."""
        return self.segments[number].segment.name in self._blamed

    def try_again(self) -> bool:
        """What could not be read may have been put back; returns whether there was something."""
        found = bool(self.unreadable)
        self._blamed |= {n for n, e in self.unreadable.items() if not isinstance(e, Gone)}
        self.unreadable.clear()
        return found

    def complain(self) -> None:
        """Raise if some rows cannot be answered."""
        if not self.unreadable:
            return
        first, *others = self.unreadable.values()
        more = f" (and {len(others)} more like it)" if others else ""
        raise type(first)(f"all other rows are answered, but {first}{more}")
