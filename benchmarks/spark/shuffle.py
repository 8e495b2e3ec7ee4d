"""Tasks of a skewed stream: how long the slowest takes, and how much of the master they read.

    python -m benchmarks.spark.shuffle --streams half,zipf --partitions 2,4,8 --masters mapped

The same rows are joined as they come (`none`), after Spark's own `df.repartition(n, key)`, and with
`enrich(shuffle="key")`, in turns, each time by workers that have learnt nothing yet. Times of
tasks are Spark's own, of the stage that joins; `seconds` is the whole job, the shuffle included.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.report import Row, count_text, keep, parse_count, print_table, spread
from benchmarks.lib.servers import PostgreSQL
from benchmarks.lookups import load_postgresql, log, slices
from benchmarks.spark.data import CORES, start_spark
from benchmarks.spark.workers import workers_of_spark
from semistream.budget.ledger import parse_bytes
from semistream.master import Master
from semistream.spark import enrich, progress

KEY = workload.KEY
HOT = 123_456  # the key that has half of the rows
Keys = Callable[[np.random.Generator, int, int, int], np.ndarray]  # rng, rows, keys, file
_RUNS = itertools.count()


def hot(share: float) -> Keys:
    def keys(rng: np.random.Generator, rows: int, count: int, _: int) -> np.ndarray:
        return np.where(rng.random(rows) < share, HOT % count, rng.integers(0, count, rows))

    return keys


def zipf(rng: np.random.Generator, rows: int, count: int, _: int) -> np.ndarray:
    return workload.rank_to_key(workload.zipf_ranks(rng, rows, count, 1.2), count, 1)


def rotating(rng: np.random.Generator, rows: int, count: int, file: int) -> np.ndarray:
    """A thousand keys at a time; every file has others."""
    return np.random.default_rng(file).integers(0, count, 1_000)[rng.integers(0, 1_000, rows)]


STREAMS: dict[str, Keys] = {
    "uniform": hot(0.0),
    "half": hot(0.5),
    "nine tenths": hot(0.9),
    "zipf": zipf,
    "rotating": rotating,
}
ROUNDS = 50
WAYS = ("none", "repartition", "key")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.shuffle",
        description=__doc__.split("\n")[0] if __doc__ else None,
    )
    parser.add_argument("--rows", type=parse_count, default=1_000_000, help="of the master")
    parser.add_argument("--stream", type=parse_count, default=1_000_000, help="rows of the stream")
    parser.add_argument("--streams", type=names, default=["half"], help=", ".join(STREAMS))
    parser.add_argument("--masters", type=names, default=["mapped", "read", "postgresql"])
    parser.add_argument("--partitions", type=names, default=["4"], help="such as 2,4,8")
    parser.add_argument("--ways", type=names, default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--memory", default="8MB", help="per task")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    return parser.parse_args(arguments)


# --- data -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def masters(names: Sequence[str], folder: Path, rows: int) -> Iterator[dict[str, Master]]:
    """The same table as a mapped store, a store that is read, and in a private database."""
    path = folder / "store"
    batches = (b for table in slices(rows) for b in table.to_batches())
    reader = pa.RecordBatchReader.from_batches(workload.MASTER_SCHEMA, batches)
    ss.Store.create(path, reader, key=KEY).close()
    with contextlib.ExitStack() as stack:
        opened: dict[str, Master] = {}
        for name in names:
            if name == "postgresql":
                server = stack.enter_context(PostgreSQL())
                load_postgresql(server, rows)
                opened[name] = ss.open_master(server.url(), KEY, table="products")
            else:
                opened[name] = ss.Store.open(path, io={"mapped": "map", "read": "pread"}[name])
        yield opened


def write_stream(folder: Path, name: str, arguments: argparse.Namespace, files: int) -> Path:
    """A file per map task."""
    path = folder / f"{name}-{files}"
    if not path.exists():
        path.mkdir()
        rng = np.random.default_rng(arguments.seed)
        for file in range(files):
            rows = arguments.stream // files
            table = workload.stream_table(rng, rows, arguments.rows, 0.0)
            keys = STREAMS[name](rng, rows, arguments.rows, file).astype(np.int64)
            table = table.set_column(0, KEY, [keys])
            pq.write_table(table, path / f"{file:03}.parquet")
    return path


# --- measuring ------------------------------------------------------------------------------------


def measure(
    spark: SparkSession, stream: DataFrame, master: Master, way: str, partitions: int, memory: str
) -> Row:
    """One run, by workers that have loaded their code and know no keys."""
    run = f"run-{next(_RUNS)}"
    words: dict[str, Any] = {"shuffle": "key", "partitions": partitions} if way == "key" else {}
    if way == "repartition":
        stream = stream.repartition(partitions, KEY)
    # What a worker learns is kept under the question, so each run asks another one.
    words |= {"on": KEY, "how": "left", "algorithm": "sweepjoin", "suffix": run}
    forget(spark)
    spark.sparkContext.setJobGroup(run, run)
    begin = time.perf_counter()
    joined = enrich(stream, master, memory_per_task=memory, **words)
    joined.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begin
    done = progress(joined)
    budget = parse_bytes(memory, master.describe().bytes)
    assert all(each.budget_bytes == budget for each in done), "a join shared its memory"
    tasks, rows = task_metrics(spark, run)
    assert len(tasks) == partitions, (way, len(tasks))
    return {
        "slowest/median": max(tasks) / statistics.median(tasks),
        "rows most/median": max(rows) / statistics.median(rows) if any(rows) else None,
        "median task": statistics.median(tasks),
        "seconds": seconds,
        "pages": sum(each.pages_read or 0 for each in done),
        "MB": sum(each.bytes_read or 0 for each in done) / 1e6,
    }


def forget(spark: SparkSession) -> None:
    """Every worker ends the joins that it keeps: the next one would share their memory. Only so
    many workers have a task at once, so this is repeated until all of them had one."""
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            forget_in_some(spark, Path(folder), turn)
            met = {int(file.stem) for file in Path(folder).iterdir()}
            if all(worker in met for worker, _ in workers_of_spark()):
                return
    raise RuntimeError(f"some worker got no task in {ROUNDS} rounds of {CORES}")


def forget_in_some(spark: SparkSession, folder: Path, turn: int) -> None:
    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from semistream.spark.task.joins import POOL  # the worker's own: a global would be a copy

        yield from batches
        POOL.drop([each.join for each in POOL.living.values() if each.join is not None])
        POOL.living.clear()
        (folder / f"{os.getpid()}.{turn}").touch()
        while len(list(folder.glob(f"*.{turn}"))) < CORES:  # until all are in workers of their own
            time.sleep(0.01)

    spark.range(0, CORES, 1, CORES).mapInArrow(end, "id bigint").collect()


def task_metrics(spark: SparkSession, group: str) -> tuple[list[float], list[int]]:
    """What Spark says of each task of the last stage: seconds, and rows from a shuffle."""
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # or the last tasks have no times yet
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stage = max(stage for job in jobs if job is not None for stage in job.stageIds)
    tasks = context._jsc.sc().statusStore().taskList(stage, 0, 10_000)
    found = [tasks.apply(i).taskMetrics().get() for i in range(tasks.size())]
    seconds = [task.executorRunTime() / 1e3 for task in found]
    return seconds, [task.shuffleReadMetrics().recordsRead() for task in found]


def cell(
    spark: SparkSession, path: Path, master: Master, partitions: int, a: argparse.Namespace
) -> list[Row]:
    """All ways in turns; one turn first that does not count."""
    stream = spark.read.parquet(str(path))
    runs: dict[str, list[Row]] = {way: [] for way in a.ways}
    for turn in range(a.repeat + 1):
        for way in a.ways:
            found = measure(spark, stream, master, way, partitions, a.memory)
            if turn:
                runs[way].append(found)
    return [{"way": way, **summary(found)} for way, found in runs.items()]


def summary(found: Sequence[Row]) -> Row:
    row: dict[str, Any] = {}
    for name in found[0]:
        if found[0][name] is None:
            continue
        values = spread(float(run[name]) for run in found)
        row[name] = values.median
        if name in ("slowest/median", "seconds"):
            row |= {f"{name} low": values.low, f"{name} high": values.high}
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    a = parse(arguments)
    a.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="semistream-shuffle-") as scratch:
        folder = Path(scratch)
        spark = start_spark(folder, "1g")
        spark.conf.set("spark.sql.files.openCostInBytes", "128MB")  # a task per file
        rows: list[Row] = []
        log(f"{count_text(a.rows)} master rows, {count_text(a.stream)} stream rows")
        with masters(a.masters, folder, a.rows) as opened:
            for name, stream, n in itertools.product(a.masters, a.streams, map(int, a.partitions)):
                path = write_stream(folder, stream, a, n)
                found = cell(spark, path, opened[name], n, a)
                head = {"master": name, "stream": stream, "partitions": n}
                rows += [head | dict(row) for row in found]
                log(f"{name}, {stream}, {n} partitions")
        spark.stop()
    print_table(rows)
    log(f"wrote {keep(a.out, 'spark_shuffle', rows, a)}")


if __name__ == "__main__":
    main()
