"""When rows arrive: rows per tick of a clock, bursty and self-similar as in the HYBRIDJOIN paper.

The paper says that its stream is bursty and self-similar, not how that was made. We take the
b-model (Wang et al. 2002), a biased multiplicative cascade: of the rows of a span of time, a part
`bias` falls into one half of it and the rest into the other, a coin decides which, and each half is
divided in the same way. So bursts have bursts within them, on every scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from semistream.kernels.arrays import F64, I64


@dataclass(frozen=True)
class Bursty:
    """`mean` rows per tick, in cascades of `2 ** levels` ticks. Each whole cascade has the mean
    exactly, to the row; the fullest tick of each has `mean * (2 * bias) ** levels` rows."""

    mean: float
    bias: float = 0.7
    levels: int = 14

    def __post_init__(self) -> None:
        if self.mean < 0 or not 0.5 <= self.bias < 1 or self.levels < 0:
            raise ValueError(f"{self}: a mean from 0, a bias in [0.5, 1) and levels from 0 are due")

    @property
    def hurst(self) -> float:
        """The exponent that the cascade tends to: 1 is without bias, less is burstier.

        The mean square of a tick grows by `2 (bias ** 2 + (1 - bias) ** 2)` per level.
        """
        return 1 - float(np.log2(2 * (self.bias**2 + (1 - self.bias) ** 2))) / 2

    def ticks(self, seed: int) -> Iterator[int]:
        """Rows of one tick after another, without end."""
        rng = np.random.default_rng(seed)
        while True:
            yield from self._cascade(rng).tolist()

    def counts(self, seed: int, ticks: int) -> I64:
        """The first `ticks` of them as an array."""
        rng = np.random.default_rng(seed)
        cascades = [self._cascade(rng) for _ in range(-(-ticks // (1 << self.levels)))]
        return np.concatenate([np.zeros(0, np.int64), *cascades])[:ticks]

    def _cascade(self, rng: np.random.Generator) -> I64:
        parts = np.array([self.mean * (1 << self.levels)])
        for _ in range(self.levels):
            left = np.where(rng.random(len(parts)) < 0.5, self.bias, 1 - self.bias)
            parts = np.stack([parts * left, parts * (1 - left)], axis=1).ravel()
        # Whole rows: what rounding takes from one tick it gives to the next, none is lost.
        ends = np.rint(np.cumsum(parts)).astype(np.int64)
        counts: I64 = np.diff(ends, prepend=0)
        return counts


@dataclass(frozen=True)
class Steady:
    """`mean` rows per tick, each row on its own (Poisson): what bursty arrivals are not."""

    mean: float

    def ticks(self, seed: int) -> Iterator[int]:
        """Rows of one tick after another, without end."""
        rng = np.random.default_rng(seed)
        while True:
            yield from rng.poisson(self.mean, _AT_ONCE).tolist()

    def counts(self, seed: int, ticks: int) -> I64:
        """The first `ticks` of them as an array."""
        rng = np.random.default_rng(seed)
        blocks = [rng.poisson(self.mean, _AT_ONCE) for _ in range(-(-ticks // _AT_ONCE))]
        return np.concatenate([np.zeros(0, np.int64), *blocks])[:ticks]


_AT_ONCE = 4096  # ticks that are drawn together


def hurst_exponent(counts: I64) -> float:
    """By the variance-time plot: means over m ticks vary by m ** (2 H - 2).

    0.5 for arrivals that know nothing of each other. Levels with fewer than 32 means are left out.
    """
    means: F64 = np.asarray(counts, dtype=np.float64)
    sizes, variances = [], []
    size = 1
    while len(means) >= 32:
        sizes.append(size)
        variances.append(float(np.var(means)))
        means = means[: len(means) // 2 * 2].reshape(-1, 2).mean(axis=1)
        size *= 2
    if len(sizes) < 3 or min(variances) <= 0:
        raise ValueError(f"{len(counts)} ticks that vary too little, or too few: no exponent")
    slope = float(np.polyfit(np.log(sizes), np.log(variances), 1)[0])
    return 1 + slope / 2
