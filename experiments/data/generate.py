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

from experiments.data.kept_stores import kept
from semistream import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeRows = Callable[[int, int], pa.Table]

SPARK_FROM = 20_000_000
"""More rows than this are made and sorted by Spark: on all cores, and by its own spilling."""

_AT_ONCE = 250_000  # rows that are made together here
_PART_ROWS = 2_000_000  # rows of one task: about 240 MB
_DRIVER_MEMORY = "4g"


def kept_rows(
    path: Path,
    rows: int,
    make: MakeRows,
    key: str,
    page_bytes: int,
    spark: SparkSession | None = None,
    spark_from: int | None = None,
) -> Path:
    """The store at `path`, made of rows 0 .. `rows` - 1 if it is not there."""

    def build(to: Path) -> None:
        if rows <= (SPARK_FROM if spark_from is None else spark_from):
            Store.create(to, _made_here(rows, make), key, page_bytes=page_bytes)
        else:
            build_by_spark(to, rows, make, key, page_bytes, spark)

    return kept(path, build)


def build_by_spark(
    to: Path,
    rows: int,
    make: MakeRows,
    key: str,
    page_bytes: int,
    spark: SparkSession | None = None,
) -> None:
    """Make a store in Spark's tasks; rows pass through no driver. Without a session that is
    running, one is started and stopped."""
    # Late: whoever makes small masters only, or reuses large ones, needs no Spark.
    from pyspark.sql.pandas.types import from_arrow_schema

    from benchmarks.spark.data import made_frame
    from semistream.spark import build_store

    parts = max(4, -(-rows // _PART_ROWS))
    schema = from_arrow_schema(make(0, 0).schema)
    to.parent.mkdir(parents=True, exist_ok=True)
    with _session(spark, to.parent) as session:
        frame = made_frame(session, rows, parts, make, schema)
        build_store(frame, to, key, page_bytes=page_bytes)


def _made_here(rows: int, make: MakeRows) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _AT_ONCE):
            yield from make(first, min(_AT_ONCE, rows - first)).to_batches()

    return pa.RecordBatchReader.from_batches(make(0, 0).schema, batches())


@contextmanager
def _session(running: SparkSession | None, folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from benchmarks.spark.data import start_spark

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
