"""Masters of any size: here up to some 20 million rows, beyond that in the tasks of Spark.

Their rows come from `make(first, count)`, a pure function that can be called anywhere, in any order
and for any slice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks import workload
from experiments.keeping import PAGE_BYTES, kept
from semistream import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeRows = Callable[[int, int], pa.Table]

SPARK_FROM = 20_000_000
"""More rows than this are made and sorted by Spark: on all cores, and by its own spilling."""

_AT_ONCE = 250_000  # rows that are made together here
_PART_ROWS = 2_000_000  # rows of one task: about 240 MB
_DRIVER_MEMORY = "4g"


def products(
    folder: Path, rows: int, page_bytes: int = PAGE_BYTES, spark: SparkSession | None = None
) -> Path:
    """The store of `rows` products, every key once, about 120 bytes each."""
    path = folder / f"products-{rows}-page{page_bytes}"
    return kept_rows(path, rows, workload.master_table, workload.KEY, page_bytes, spark)


def kept_rows(
    path: Path,
    rows: int,
    make: MakeRows,
    key: str,
    page_bytes: int,
    spark: SparkSession | None = None,
    spark_from: int = SPARK_FROM,
) -> Path:
    """The store at `path`, made of rows 0 .. `rows` - 1 if it is not there. Without a session
    that is running, one is started where it is needed, and stopped."""

    def build(to: Path) -> None:
        if rows <= spark_from:
            Store.create(to, _made_here(rows, make), key, page_bytes=page_bytes)
        else:
            with _session(spark, to.parent) as session:
                _build_by_spark(session, to, rows, make, key, page_bytes)

    return kept(path, build)


def _made_here(rows: int, make: MakeRows) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _AT_ONCE):
            yield from make(first, min(_AT_ONCE, rows - first)).to_batches()

    return pa.RecordBatchReader.from_batches(make(0, 0).schema, batches())


def _build_by_spark(
    spark: SparkSession, to: Path, rows: int, make: MakeRows, key: str, page_bytes: int
) -> None:
    # Late: whoever makes small masters only, or reuses large ones, needs no Spark.
    from pyspark.sql.pandas.types import from_arrow_schema

    from benchmarks.spark_data import made_frame
    from semistream.spark import build_store

    parts = max(4, -(-rows // _PART_ROWS))
    frame = made_frame(spark, rows, parts, make, from_arrow_schema(make(0, 0).schema))
    build_store(frame, to, key, page_bytes=page_bytes)


@contextmanager
def _session(running: SparkSession | None, folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from benchmarks.spark_data import start_spark

    # A process has one session: stopping a second one would stop that of the caller.
    running = running or SparkSession.getActiveSession()
    if running is not None:
        yield running
        return

    with tempfile.TemporaryDirectory(prefix="spark-", dir=folder) as scratch:
        started = start_spark(Path(scratch), _DRIVER_MEMORY)
        try:
            yield started
        finally:
            started.stop()
