"""The join that lives in Spark's workers: warm from one micro-batch to the next, and clean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from semistream.spark import enrich
from semistream.spark.task.joins import POOL
from semistream.testing import assert_same_rows, oracle
from tests.helpers.spark_data import (
    PAYLOAD_SQL,
    frame,
    master_table,
    new_store,
    python_workers,
    sales_table,
    setting,
    stream_of,
    task_of,
    warm_joins,
    write_files,
)

KEYS = 2_000
COUNTERS = ("rows_in", "front_hits", "waiting", "peak_bytes", "budget_bytes")
MEMORY = "250kB"  # less than the master, so that rows wait and pages are read


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return str(new_store(tmp_path_factory, master_table([*range(KEYS)]), 1024))


def look(spark: SparkSession, store: str) -> list[Any]:
    """Counters of every task that the warm joins of this store answered since the first look. A
    look leaves a mark on each join; what has no mark was not there last time."""

    def visit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from semistream.spark.task.joins import POOL

        def mark(join: Any) -> None:
            join.seen, join.before, forget = [], join.stats, join.reset

            def reset() -> None:  # counters run on over tasks: keep what this task added
                now, before = join.stats, join.before
                rows, hits = now.rows_in - before.rows_in, now.front_hits - before.front_hits
                join.seen.append(replace(now, rows_in=rows, front_hits=hits))
                join.before = now
                forget()

            join.reset = reset

        for _ in batches:
            pass
        for join in [living.join for living in POOL.living.values()]:
            if join is not None and join.master.describe().name == store:
                if not hasattr(join, "seen"):
                    mark(join)
                rows = [{n: getattr(s, n) for n in COUNTERS} for s in join.seen]
                join.seen.clear()
                if rows:
                    yield pa.RecordBatch.from_pylist(rows)

    schema = ", ".join(f"{name} long" for name in COUNTERS)
    every = spark.range(0, 16, 1, 16)  # tasks take workers in turn: enough to meet every one
    return every.mapInArrow(visit, schema).collect()


def test_the_join_stays_warm_between_micro_batches(spark, store, tmp_path, monkeypatch) -> None:
    """Keys of the first micro-batch are answered from memory in later ones, by the same join."""
    # Another environment, other workers: joins of other tests would share the memory.
    monkeypatch.setitem(spark.sparkContext.environment, "TEST_POOL", tmp_path.name)
    table = master_table([*range(KEYS)])
    keys = pa.array([i % 50 for i in range(400)], pa.int64())  # each often enough to be kept
    first = sales_table(400, [0]).set_column(1, "id", keys)
    folder = write_files(first, tmp_path / "sales", 2)
    ours = enrich(
        stream_of(spark, folder), store, on="id", algorithm="sweepjoin", memory_per_task=MEMORY
    )
    writer = ours.writeStream.format("memory").queryName("warm")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert look(spark, store) == []
        rounds = len(python_workers()) + 2  # a task may get any worker: enough to come round
        later = first.slice(0, 50)
        for i in range(rounds):
            pq.write_table(later, folder / f"later-{i}.parquet")
        query.processAllAvailable()
        tasks = look(spark, store)
    finally:
        query.stop()
    ran = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(ran) == 2 + rounds, "a file each; a query that idles reports progress, too"
    assert tasks, "no join of the first micro-batches was there in the later ones"
    for task in tasks:
        assert task.rows_in == task.front_hits == len(later)
        assert task.waiting == 0
        assert task.peak_bytes <= task.budget_bytes
    expected = oracle(first, table, "id", "inner") + rounds * oracle(later, table, "id", "inner")
    assert_same_rows(spark.table("warm").toArrow(), expected)


@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin"])
def test_an_abandoned_task_leaves_nothing_behind(spark, store, algorithm) -> None:
    """limit(1) gives a task up while rows wait and output is unread."""
    rows = 8_000
    stream = spark.range(0, rows, 1, 2).selectExpr("id as sale", f"id * 7 % {KEYS + 500} as id")
    right = f"name <=> if(id < {KEYS}, {PAYLOAD_SQL}, null)"
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", 500):
        ours = enrich(
            stream, store, on="id", how="left", memory_per_task=MEMORY, algorithm=algorithm
        )
        assert len(ours.limit(1).collect()) == 1
        counts = ours.selectExpr("count(*)", "count(distinct sale)", f"count_if(not ({right}))")
        assert tuple(counts.head()) == (rows, rows, 0)


@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "inlj", "memory"])
@pytest.mark.parametrize("stop", ["closed", "failed"])
def test_a_task_that_stops_half_way_in_this_process(store, algorithm, stop) -> None:
    """The next task finds the same join, empty; after an error a new one. Without Spark."""
    sales, table = sales_table(4_000, [*range(KEYS + 500), None]), master_table([*range(KEYS)])
    batches = sales.to_batches(max_chunksize=700)
    task = task_of(store, algorithm=algorithm)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches[:3]
        raise OSError("the input broke off")

    try:
        half = task(failing() if stop == "failed" else iter(batches))
        if stop == "failed":
            with pytest.raises(OSError, match="broke off"):
                list(half)
        else:
            next(half)
            half.close()
        before = warm_joins()
        assert [join.stats.waiting for join in before] == ([0] if stop == "closed" else [])
        assert_same_rows(list(task(iter(batches))), oracle(sales, table, "id", "left"))
        assert warm_joins() == before or stop == "failed", "a new join was made"
    finally:
        POOL.drop(warm_joins())


def test_queries_take_turns(spark, store, tmp_path) -> None:
    """Two questions to one master in the same workers do not get each other's rows."""
    table = master_table([*range(KEYS)])
    sales = sales_table(300, [*range(0, 2 * KEYS, 7), None])
    stream = frame(spark, sales)
    for _ in range(2):
        for how, oracles in (("left", "left"), ("left_semi", "semi"), ("left_anti", "anti")):
            ours = enrich(stream, store, on="id", how=how, columns=["name"], memory_per_task=MEMORY)
            expected = oracle(sales, table, "id", oracles, ["name"])
            assert_same_rows(ours.toArrow(), expected, how)
