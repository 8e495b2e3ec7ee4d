"""Codes that are not cached: counted apart, the latest remembered, the old forgotten."""

from __future__ import annotations

import numpy as np

from semistream.front.ghosts import Ghosts


def add(ghosts: Ghosts, codes: np.ndarray, uses: int = 1) -> np.ndarray:
    return ghosts.add(codes.astype(np.int64), np.full(len(codes), uses, np.int32))


def test_a_cold_code_does_not_look_warm_for_its_neighbours() -> None:
    """Counters that codes share would show 2 or more for a third of these."""
    ghosts = Ghosts(10)
    add(ghosts, np.arange(1_000))
    assert (add(ghosts, np.arange(5_000, 5_900)) > 1).mean() < 0.01


def test_what_comes_again_soon_is_counted() -> None:
    ghosts = Ghosts(10)
    add(ghosts, np.arange(500))
    assert (add(ghosts, np.arange(500), uses=3) == 4).mean() > 0.9


def test_what_is_seen_often_outlasts_what_is_seen_once_and_is_forgotten_later() -> None:
    ghosts = Ghosts(8)
    hot = np.arange(40)
    add(ghosts, hot, uses=50)
    add(ghosts, np.arange(1_000, 1_400))
    assert (add(ghosts, hot) > 10).mean() > 0.8
    for first in range(10_000, 30_000, 400):
        add(ghosts, np.arange(first, first + 400))
    assert (add(ghosts, hot) == 1).mean() > 0.9


def test_another_size_keeps_counts() -> None:
    for bits in (8, 10, 12):
        ghosts = Ghosts(10)
        add(ghosts, np.arange(100), uses=20)
        ghosts.resize(bits)
        assert ghosts.nbytes == 4 << bits
        assert (add(ghosts, np.arange(100)) == 21).mean() > 0.7


def test_a_code_that_leaves_the_cache_has_one_place() -> None:
    """It was counted here before it came into the cache."""
    ghosts, codes = Ghosts(12), np.arange(300)
    add(ghosts, codes)
    remembered = (ghosts._places > 0).sum()
    ghosts.put(codes, np.full(300, 7, np.uint32))
    assert (ghosts._places > 0).sum() == remembered
    assert (add(ghosts, codes) == 8).mean() > 0.95
