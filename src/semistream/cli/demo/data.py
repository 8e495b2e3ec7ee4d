"""The demo's data: products, and sales that point at them with a skew.

A product's columns depend on its key alone, so the table is made slice by slice. Popular products
lie scattered over the whole table, as they do in life.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...kernels.arrays import I64

KEY = "product_id"
SALES_DDL = "sale_id bigint, product_id bigint, quantity int, sold_at timestamp"
UNKNOWN = 0.005  # share of sales whose product is not in the table: an inner join drops them
SLICE = 250_000

_WHAT = ["Armchair", "Basket", "Candle", "Drawer", "Guitar", "Hammock", "Kettle", "Lantern"]
_HOW = ["Amber", "Bold", "Calm", "Elegant", "Golden", "Handy", "Modern", "Plain"]
_BRANDS = ["Aldermoor", "Brightwell", "Castellane", "Driftwood", "Fernworthy", "Harrow"]
_ROOMS = ["bathroom", "bedroom", "garden", "kitchen", "living room", "workshop"]
_MIDNIGHT = np.datetime64("2025-01-01", "us")


def products(first: int, count: int) -> pa.Table:
    """Products `first`, `first` + 1, ...: about 120 bytes each."""
    keys = np.arange(first, first + count, dtype=np.int64)
    rng = np.random.default_rng([1, first])
    cents = rng.integers(99, 100_000, count)
    number = pc.utf8_lpad(pa.array(keys).cast(pa.string()), width=10, padding="0")
    columns: dict[str, Any] = {
        KEY: keys,
        "name": pc.binary_join_element_wise(_any(rng, _HOW, count), _any(rng, _WHAT, count), " "),
        "article": pc.binary_join_element_wise("ART", number, "-"),
        "brand": _any(rng, _BRANDS, count),
        "room": _any(rng, _ROOMS, count),
        "price": cents / 100,
        "cost": np.round(cents * rng.uniform(0.4, 0.8, count)) / 100,
        "weight": np.round(rng.gamma(2.0, 3.0, count), 3),
        "supplier_id": rng.integers(1, 5_000, count),
        "stock": rng.integers(0, 2_000, count),
        "listed_at": _times(-rng.integers(0, 5 * 365 * 86_400, count)),
    }
    return pa.table(columns)


def sales(count: int, products: int, skew: float, batches: int) -> Iterator[pa.Table]:
    """`batches` tables of `count` sales; the n-th most popular product sells like n ** -skew."""
    rng = np.random.default_rng(2)
    share = np.cumsum(np.arange(1, products + 1, dtype=np.float64) ** -skew)
    by_popularity = rng.permutation(products)
    for batch in range(batches):
        rank = np.searchsorted(share, rng.random(count) * share[-1])
        key = by_popularity[np.minimum(rank, products - 1)]
        unknown = rng.random(count) < UNKNOWN
        key[unknown] += products
        first = batch * count
        yield pa.table(
            {
                "sale_id": np.arange(first, first + count, dtype=np.int64),
                KEY: key,
                "quantity": rng.integers(1, 6, count, dtype=np.int32),
                "sold_at": _times(first // 100 + np.sort(rng.integers(0, 3_600, count))),
            }
        )


def write_products(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for first in range(0, count, SLICE):
        table = products(first, min(SLICE, count - first))
        pq.write_table(table, folder / f"products-{first // SLICE:05}.parquet")


def write_sales(
    folder: Path, count: int, products: int, skew: float, batches: int, files: int
) -> None:
    """Each micro-batch as `files` files of the same size, for as many tasks."""
    folder.mkdir(parents=True)
    for number, table in enumerate(sales(count, products, skew, batches)):
        for part in range(files):
            a, b = count * part // files, count * (part + 1) // files
            name = f"sales-{number:05}-{part}.parquet"
            pq.write_table(table.slice(a, b - a), folder / name)


def _any(rng: np.random.Generator, words: list[str], count: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), count)))


def _times(seconds: I64) -> pa.Array:
    return pa.array(_MIDNIGHT + seconds * 1_000_000).cast(pa.timestamp("us", "UTC"))
