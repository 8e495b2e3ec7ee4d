"""The Spark session of the benchmark and the data it reads, made once and kept.

A dataset is a folder with a `made.json` of its parameters beside the data, written last: a folder
whose note says the same is used again, anything else is removed and made afresh.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from benchmarks.lib import workload

CORES = 2
"""Task slots: fixed, so that figures from different machines differ by the machine only."""

_STREAM_DDL = f"{workload.KEY} bigint, quantity int, sold_at timestamp"
_MASTER_DDL = (
    f"{workload.KEY} bigint, name string, category int, price double, cost double, "
    "weight double, rating double, supplier_id bigint, stock bigint, brand string, "
    "listed_at timestamp, changed_at timestamp"
)


MASTER = f"local[{CORES},4]"
"""local[2] would fail the job at the first lost task; [2,4] retries as a cluster does."""


def start_spark(scratch: Path, driver_memory: str, master: str = MASTER) -> SparkSession:
    """One session for every variant. Spark's defaults, but for what a benchmark must pin down."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers unpickle functions of this package by name, so they must be able to import it.
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    settings: dict[str, Any] = {
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, is slower to read back: the peers shall not pay for that.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local-cluster"):  # its executors start from there
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        settings["spark.executor.memory"] = f"{master.rstrip(']').rpartition(',')[2]}m"
    builder = SparkSession.builder.master(master).appName("semistream benchmark")
    return builder.config(map=settings).getOrCreate()


@dataclass(frozen=True)
class Datasets:
    """Everything generated lives under `root`; `fresh` makes it all again."""

    root: Path
    seed: int
    fresh: bool = False

    def master(self, spark: SparkSession, rows: int) -> Path:
        """The master as Parquet, in key order, default compression: what the peers read."""

        def make(folder: Path) -> None:
            write_master(spark, rows, folder)

        return self._once(self.root / f"master-{rows}", _master_note(rows), make)

    def store(self, rows: int, build: Callable[[Path], None], version: str) -> Path:
        """The same rows as our store; `version` names the code that wrote it."""
        made = _master_note(rows) | {"version": version}
        return self._once(self.root / f"store-{rows}", made, build)

    def stream(self, rows: int, batch: int, skew: float, batches: int) -> Path:
        """`batches` micro-batches of exactly `batch` rows, one file per core in each."""
        made = {"rows": rows, "batch": batch, "skew": skew, "batches": batches, "seed": self.seed}

        def make(folder: Path) -> None:
            rng = np.random.default_rng([self.seed, rows, batch, round(skew * 1000)])
            for number in range(batches * CORES):
                part = batch * (number % CORES + 1) // CORES - batch * (number % CORES) // CORES
                table = workload.stream_table(rng, part, rows, skew, seed=self.seed)
                pq.write_table(table, folder / f"part-{number:05}.parquet")

        return self._once(self.root / f"stream-{rows}-{batch}-zipf{skew:g}", made, make)

    def _once(self, folder: Path, made: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        note, data = folder / "made.json", folder / "data"
        if not self.fresh and note.exists() and json.loads(note.read_text()) == made:
            return data
        shutil.rmtree(folder, ignore_errors=True)
        data.mkdir(parents=True)
        make(data)
        note.write_text(json.dumps(made))
        return data


def _master_note(rows: int) -> dict[str, object]:
    return {"rows": rows, "schema": _MASTER_DDL, "files": _master_files(rows)}


def _master_files(rows: int) -> int:
    """About 70 MB each, so that a task scans one; an even number, so both cores end together."""
    return max(4, 2 * round(rows / 2_500_000))


def write_master(spark: SparkSession, rows: int, folder: Path) -> None:
    """Make the master in Spark tasks, so that its size is bounded by the disk alone."""
    frame = made_frame(spark, rows, _master_files(rows), workload.master_table, _MASTER_DDL)
    frame.write.mode("overwrite").parquet(str(folder))


def made_frame(
    spark: SparkSession,
    rows: int,
    parts: int,
    make: Callable[[int, int], pa.Table],
    schema: StructType | str,
) -> DataFrame:
    """Rows 0 .. `rows` - 1 of a table whose rows `make(first, count)` can make anywhere."""

    def make_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            if ids.num_rows:  # a range's ids are consecutive: the first one says them all
                yield from make(ids.column(0)[0].as_py(), ids.num_rows).to_batches()

    return spark.range(0, rows, 1, parts).mapInArrow(make_all, schema)


def read_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream, a micro-batch at a time."""
    reader = spark.readStream.schema(_STREAM_DDL).option("maxFilesPerTrigger", CORES)
    return reader.parquet(str(folder))


def first_batch(spark: SparkSession, folder: Path) -> DataFrame:
    """The rows of one micro-batch as a batch DataFrame, to compare the variants' answers."""
    files = sorted(folder.glob("*.parquet"))[:CORES]
    return spark.read.schema(_STREAM_DDL).parquet(*map(str, files))
