"""Streams whose popularity is known."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa


@lru_cache(maxsize=32)
def _sums(keys: int, skew: float) -> np.ndarray:
    return np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -skew)


def draws(seed: int, keys: int, rows: int, skew: float) -> np.ndarray:
    """Numbers below `keys`, 0 the most popular one."""
    weights = _sums(keys, skew)
    return np.searchsorted(weights, np.random.default_rng(seed).random(rows) * weights[-1])


def times(codes: np.ndarray) -> np.ndarray:
    return np.unique(codes, return_counts=True)[1]


def spread(numbers: np.ndarray) -> np.ndarray:
    """Key values in no order of popularity; distinct for distinct numbers."""
    return (numbers.astype(np.int64) * 7_368_787 + 11) % 1_000_000_007


def stream(numbers: np.ndarray, **more: pa.Array) -> pa.Table:
    return pa.table({"id": spread(numbers), "qty": np.ones(len(numbers)), **more})


def master(keys: int, repeat: int = 1) -> pa.Table:
    ids = np.repeat(spread(np.arange(keys)), repeat)
    return pa.table({"id": ids, "price": np.arange(len(ids), dtype=np.float64)})
