"""Run by a test: two executors, one is killed while tasks read what the shuffle has brought.

    python -m tests.helpers.shuffle_child FOLDER

The executor's map outputs are gone, so Spark runs those map tasks again, and here every run of a
map task gets its rows in another order. Prints what was found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semistream as ss
from semistream.spark import enrich

KEYS, ROWS = 2_000, 20_000
PARTITIONS = 6


def disordered(df: DataFrame) -> DataFrame:
    """The same rows in each partition, in a new order whenever it is computed."""

    def disorder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        table = pa.Table.from_batches(list(batches))
        yield from table.take(np.random.default_rng().permutation(len(table))).to_batches()

    return df.mapInArrow(disorder, df.schema)


def killing(df: DataFrame, mark: str) -> DataFrame:
    """The same rows. Once, the task of the last but one partition kills its executor."""

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        from contextlib import suppress

        from pyspark import TaskContext

        for batch in batches:
            if TaskContext.get().partitionId() == PARTITIONS - 2:
                with suppress(FileExistsError), open(mark, "x"):
                    with open(f"/proc/{os.getppid()}/stat") as file:  # of the daemon
                        executor = int(file.read().rsplit(")", 1)[1].split()[1])
                    os.kill(executor, signal.SIGKILL)
            yield batch

    return df.mapInArrow(kill, df.schema)


def main(folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    config = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "600m",
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.local.dir": str(folder),
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=config)
    spark = builder.getOrCreate()
    keys = list(range(KEYS))
    master = pa.table({"id": keys, "name": [f"name of {key}" for key in keys]})
    ss.Store.create(folder / "store", master, key="id", page_bytes=1024).close()
    half = F.when(F.col("row") % 2 == 0, 7).otherwise(F.col("row") * 7919 % KEYS)
    rows = spark.range(0, ROWS, 1, 6).withColumnRenamed("id", "row").withColumn("id", half)
    ours = enrich(
        disordered(rows), folder / "store", on="id", shuffle="key", partitions=PARTITIONS,
        algorithm="sweepjoin", memory_per_task="1MB",
    )  # fmt: skip
    spark.sparkContext.setJobGroup("shuffle", "shuffle")
    found = Counter(map(tuple, killing(ours, str(folder / "killed")).collect()))
    expected = Counter(
        (row, key, f"name of {key}")
        for row in range(ROWS)
        for key in [7 if row % 2 == 0 else row * 7919 % KEYS]
    )
    tracker = spark.sparkContext.statusTracker()
    stages = {
        s for j in tracker.getJobIdsForGroup("shuffle") for s in tracker.getJobInfo(j).stageIds
    }
    infos = [info for s in stages if (info := tracker.getStageInfo(s)) is not None]
    print(
        json.dumps(
            {
                "rows": found.total(),
                "missing": (expected - found).total(),
                "extra": (found - expected).total(),
                "attempts": max(info.currentAttemptId for info in infos) + 1,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
