"""Processes killed with SIGKILL under a query: the answer is the same, row for row."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from benchmarks.faults.campaign import Faults
from benchmarks.faults.verdict import FAULTS, verdict
from semistream.spark import build_store, enrich
from semistream.testing import assert_same_rows, oracle
from tests.helpers.spark_data import (
    PATIENCE,
    master_table,
    new_store,
    python_workers,
    sales_table,
    setting,
    stream_of,
    touching,
    wait_for,
    write_files,
)

MASTER = master_table([*range(3_000), *range(0, 3_000, 10), None])


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return new_store(tmp_path_factory, MASTER, 2048)


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


# --- a campaign: workers, executors and drivers ---------------------------------------------------


@pytest.fixture(scope="module")
def campaign(tmp_path_factory) -> Faults:
    made = Faults(tmp_path_factory.mktemp("faults") / "campaign", seed=7)
    made.run(kills=5)
    return made


def test_kills_of_every_kind(campaign) -> None:
    """On a cluster in processes of its own, while the master changes. `make faults` does more."""
    found = verdict(campaign.folder, campaign.seed)
    assert found.clean, str(found)
    assert found.rows == campaign.files * campaign.sales > 0
    assert {kill.kind for kill in campaign.kills} == {"worker", "executor", "driver"}
    assert any(kill.batch is not None for kill in campaign.kills), "none hit a micro-batch"
    assert campaign.repeated(), "Spark had to repeat no task"
    assert found.versions > 1


def change(**values: object) -> Callable[[Path], None]:
    """Other values in a row of the first micro-batch that has a match."""

    def damage(folder: Path) -> None:
        rewrite(folder, lambda row: [row | values])

    return damage


def rewrite(folder: Path, replace: Callable[[dict], list[dict]]) -> None:
    log = (folder / "out" / "_spark_metadata" / "0").read_text().splitlines()
    file = folder / "out" / Path(json.loads(log[1])["path"]).name
    table = pq.read_table(file)
    rows = table.to_pylist()
    at = next(i for i, row in enumerate(rows) if row["payload"] is not None)
    rows[at : at + 1] = replace(rows[at])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)


def swap_batches(folder: Path) -> None:
    logs = [folder / "out" / "_spark_metadata" / name for name in "01"]
    first, second = (log.read_text() for log in logs)
    logs[0].write_text(second)
    logs[1].write_text(first)


def forget_a_file(folder: Path) -> None:
    log = folder / "out" / "_spark_metadata" / "1"
    log.write_text("\n".join(log.read_text().splitlines()[:-1]))


def leave_half_a_pin(folder: Path) -> None:
    (folder / "pins" / "half.tmp").touch()
    os.utime(folder / "pins" / "half.tmp", (1, 1))


DAMAGES = {
    "a row is gone": (["lost", "unbalanced"], lambda at: rewrite(at, lambda row: [])),
    "a row twice": (["duplicated", "unbalanced"], lambda at: rewrite(at, lambda row: [row, row])),
    "a row too many": (
        ["extra", "unbalanced"],
        lambda at: rewrite(at, lambda row: [row, row | {"sale": 10**9}]),
    ),
    "another payload": (["wrong"], change(payload="of nobody")),
    "another file's number": (["wrong"], change(file=-1)),
    "another version": (["wrong", "mixed"], change(version=10**6)),
    "rows of another micro-batch": (["unbalanced"], swap_batches),
    "a file that is not committed": (["lost", "unbalanced"], forget_a_file),
    "a file left behind": (["left"], leave_half_a_pin),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_verdict_sees(damage, campaign, tmp_path) -> None:
    for name in ("checkpoint", "out", "pins", "sales", "store"):
        shutil.copytree(campaign.folder / name, tmp_path / name)
    shutil.copy(campaign.folder / "writer.jsonl", tmp_path)
    expected, do = DAMAGES[damage]
    do(tmp_path)
    found = verdict(tmp_path, campaign.seed)
    assert [name for name in FAULTS if getattr(found, name)] == expected
    assert not found.clean
