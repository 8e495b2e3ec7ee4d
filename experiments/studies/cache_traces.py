"""The traces of the cache study: steady Zipf streams, drifting ones, a real one in time order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.lib import workload
from experiments.data import journey
from experiments.data.drifting import DriftingHotSet
from experiments.data.products import products
from semistream.kernels.arrays import I64

BATCH = 10_000  # rows pushed at a time
# Keys, rows of a trace, and how many of them fill the caches.
SIZES = {
    "smoke": (20_000, 120_000, 60_000),
    "laptop": (1_000_000, 3_000_000, 1_500_000),
    "paper": (10_000_000, 60_000_000, 30_000_000),
}
SKEWS = (0.6, 0.8, 1.0, 1.2)


@dataclass(frozen=True)
class Trace:
    name: str
    kind: str  # zipf | drift | fast drift | real
    keys: I64
    warm: int
    store: Path
    by_rank: I64 | None = None  # keys by popularity, where that never changes

    @property
    def timed(self) -> I64:
        return self.keys[self.warm :]


def traces(scale: str, seed: int, folder: Path) -> Iterator[Trace]:
    keys, rows, warm = SIZES[scale]
    store, ranks = products(folder, keys), np.arange(keys)
    for skew in SKEWS if scale != "smoke" else (1.0,):
        drawn = workload.zipf_ranks(np.random.default_rng(seed), rows, keys, skew)
        found = workload.rank_to_key(drawn, keys, seed)
        by_rank = workload.rank_to_key(ranks, keys, seed)
        yield Trace(f"Zipf {skew:g}", "zipf", found, warm, store, by_rank)
    yield Trace("hottest keys go", "drift", _sinking(keys, rows, seed), warm, store)
    for name, kind, turn in (("window moves", "drift", 16), ("moves fast", "fast drift", 4)):
        yield Trace(name, kind, _window(keys, rows, seed, turn), warm, store)
    if scale != "smoke":
        yield _real(folder)


def _sinking(keys: int, rows: int, seed: int) -> I64:
    """Zipf 1; every tenth of as many rows as there are keys the hottest in 10,000 become cold."""
    drift = DriftingHotSet(keys, hot=keys // 100, part=0.01, every=keys // 10, places=seed)
    ranks = workload.zipf_ranks(np.random.default_rng(seed), rows, keys, 1.0)
    return drift.key_of(ranks, np.arange(rows))


def _window(keys: int, rows: int, seed: int, turn: int) -> I64:
    """Nine rows of ten ask for one of a few keys, all alike. One after the other of these keys is
    replaced by another, all of them in the time of `turn` rows per key of the master."""
    rng, hot = np.random.default_rng(seed), keys // 125
    moved = np.arange(rows) * hot // (turn * keys)
    inside = moved + rng.integers(0, hot, rows)
    ranks = np.where(rng.random(rows) < 0.9, inside, rng.integers(0, keys, rows)) % keys
    return workload.rank_to_key(ranks, keys, seed)


def _real(folder: Path) -> Trace:
    """Complete Journey in time order, without the orphans: a cache of rows has none of these."""
    sold = journey.transaction_rows()[journey.KEY].to_numpy()
    known = journey.product_rows()[journey.KEY].to_numpy()
    keys = sold[np.isin(sold, known)]
    warm = len(keys) // 4 // BATCH * BATCH
    return Trace("Complete Journey", "real", keys, warm, journey.products(folder))
