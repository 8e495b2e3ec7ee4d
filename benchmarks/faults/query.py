"""The streaming query under which the campaign kills processes: a driver and two executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lib.campaign import QUICK_JVM, SALES_SCHEMA, enriched

FILES = 4  # at most, in a micro-batch; a task each


def query(folder: Path) -> None:
    """Enrich until there is a file "finish", then what is left of the stream."""
    spark = _session(folder)
    stream = spark.readStream.schema(SALES_SCHEMA).option("maxFilesPerTrigger", FILES)
    slow = stream.parquet(str(folder / "sales")).mapInArrow(
        _trickle(str(folder / "tasks.log")), SALES_SCHEMA
    )
    running = enriched(slow, folder).start(str(folder / "out"))
    while not (folder / "finish").exists():
        if running.awaitTermination(1):
            raise RuntimeError("the query ended by itself")
    running.processAllAvailable()
    running.stop()
    spark.stop()


def _session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    config = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.local.dir": str(folder / "tmp"),
        "spark.ui.enabled": "false",
        # Kills are no reason to give up.
        "spark.task.maxFailures": "10000",
        "spark.deploy.maxExecutorRetries": "-1",
        # A task per file, which gets its rows bit by bit.
        "spark.sql.files.minPartitionNum": str(FILES),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        # The verdict reads what Spark would tidy up.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        "spark.sql.streaming.fileSource.log.deletion": "false",
        "spark.sql.streaming.fileSink.log.deletion": "false",
    }
    master = "local-cluster[2,1,1024]"
    spark = SparkSession.builder.master(master).config(map=config).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _trickle(log: str) -> Callable[..., Any]:
    """A stage that notes every attempt at a task, and then lets rows through little by little: the
    join that comes after it is in the middle of its rows at almost any moment."""

    def trickle(batches):  # type: ignore[no-untyped-def]  # pickled into the workers as it is
        import os
        import random
        import time

        from pyspark import TaskContext

        task = TaskContext.get()
        number = task.getLocalProperty("streaming.sql.batchId")
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{number} {task.partitionId()} {task.attemptNumber()}\n".encode())
        os.close(handle)
        for batch in batches:
            time.sleep(random.uniform(0, 0.2))
            yield batch

    return trickle
