"""Small simulators in NumPy that the cost model is compared with. Each is seeded."""

from __future__ import annotations

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
