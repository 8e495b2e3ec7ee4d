"""For the tests of the experiments' data: rows of streams and stores, and how often keys are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream import Store


def some(batches: Iterator[pa.RecordBatch], count: int) -> pa.Table:
    return pa.Table.from_batches(list(islice(batches, count)))


def keys_of(stream: Any, rows: int, *, seed: int = 1) -> np.ndarray:
    return next(stream.batches(seed, rows)).column(stream.key).to_numpy()


def rows_of(path: Path) -> pa.Table:
    """All rows of a store, each byte checked."""
    store = Store.open(path)
    store.verify()
    return pa.Table.from_batches(store.batches(), store.describe().schema)


def frequencies(keys: np.ndarray) -> np.ndarray:
    """How often each different key is there, most frequent first."""
    return np.sort(np.unique(keys, return_counts=True)[1])[::-1]
