"""Measuring one variant in one cell, and the two ways to build a sorted master."""

from __future__ import annotations

import io
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.lib import workload
from benchmarks.lib.report import spread
from benchmarks.spark.data import first_batch, read_stream
from benchmarks.spark.peers import KEY, Setting, Variant
from benchmarks.spark.workers import WorkerMemory, fresh_workers
from semistream.spark import build_store

Line = dict[str, Any]

WARM_UP = 2
"""Micro-batches not counted: they load classes, compile, fork workers and fill caches."""


@dataclass(frozen=True)
class Work:
    """One cell: the stream of `batch` rows per micro-batch that every variant gets."""

    rows: int
    batch: int
    skew: float
    stream: Path


def measure(
    variant: Variant, setting: Setting, work: Work, scratch: Path
) -> tuple[Line, list[Line]]:
    """A result for the table, and the micro-batches it was taken from."""
    settle(setting.spark)
    with fresh_workers(setting.spark) as memory, variant.open(setting) as join:
        query = run_stream(join(read_stream(setting.spark, work.stream)), scratch / "checkpoint")
    cell: Line = {
        "rows": work.rows,
        "batch": work.batch,
        "skew": work.skew,
        "variant": variant.name,
    }
    batches = [cell | line for line in batch_lines(query, work.batch)]
    steady = [line for line in batches if line["counted"]]
    result = cell | _spread_columns([line["trigger_seconds"] for line in steady])
    result |= {
        "add_batch_seconds": spread(line["add_batch_seconds"] for line in steady).median,
        "join": _join_used(query),
        "memory_mb": setting.memory / 1e6 if variant.name == "ours" else None,
    }
    return result | _memory_columns(memory), batches


def settle(spark: SparkSession) -> None:
    """Clear away what the variant before left: whoever follows a shuffle would pay for its files.

    Spark deletes them once the JVM has collected their owners, in a thread of its own; what was
    still to be written to disk by then goes there now, and not during the next measurement.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None  # there is a session, so there is a JVM
    jvm.java.lang.System.gc()
    time.sleep(2)
    os.sync()


def run_stream(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """All micro-batches back to back into a sink that takes every row and keeps none."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def batch_lines(query: StreamingQuery, batch: int) -> list[Line]:
    lines = []
    for progress in query.recentProgress:
        if progress["numInputRows"] != batch:
            raise RuntimeError(
                f"micro-batch {progress['batchId']} had {progress['numInputRows']} rows instead of "
                f"{batch}: the stream's files are not what they were; run again with --fresh"
            )
        lines.append(
            {
                "number": progress["batchId"],
                "counted": int(progress["batchId"] >= WARM_UP),
                "trigger_seconds": progress["durationMs"]["triggerExecution"] / 1000,
                "add_batch_seconds": progress["durationMs"]["addBatch"] / 1000,
            }
        )
    return lines


def _join_used(query: StreamingQuery) -> str | None:
    """The join in the plan of the last micro-batch, as adaptive execution left it."""
    text = io.StringIO()
    with redirect_stdout(text):  # explain() only prints
        query.explain()
    final = text.getvalue().split("== Initial Plan ==")[0]
    join = re.search(r"(\w+Join) ", final)
    if not join:
        return None
    return join[1] + (" after shuffle" if "Exchange hashpartitioning" in final else "")


def _memory_columns(memory: WorkerMemory) -> dict[str, float | None]:
    figures = {
        "worker_start_mb": memory.largest_start,
        "worker_peak_mb": memory.largest_peak,
        "worker_rise_mb": memory.largest_rise,
    }
    return {name: None if value is None else value / 1e6 for name, value in figures.items()}


# --- the same answer from everyone --------------------------------------------------------------


def check_answers(variants: list[Variant], setting: Setting, work: Work) -> None:
    """A wrong answer is not a fast one: every join must give what Spark's gives for one batch."""
    stream = first_batch(setting.spark, work.stream)
    expected = fingerprint(stream.join(setting.static(), KEY))
    for variant in variants:
        if not variant.joins:
            continue
        with fresh_workers(setting.spark), variant.open(setting) as join:
            found = fingerprint(join(stream))
        if found != expected:
            raise RuntimeError(
                f"{variant.name} gives (rows, hash) {found} where Spark's join gives {expected}"
            )


def fingerprint(frame: DataFrame) -> tuple[int, int]:
    """Row count and the sum of row hashes: the same for the same rows in any order."""
    row_hash = F.xxhash64(*sorted(frame.columns)).cast("decimal(38,0)")
    counted = frame.agg(F.count(F.lit(1)), F.sum(row_hash)).first()
    assert counted is not None  # an aggregate without groups has exactly one row
    return int(counted[0]), int(counted[1] or 0)


# --- building -----------------------------------------------------------------------------------


def compare_builds(
    spark: SparkSession, master: Path, rows: int, turns: int, scratch: Path
) -> list[Line]:
    """build_store against Spark sorting and writing the same rows as Parquet, in turns."""
    static = spark.read.parquet(str(master))

    def parquet(path: Path) -> None:
        ordered = static.repartitionByRange(workload.KEY).sortWithinPartitions(workload.KEY)
        ordered.write.parquet(str(path))

    builders: dict[str, Callable[[Path], object]] = {
        "build_store": lambda path: build_store(static, str(path), key=workload.KEY),
        "sort and write Parquet": parquet,
    }
    seconds: dict[str, list[float]] = {name: [] for name in builders}
    for _ in range(turns):
        for name, build in builders.items():
            seconds[name].append(_timed(build, scratch / "built"))
    return [{"rows": rows, "variant": name} | _spread_columns(s) for name, s in seconds.items()]


def _timed(build: Callable[[Path], object], path: Path) -> float:
    shutil.rmtree(path, ignore_errors=True)
    started = time.perf_counter()
    build(path)
    taken = time.perf_counter() - started
    shutil.rmtree(path, ignore_errors=True)
    return taken


def _spread_columns(values: list[float]) -> dict[str, float]:
    found = spread(values)
    return {
        "seconds": found.median,
        "seconds_min": found.low,
        "seconds_max": found.high,
        "n": found.n,
    }
