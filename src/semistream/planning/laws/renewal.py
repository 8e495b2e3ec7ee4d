"""The renewal law of the hybridjoin family: how many rows one read of the disk answers.

Time is counted in rows that arrive at the disk phase. A block of the master with a share q of them
is not waited for until one of its rows comes, on average after 1/q arrivals. That row stays until
it is the oldest, for `a` arrivals, and a q others join it; then the block is read and all go. So

    reads per arrival      sum of q / (1 + a q)
    rows that wait         sum of a q (1 + a q / 2) / (1 + a q)

With G(a) = sum of a q / (1 + a q), the blocks that are waited for, these are G/a and (a + G)/2: the
number of slots gives `a`, and a read answers a/G rows. For a master in the order of popularity G is
a sum over groups of blocks. Where ranks lie anywhere q itself is random; but a q/(1 + a q) is the
chance that an exponentially distributed number of draws with mean `a` asks for the block, so G is
the expected number of blocks that such draws ask for, which `zipf.expected_pages` knows.

The law supposes that the oldest row is looked up. None is offered for lookups elsewhere in the
queue. It predicts too many rows per read where one block has tens of percent of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...kernels.arrays import F64
from . import zipf
from .numbers import as_floats, require_at_least


@dataclass(frozen=True)
class Renewal:
    """The steady state of a hybridjoin whose slots are full."""

    stay: float  # a: arrivals at the disk phase while a looked up row waits
    blocks: float  # G: blocks that are waited for
    rows_per_read: float  # w_S: rows of the disk phase that one read answers
    wait: float  # arrivals at the disk phase while an average row waits: the slots, by Little's law


def solve(
    waiting: float,
    rows: float,
    blocks: float,
    skew: float,
    ordered: bool = False,
    skip: float = 0.0,
) -> Renewal:
    """The steady state with ``waiting`` slots for rows and a master of ``blocks`` blocks.

    ``skip``: that many of the most popular keys are answered before the disk phase. ``ordered``:
    the blocks lie in the order of popularity.
    """
    require_at_least("waiting", waiting, 1)
    require_at_least("blocks", blocks, 1)
    if skip >= rows:
        return Renewal(0.0, 0.0, float("inf"), 0.0)
    counts, shares = zipf.page_shares(rows, blocks, skew, skip) if ordered else (None, None)

    def asked(stay: F64) -> F64:
        if counts is None or shares is None:
            return _blocks_anywhere(stay, rows, blocks, skew, skip)
        loads = stay[:, None] * shares
        return np.asarray(np.sum(counts * loads / (1 + loads), axis=-1))

    # (a + G)/2 rises with a, and G lies between 0 and a. It bends little: three secants are plenty.
    low, high = waiting, 2 * waiting
    ends = as_floats([low, high])
    held_low, held_high = ((ends + asked(ends)) / 2).tolist()
    stay = low
    for _ in range(3):
        stay = low + (waiting - held_low) * (high - low) / max(held_high - held_low, 1e-12)
        held = float((asked(as_floats([stay]))[0] + stay) / 2)
        if held < waiting:
            low, held_low = stay, held
        else:
            high, held_high = stay, held
        if abs(held - waiting) < 1e-5 * waiting:
            break
    found = max(2 * waiting - stay, 1e-12)
    return Renewal(stay, found, stay / found, waiting)


def rows_per_read(
    waiting: float,
    rows: float,
    block_rows: float,
    skew: float,
    ordered: bool = False,
    pinned: float = 0.0,
) -> float:
    """w: rows of the whole stream per read, those that the pinned rows answer included.

    The counterpart of the HYBRIDJOIN paper's eq. 9: w = w_S / (1 - p_N).
    """
    state = solve(waiting, rows, max(1.0, rows / block_rows), skew, ordered, pinned)
    return state.rows_per_read / (1 - zipf.share(pinned, rows, skew))


@lru_cache(maxsize=1)
def _exponential() -> tuple[F64, F64]:
    """Points t and weights for the mean over an exponentially distributed t.

    Evenly spaced in the logarithm of t, where the mean of 1 - exp(-t y) converges for every y.
    """
    logs = np.linspace(-10.0, 4.0, 25)
    points = np.exp(logs)
    weights = points * np.exp(-points)
    return points, weights / weights.sum()


def _blocks_anywhere(stay: F64, rows: float, blocks: float, skew: float, skip: float) -> F64:
    points, weights = _exponential()
    draws = stay[:, None] * points
    asked = zipf.expected_pages(draws, rows, blocks, skew, False, skip)
    return np.asarray(np.sum(weights * asked, axis=-1))
