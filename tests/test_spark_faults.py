"""Processes killed with SIGKILL under a query: the answer is the same, row for row."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from spark_data import (
    PATIENCE,
    master_table,
    python_workers,
    sales_table,
    setting,
    stream_of,
    touching,
    wait_for,
    write_files,
)

import semistream as ss
from semistream.spark import build_store, enrich
from semistream.testing import assert_same_rows, oracle

MASTER = master_table([*range(3_000), *range(0, 3_000, 10), None])


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("master") / "store"
    ss.Store.create(path, MASTER, key="id", page_bytes=2048).close()
    return path


# --- a Python worker ------------------------------------------------------------------------------


def gated(df: DataFrame, folder: Path, stop: int) -> DataFrame:
    """The same rows. The first task that gets past row `stop` waits in the middle of its partition,
    once: it makes the file "reached", then waits for the file "go". Every attempt leaves a file."""
    names = {name: str(folder / name) for name in ("reached", "go", "attempt")}

    def gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        from pyspark import TaskContext

        task = TaskContext.get()
        mark = f"{names['attempt']}-{task.stageId()}-{task.partitionId()}-{task.attemptNumber()}"
        open(mark, "w").close()
        for batch in batches:
            yield batch
            if stop in batch.column("sale").to_pylist():
                try:
                    open(names["reached"], "x").close()
                except FileExistsError:
                    continue
                while not os.path.exists(names["go"]):
                    time.sleep(0.05)

    return df.mapInArrow(gate, df.schema)


def test_a_worker_killed_in_mid_batch(spark, store, tmp_path) -> None:
    """The worker that enriches is killed when it has taken in part of its rows and before it gets
    the rest. Spark repeats the task; the sink gets every row once."""
    sales = sales_table(9_000, [*range(3_300), *[7] * 300, None])
    sales = sales.append_column("filler", pa.array([f"{i:0120}" for i in range(9_000)]))
    folder = write_files(sales, tmp_path / "sales", 3)
    gates = tmp_path / "gates"
    gates.mkdir()
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", 100):
        stream = gated(stream_of(spark, folder), gates, stop=5_500)  # within the second micro-batch
        ours = enrich(
            stream, store, on="id", how="left", memory_per_task="400kB", algorithm="sweepjoin"
        )
        writer = ours.writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.format("parquet").start(str(tmp_path / "out"))
        try:
            wait_for("the gate", lambda: (gates / "reached").exists() or query.exception())
            victims = touching(python_workers(), store)
            assert victims, "no worker has the store open"
            for victim in victims:
                os.kill(victim.pid, signal.SIGKILL)
            wait_for("the end of the workers", lambda: not any(map(alive, victims)))
            (gates / "go").touch()
            assert query.awaitTermination(PATIENCE)
        finally:
            (gates / "go").touch()
            query.stop()
    attempts = [path.name for path in gates.glob("attempt-*")]
    assert any(not name.endswith("-0") for name in attempts), f"no task was repeated: {attempts}"
    assert len(query.recentProgress) == 3
    result = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert_same_rows(result, oracle(sales, MASTER, "id", "left"))


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextmanager
def kill_writers(folder: Path, times: int) -> Iterator[list[str]]:
    """Meanwhile, kill workers that are writing files under `folder`, `times` of them. Gives the
    files that were cut short by it."""
    cut: list[str] = []
    done = Event()

    def kill_one(worker: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            names = [f.path for f in worker.open_files() if f.path.startswith(str(folder))]
            worker.kill()
            worker.wait(10)
            cut.extend(name for name in names if os.path.exists(name))

    def work() -> None:
        while len(cut) < times and not done.wait(0.01):
            for worker in touching(python_workers(), folder) if any(folder.rglob(".*.tmp")) else []:
                kill_one(worker)

    thread = Thread(target=work)
    thread.start()
    try:
        yield cut
    finally:
        done.set()
        thread.join()


def test_a_worker_killed_while_it_writes_a_shard(spark, tmp_path) -> None:
    """The shard is written again under another name; half a file is not left behind."""
    for rows in (40_000, 120_000, 360_000):  # more of them where the build is too fast to be hit
        path = tmp_path / f"store-{rows}"
        df = spark.range(0, rows, 1, 2).selectExpr("id * 7919 % 30011 as id", "id as nr")
        with kill_writers(path, times=1) as cut:
            store = build_store(df, path, key="id", partitions=2, page_bytes=256)  # small, so slow
        if cut:
            break
    assert cut, "the builds were over before a worker could be killed"
    assert store.verify() == store.describe().pages
    assert_same_rows(store.batches(), [(i * 7919 % 30011, i) for i in range(rows)])
    run = store.manifest.runs[0]
    names = {f"{run.id}.index", *(shard.name for shard in run.shards)}
    assert {file.name for file in (path / "data").iterdir()} == names


# --- the driver -----------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time

def run(spark, folder, **trigger):
    from semistream.spark import enrich

    gate, reached = folder + "/gate", folder + "/reached"

    def wait(batches):
        for batch in batches:
            yield batch
            while os.path.exists(gate) and 450 in batch.column("sale").to_pylist():
                open(reached, "w").close()
                time.sleep(0.05)

    files = folder + "/sales"
    schema = spark.read.parquet(files).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(files)
    stream = stream.mapInArrow(wait, schema)
    ours = enrich(stream, folder + "/store", on="id", how="left", memory_per_task="400kB")
    writer = ours.writeStream.format("parquet").trigger(**trigger)
    writer = writer.option("checkpointLocation", folder + "/checkpoint")
    return writer.start(folder + "/out")

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    config = dict(pair.split("=", 1) for pair in sys.argv[2:])
    spark = SparkSession.builder.master("local[2,4]").config(map=config).getOrCreate()
    run(spark, sys.argv[1], processingTime="0 seconds").awaitTermination()
"""


SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that starts fast


class Driver:
    """A query in a process of its own, with its own JVM and workers."""

    def __init__(self, script: Path, folder: Path) -> None:
        log_config = Path(__file__).with_name("log4j2.properties").as_uri()
        options = f"{SHORT_LIVED} -Dlog4j2.configurationFile={log_config}"
        config = {
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": options,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
            "spark.ui.enabled": "false",
        }
        words = [sys.executable, str(script), str(folder), *(f"{k}={v}" for k, v in config.items())]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        self.log = folder / f"driver-{time.monotonic_ns()}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                words, env=os.environ | python, start_new_session=True, stdout=log, stderr=log
            )

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        wait_for(what, lambda: self.process.poll() is not None or condition())
        assert self.process.poll() is None, f"the driver ended by itself: {self.log.read_text()}"

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; the workers lose their JVM and end by themselves."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        assert any("java" in process.name() for process in family)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _, left = psutil.wait_procs(family, timeout=30)
        for process in left:
            process.kill()


def test_the_driver_killed_and_restarted(spark, tmp_path) -> None:
    """Killed after some commits, killed again within a micro-batch, then run to the end from the
    checkpoint: the Parquet sink has every row once."""
    sales = sales_table(600, [*range(3_300), *[7] * 300, None])
    write_files(sales, tmp_path / "sales", 8)  # 75 rows in each micro-batch
    ss.Store.create(tmp_path / "store", MASTER, key="id", page_bytes=2048).close()
    script = tmp_path / "query.py"
    script.write_text(SCRIPT)
    (tmp_path / "gate").touch()  # the micro-batch of the seventh file waits half way

    def commits() -> int:
        return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))

    seen = []
    for what, condition in (
        ("the second commit", lambda: commits() >= 2),
        ("the gate", lambda: (tmp_path / "reached").exists()),
    ):
        driver = Driver(script, tmp_path)
        try:
            driver.wait_for(what, condition)
        finally:
            driver.kill()
        seen.append(commits())
    assert 2 <= seen[0] < seen[1] < 8, "killed twice in the middle, at different points"
    out = str(tmp_path / "out")
    under_way = spark.read.parquet(out).where("sale = 450")
    assert under_way.count() == 0, "the second kill came after its micro-batch"
    (tmp_path / "gate").unlink()
    query = runpy.run_path(str(script))["run"](spark, str(tmp_path), availableNow=True)
    assert query.awaitTermination(PATIENCE)
    assert commits() > seen[1]
    result = spark.read.parquet(out).toArrow()
    assert_same_rows(result, oracle(sales, MASTER, "id", "left"))
