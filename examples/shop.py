"""A small shop for the examples: products, and sales of them, some of products nobody knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# Spark's workers are to be this Python, which has the package; and no progress bars between lines.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
QUIET = "--conf spark.ui.showConsoleProgress=false --conf spark.ui.enabled=false pyspark-shell"
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", QUIET)

PRODUCTS, SALES, FILES = 1000, 600, 3
SALES_SCHEMA = "sale_id bigint, product_id bigint, quantity int"


def make_products(folder: Path) -> Path:
    ids = range(PRODUCTS)
    products = pa.table(
        {
            "product_id": pa.array(ids, pa.int64()),
            "name": [f"product {i}" for i in ids],
            "price": [i % 90 + 0.5 for i in ids],
        }
    )
    path = folder / "products.parquet"
    pq.write_table(products, path)
    return path


def make_sales(folder: Path) -> Path:
    """A folder of files, as a stream of them would arrive."""
    path = folder / "sales"
    path.mkdir()
    count = SALES // FILES
    for file in range(FILES):
        ids = range(file * count, (file + 1) * count)
        sales = pa.table(
            {
                "sale_id": pa.array(ids, pa.int64()),
                "product_id": pa.array([i * 7 % (PRODUCTS + 50) for i in ids], pa.int64()),
                "quantity": pa.array([1 + i % 5 for i in ids], pa.int32()),
            }
        )
        pq.write_table(sales, path / f"{file}.parquet")
    return path
