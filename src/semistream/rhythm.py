"""How batches are cut into pieces and how often the disk phase makes a step, in numbers.

A piece is taken in whole, all its rows being misses in the worst case: so it is no larger than the
free slots. Hits leave slots free, and pieces become smaller and smaller until too few are free;
then the disk phase makes some, by one step or by as many as it takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from .model import planned
from .model.sweeps import swept

GUESSES = 3.0  # pieces per read of a scan that does not know how many rows will miss: 1 to 7
PIECES = 64  # that are looked at one by one


def fills(batch: float, misses: float, slots: float) -> int:
    """How often a batch fills the slots, where all rows are answered before it ends."""
    return max(1, math.ceil(batch * misses / max(1.0, slots)))


@dataclass(frozen=True)
class Rhythm:
    """Steps and pieces per stream row."""

    kind: str  # of the disk phase
    mapped: bool
    batch: int  # rows that come at a time
    piece: int  # rows that are taken in at a time, at most
    slots: int
    misses: float  # share of rows that the front stage does not answer
    reads: float = 0.0  # per stream row
    at_once: float = 0.0  # share of rows that ssij's cached pages answer
    part_rows: float = 0.0  # that a step of a sweep in parts answers; 0: all that wait

    @cached_property
    def steps(self) -> float:
        """Calls of the disk phase per stream row."""
        if self.kind == "none" or self.misses <= 0:
            return 0.0
        if self.kind == "scan" or (self.kind == "seek" and not self.mapped):
            return self.reads
        if self.kind == "lookup":
            return fills(self.batch, self.misses, self.slots) / max(1, self.batch)
        return self.misses * (1 - self.at_once) / max(1.0, self._freed)

    @property
    def _freed(self) -> float:
        """Slots that one step makes free."""
        if self.kind == "seek":
            read = self.misses / max(1e-12, self.reads)
            return self.slots / 4 + read / 2 if self.mapped else read
        if self.kind == "plan":
            return planned.FILL / 2 * self.slots
        if self.part_rows:
            return self.part_rows
        return self.slots * (swept(self.misses) if self.kind == "sweep" else 1.0)

    @property
    def pieces(self) -> float:
        """Parts that batches are taken in by, per stream row."""
        batch, piece = max(1, self.batch), max(1, self.piece)
        if self.steps <= 0:
            return math.ceil(batch / piece) / batch
        if self.kind == "scan":
            often = GUESSES if self.misses < 1 else 1.0
            return max(often * self.steps, 1 / piece + self.steps / 2) + 1 / batch
        return self._piece_by_piece(batch, piece)

    def _piece_by_piece(self, batch: float, piece: float) -> float:
        most = (planned.FILL if self.kind == "plan" else 1.0) * self.slots
        # Fewer free slots than this are not filled. (ssij fills them all, but cached pages answer
        # rows only by the thousand, so that few of the last ones leave again.)
        least = {"lookup": 1.0, "plan": self.slots / 20}.get(self.kind, self.slots / 16)
        misses = self.misses * (1 - self.at_once)
        whole = self.kind == "sweep" and not self.part_rows
        freed = self.slots if whole else self._freed  # all, those still free too
        free, left, rows = 0.0, batch, 0.0
        for _ in range(PIECES):
            if free < least:  # one step, or as many as it takes
                free = min(most, free + max(freed, least - free + freed / 2))
            taken = min(piece, left, max(1.0, free))
            rows += taken
            free -= misses * taken
            left -= taken
            if left <= 0:
                left = batch
                free = most if self.kind == "lookup" else free
        return PIECES / rows
