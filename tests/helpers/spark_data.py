"""Data and helpers that the Spark tests share."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import semistream as ss
from semistream.spark.task.enrich import EnrichTask, Step
from semistream.spark.task.joins import POOL

# Spark's name of a join type, and the oracle's.
SPARK_HOWS = {"inner": "inner", "left": "left", "left_semi": "semi", "left_anti": "anti"}

PATIENCE = 90  # seconds

PAYLOAD_SQL = "concat('payload of ', id, ' is ', id * 7919 % 10007)"


def payload(key: int | None) -> str:
    """What the master says about a key, so that a wrong match shows by itself."""
    return f"payload of {key} is {(key or 0) * 7919 % 10_007}"


def master_table(keys: list[int | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": [payload(key) for key in keys],
            "price": pa.array([None if i % 5 == 0 else i / 4 for i in range(len(keys))]),
        }
    )


def sales_table(rows: int, keys: list[int | None], seed: int = 1) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "sale": pa.array(range(rows), pa.int64()),
            "id": pa.array([rng.choice(keys) for _ in range(rows)], pa.int64()),
            "note": [None if i % 5 == 0 else f"note {i}" for i in range(rows)],
        }
    )


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame of two partitions; timestamps without a zone stay without one."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema))


def write_files(table: pa.Table, folder: Path, count: int) -> Path:
    """The table's rows in `count` Parquet files, whose names and times are in the same order."""
    folder.mkdir(parents=True)
    step = -(-table.num_rows // count)
    for i in range(count):
        path = folder / f"part-{i:03}.parquet"
        pq.write_table(table.slice(i * step, step), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))  # a stream takes the oldest first
    return folder


def new_store(folders: pytest.TempPathFactory, table: pa.Table, page_bytes: int = 512) -> Path:
    """A store of the table by its `id`, of many small pages."""
    path = folders.mktemp("master") / "store"
    ss.Store.create(path, table, key="id", page_bytes=page_bytes).close()
    return path


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of the folder's files, one to a micro-batch."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def wait_for(
    what: str, condition: Callable[[], object], poll: float = 0.1, patience: float = PATIENCE
) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {patience} s"
        time.sleep(poll)


@contextmanager
def setting(spark: SparkSession, name: str, value: Any) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def batches_of(rows: int) -> Any:
    """A fixture for all tests of a file: Arrow batches of so few rows that every task sees many."""

    @pytest.fixture(scope="module", autouse=True)
    def small_batches(spark: SparkSession) -> Iterator[None]:
        with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", rows):
            yield

    return small_batches


@contextmanager
def no_job(spark: SparkSession, name: str) -> Iterator[None]:
    """Whatever happens inside, no Spark job may be started by it."""
    context = spark.sparkContext
    context.setJobGroup(name, name)
    try:
        yield
        assert not context.statusTracker().getJobIdsForGroup(name), "a job was started"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def plan_of(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def python_workers() -> list[psutil.Process]:
    """The Python workers of this process's own Spark: the children of its daemons."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(process.parent().cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, AttributeError):
            continue
    return found


def touching(workers: list[psutil.Process], path: Path) -> list[psutil.Process]:
    """Those of the workers that have a file under `path` open or mapped."""
    found = []
    for process in workers:
        try:
            names = [f.path for f in process.open_files()]
            names += [m.path for m in process.memory_maps()]
        except psutil.NoSuchProcess:
            continue
        if any(str(path) in name for name in names):
            found.append(process)
    return found


def task_of(store: str | Path, **changed: Any) -> EnrichTask:
    """A task that joins with one store, as `enrich` would make it."""
    master = ss.Store.open(store)
    step = Step(
        master.locator(), [("id", "id")], "left", None, None, 1_000_000, "sweepjoin",
        pa.schema([f for f in master.describe().schema if f.name != "id"]),
    )  # fmt: skip
    return EnrichTask([replace(step, **changed)])


def warm_joins() -> list[ss.SemiStreamJoin]:
    """Those that live in this process."""
    return [living.join for living in POOL.living.values() if living.join is not None]
