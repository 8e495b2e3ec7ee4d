"""Small simulators in NumPy that the cost model is compared with. Each is seeded."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def zipf_chances(rows: int, skew: float, skip: int = 0) -> FloatArray:
    """The chance of each rank, from the most popular; the first ``skip`` have none."""
    chances = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    chances[:skip] = 0.0
    return chances / chances.sum()


class Draws:
    """Independent draws of ranks (from 0) of a Zipf law."""

    def __init__(self, rows: int, skew: float, seed: int, skip: int = 0) -> None:
        self.rows, self.random = rows, np.random.default_rng(seed)
        self._sums = np.cumsum(zipf_chances(rows, skew, skip))

    def take(self, count: int) -> IntArray:
        found = np.searchsorted(self._sums, self.random.random(count) * self._sums[-1], "right")
        return np.minimum(found, self.rows - 1)

    def pages_asked_for(self, count: int, per_page: int, ordered: bool) -> int:
        """Different pages of ``count`` draws; of the placing of ranks only those drawn matter."""
        places = np.unique(self.take(count))
        if not ordered:
            places = self.random.choice(self.rows, len(places), replace=False, shuffle=False)
        return len(np.unique(places // per_page))


def page_of_rank(rows: int, pages: int, ordered: bool, random: np.random.Generator) -> IntArray:
    """The page on which each rank lies; every page has the same number of rows."""
    places = np.arange(rows) if ordered else random.permutation(rows)
    return places * pages // rows


def merged_reads(needed: int, pages: int, gap: int, random: np.random.Generator) -> tuple[int, int]:
    """(reads, pages read) of a random choice of pages, gaps of up to ``gap`` pages read along."""
    chosen = np.sort(random.choice(pages, needed, replace=False))
    between = np.diff(chosen) - 1
    joined = between <= gap
    return 1 + int(np.sum(~joined)), needed + int(np.sum(between[joined]))


class Hybrid:
    """Hybridjoin's disk phase with all its slots full, the oldest row looked up.

    A block is waited for from its first row on, so the oldest row's block is the first in a queue
    of blocks.
    """

    def __init__(self, draws: Draws, page: IntArray, waiting: int) -> None:
        self._draws, self._page = draws, page
        self._count = np.zeros(int(page.max()) + 1, np.int64)
        self._queue: deque[int] = deque()
        self._admit(waiting)

    def _admit(self, rows: int) -> None:
        blocks = self._page[self._draws.take(rows)]
        distinct, first, uses = np.unique(blocks, return_index=True, return_counts=True)
        new = self._count[distinct] == 0
        self._queue.extend(distinct[new][np.argsort(first[new])].tolist())
        self._count[distinct] += uses

    def read(self) -> int:
        """Read the oldest row's block; how many rows it answered."""
        block = self._queue.popleft()
        answered = int(self._count[block])
        self._count[block] = 0
        self._admit(answered)
        return answered

    def rows_per_read(self, warm: int, reads: int) -> float:
        for _ in range(warm):
            self.read()
        return sum(self.read() for _ in range(reads)) / reads
