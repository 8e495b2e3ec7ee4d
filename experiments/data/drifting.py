"""Streams whose popular keys change while they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.lib import workload
from experiments.data.trace import one_batch
from semistream.kernels.arrays import I64


@dataclass(frozen=True)
class TemporalLocality:
    """The stream is divided into intervals; each asks for its own slice of the keys, by a Zipf law.

    A master of `master_rows` rows has every key `times` times, so its keys are 0 to
    `master_rows / times - 1`. Interval I, of 1 to `intervals`, has the keys from I - 1 to I times
    the width of a slice. The paper prints I to I + 1, whose last slice lies outside the master.
    Within a slice popular keys lie scattered (`places` says where), unless `ordered`. After the
    last interval the first one comes again.
    """

    master_rows: int
    times: int = 1
    intervals: int = 25
    interval_rows: int = 2_000_000
    skew: float = 1.0
    places: int = 0
    ordered: bool = False

    key = workload.KEY
    schema = workload.STREAM_SCHEMA

    def __post_init__(self) -> None:
        if self.keys < self.intervals or self.intervals < 1 or self.interval_rows < 1:
            raise ValueError(f"{self}: each interval needs a key and a row")

    @property
    def name(self) -> str:
        return f"temporal locality, {self.intervals} intervals, every key {self.times} times"

    @property
    def keys(self) -> int:
        return self.master_rows // self.times

    def slice_of(self, interval: int) -> tuple[int, int]:
        """First key, and the one after the last, of an interval from 1."""
        below = (interval - 1) * self.keys // self.intervals
        return below, interval * self.keys // self.intervals

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(seed)
        done = 0
        while True:
            yield one_batch(workload.sales_table(rng, self._keys(rng, done, rows)))
            done += rows

    def _keys(self, rng: np.random.Generator, done: int, rows: int) -> I64:
        """Keys of the stream's rows from `done` on; a batch may reach over several intervals."""
        parts, at = [], done
        while at < done + rows:
            interval, within = divmod(at, self.interval_rows)
            count = min(self.interval_rows - within, done + rows - at)
            low, high = self.slice_of(interval % self.intervals + 1)
            ranks = workload.zipf_ranks(rng, count, high - low, self.skew)
            inside = ranks if self.ordered else self._scattered(ranks, high - low)
            parts.append(low + inside)
            at += count
        return np.concatenate(parts)

    def _scattered(self, ranks: I64, width: int) -> I64:
        return workload.rank_to_key(ranks, width, self.places)


@dataclass(frozen=True)
class DriftingHotSet:
    """Zipf over all keys; every `every` rows the ranks move on by `part` of the `hot` keys.

    So a `part` of the hot keys, the hottest of them, is cold all at once, the others become more
    popular, and as many that were next in rank come in. Ours: no paper has it.
    """

    keys: int
    skew: float = 1.0
    hot: int = 10_000
    part: float = 0.1
    every: int = 1_000_000
    places: int = 0

    key = workload.KEY
    schema = workload.STREAM_SCHEMA

    def __post_init__(self) -> None:
        if not (0 <= self.part <= 1 and 1 <= self.hot <= self.keys and self.every >= 1):
            raise ValueError(f"{self}: part in [0, 1], hot in [1, keys] and every >= 1 are due")

    @property
    def name(self) -> str:
        return f"drifting hot set, {self.part:.0%} of {self.hot} keys every {self.every} rows"

    @property
    def shift(self) -> int:
        """Ranks by which the mapping moves each time."""
        return round(self.part * self.hot)

    def key_of(self, ranks: I64, row: int | I64) -> I64:
        """Which keys have these ranks (from 0) at this row of the stream."""
        moved = (ranks + self.shift * (np.asarray(row) // self.every)) % self.keys
        return workload.rank_to_key(moved, self.keys, self.places)

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(seed)
        done = 0
        while True:
            ranks = workload.zipf_ranks(rng, rows, self.keys, self.skew)
            keys = self.key_of(ranks, np.arange(done, done + rows))
            yield one_batch(workload.sales_table(rng, keys))
            done += rows
