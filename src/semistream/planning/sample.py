"""What a running join remembers of its stream: two samples of fixed size per generation.

    rows    some rows, every one as likely as any other: which keys are hot, and how hot
    keys    all rows of some keys, every key as likely as any other: how many keys there are

A generation ends after so many rows; the one before it is kept, older ones are forgotten, so that
a stream that drifts is seen as it is now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..kernels import sample as tally
from ..kernels.arrays import F64, I64, Mask

ROWS = 2048  # of the row sample
KEYS = 512  # slots for the key sample; three quarters are used
EVERYTHING = (1 << 64) - 1
GENERATION = 1 << 21  # rows until the next one begins
FIRST_ROWS = 1 << 14  # rows of a generation that are looked at; then only some are
ONE_IN = 64  # rows after that
OFTEN = 1 << 16  # rows between two looks


@dataclass
class Generation:
    """The samples of one generation, and what was counted when it began."""

    codes: I64 = field(default_factory=lambda: np.zeros(ROWS, np.int64))
    keys: I64 = field(default_factory=lambda: np.zeros(KEYS, np.int64))
    counts: I64 = field(default_factory=lambda: np.zeros(KEYS, np.int64))
    used: I64 = field(default_factory=lambda: np.zeros(1, np.int64))
    random: F64 = field(default_factory=lambda: np.zeros(3, np.float64))
    begun: tuple[int, int] = (0, 0)  # rows matched and unmatched before it
    passed: int = 0  # rows that came, looked at or not, with a key or not
    rows: int = 0  # rows with a key that were looked at
    limit: int = EVERYTHING  # of mixed codes, for the key sample

    @property
    def nbytes(self) -> int:
        arrays = (self.codes, self.keys, self.counts, self.used, self.random)
        return sum(a.nbytes for a in arrays)

    @property
    def share(self) -> float:
        """The part of all keys that the key sample counts."""
        return (self.limit + 1) / (EVERYTHING + 1)

    @property
    def sample(self) -> I64:
        """The codes of the row sample."""
        return self.codes[: self.rows]

    @property
    def times(self) -> I64:
        """How often each key of the key sample came."""
        return self.counts[self.counts > 0]

    @classmethod
    def none(cls) -> Generation:
        """One that has seen nothing and never will."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing)

    def restart(self, begun: tuple[int, int], limit: int = EVERYTHING) -> None:
        """Begin anew, with more keys at first than the generation before had at the end: to
        lower the limit from the top would cost more than all the rest."""
        self.counts[:] = self.used[:] = 0
        self.begun, self.passed, self.rows = begun, 0, 0
        self.limit = min(EVERYTHING, limit * 8 + 7)

    def add(self, codes: I64, spare: I64) -> None:
        tally.sample(codes, self.rows, self.random, self.codes)
        self._count(codes, spare)
        self.rows += len(codes)

    def _count(self, codes: I64, spare: I64) -> None:
        at = 0
        while True:
            limit = np.uint64(self.limit)
            at = tally.count(codes, at, limit, self.used, self.keys, self.counts)
            if at == len(codes):
                return
            self.limit >>= 1
            tally.thin(np.uint64(self.limit), self.used, self.keys, self.counts, spare)


class StreamSample:
    """The generation that runs and the last one."""

    def __init__(self) -> None:
        self.current, self.last = Generation(), Generation()
        self._spare = np.zeros(2 * KEYS, np.int64)
        self._due = 0  # rows that came since some were looked at
        self.bytes = self.sized = 0  # of some pieces: bytes and rows
        self.rows = self.keyed = 0  # rows looked at, and those of them with a key

    @property
    def nbytes(self) -> int:
        return self.current.nbytes + self.last.nbytes + self._spare.nbytes

    def wants(self, rows: int, answered: tuple[int, int]) -> bool:
        """A piece of so many rows comes: is it to be looked at? `answered` are the rows matched and
        unmatched so far."""
        if self.current.passed >= GENERATION:
            self.current, self.last = self.last, self.current
            self.current.restart(answered, self.last.limit)
        self.current.passed += rows
        self._due += rows
        return self.current.rows < FIRST_ROWS or self._due >= OFTEN

    def add(self, codes: I64, usable: Mask | None, size: Callable[[], int]) -> None:
        """The codes of a piece, which of them are keys, and how to learn the bytes of its rows."""
        if self.current.rows < FIRST_ROWS:
            self.bytes += size()
            self.sized += len(codes)
        else:  # a few rows of the piece stand for all that came
            step = max(1, ONE_IN * len(codes) // self._due)
            some = np.empty(len(codes) // step, np.int64)
            tally.places(step, self.rows, some)
            codes = codes[some]
            usable = None if usable is None else usable[some]
        self._due = 0
        self.rows += len(codes)
        codes = codes if usable is None else codes[usable]
        self.keyed += len(codes)
        self.current.add(codes, self._spare)
