"""Masters whose keys repeat: many rows of one key, so that a join is many-to-many.

Rows are those of the benchmarks' products, about 120 bytes each and no two the same; only their
key is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.lib import workload
from experiments.data.generate import kept_rows
from experiments.data.kept_stores import PAGE_BYTES
from semistream.kernels.arrays import I64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOTHING: I64 = np.zeros(0, dtype=np.int64)

BLOCK = 10_000
"""Rows that are drawn together: a block is the same whichever slice it is made for. As many as
Spark puts into a batch, so that its tasks draw little in vain."""


def zipf_keys(
    folder: Path,
    rows: int,
    skew: float,
    keys: int | None = None,
    *,
    seed: int = 0,
    places: int = 0,
    page_bytes: int = PAGE_BYTES,
    spark: SparkSession | None = None,
) -> Path:
    """`rows` rows whose keys are drawn from a Zipf law over 0 .. `keys` - 1 (as many as rows, if
    not told), as P4 does in section 4.

    Ranks are aligned with the stream's: the key that is most frequent here is most frequent in a
    stream over as many keys with the same `places` (`seed` of `workload.stream_table`). Even skew 0
    repeats some keys and leaves others out.
    """
    domain = keys or rows
    name = f"zipf{skew:g}-{rows}-of-{domain}-seed{seed}-places{places}-page{page_bytes}"
    make = partial(zipf_rows, keys=domain, skew=skew, seed=seed, places=places)
    return kept_rows(folder / name, rows, make, workload.KEY, page_bytes, spark)


def repeated_keys(
    folder: Path,
    rows: int,
    times: int,
    *,
    page_bytes: int = PAGE_BYTES,
    spark: SparkSession | None = None,
) -> Path:
    """`rows` rows, every key of 0 .. `rows / times` - 1 exactly `times` times (P3, temporal
    locality)."""
    if times < 1 or rows % times:
        raise ValueError(f"{rows} rows cannot have every key {times} times; take a multiple")
    make = partial(repeated_rows, keys=rows // times)
    path = folder / f"repeated{times}-{rows}-page{page_bytes}"
    return kept_rows(path, rows, make, workload.KEY, page_bytes, spark)


def zipf_rows(
    first: int, count: int, *, keys: int, skew: float, seed: int = 0, places: int = 0
) -> pa.Table:
    """Rows `first` .. `first + count - 1` of the master with Zipf keys."""

    def ranks(block: int) -> I64:
        return workload.zipf_ranks(np.random.default_rng([seed, block]), BLOCK, keys, skew)

    drawn = drawn_in_blocks(first, count, ranks)
    return _with_keys(first, workload.rank_to_key(drawn, keys, places))


def repeated_rows(first: int, count: int, *, keys: int) -> pa.Table:
    """Rows `first` .. `first + count - 1`: the keys in turn, again and again."""
    return _with_keys(first, np.arange(first, first + count) % keys)


def drawn_in_blocks(
    first: int, count: int, draw: Callable[[int], I64], empty: I64 = NOTHING
) -> I64:
    """Values `first` .. `first + count - 1` of a sequence that is drawn by blocks of `BLOCK`: what
    a row is does not depend on the slice that it is made in."""
    begin, end = first // BLOCK, -(-(first + count) // BLOCK)
    values = np.concatenate([empty, *(draw(block) for block in range(begin, end))])
    return values[first - begin * BLOCK :][:count]


def _with_keys(first: int, keys: I64) -> pa.Table:
    rows = workload.master_table(first, len(keys))
    field = rows.schema.field(workload.KEY)
    return rows.set_column(rows.schema.get_field_index(workload.KEY), field, pa.array(keys))
