"""The join that lives in Spark's workers: warm from one micro-batch to the next, and clean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from spark_data import (
    PAYLOAD_SQL,
    frame,
    master_table,
    sales_table,
    setting,
    stream_of,
    write_files,
)

import semistream as ss
from semistream.spark import enrich
from semistream.spark.worker import _WARM, EnrichTask
from semistream.testing import assert_same_rows, oracle

KEYS = 2_000
MEMORY = "250kB"  # less than the master, so that rows wait and pages are read


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("master") / "store"
    ss.Store.create(path, master_table([*range(KEYS)]), key="id", page_bytes=1024).close()
    return str(path)


def warm_joins(spark: SparkSession, store: str) -> dict[int, dict[str, Any]]:
    """What every Python worker has about this store: process -> counters of its warm join."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from semistream.spark.worker import _WARM

        for _ in batches:
            pass
        stats = [j.stats for j in _WARM.values() if j.master.describe().name == store]
        names = ("rows_in", "front_hits", "waiting", "peak_bytes", "budget_bytes")
        rows = [{"pid": os.getpid(), **{n: getattr(s, n) for n in names}} for s in stats]
        if rows:
            yield pa.RecordBatch.from_pylist(rows)

    kind = "pid long, rows_in long, front_hits long, waiting long, peak_bytes long, "
    found = {}
    for _ in range(2):  # tasks take workers in turn: often enough to meet every one
        rows = spark.range(0, 8, 1, 8).mapInArrow(look, kind + "budget_bytes long").collect()
        found |= {row.pid: row.asDict() for row in rows}
    return found


def test_the_join_stays_warm_between_micro_batches(spark, store, tmp_path) -> None:
    """Every row of the query was taken in by a join that is still there: so none was made anew for
    a micro-batch, and keys of the first one were answered from memory in the later ones."""
    batches, rows = 4, 1_200
    sales = sales_table(rows, [*range(100)])
    folder = write_files(sales, tmp_path / "sales", batches)
    ours = enrich(
        stream_of(spark, folder), store, on="id", algorithm="sweepjoin", memory_per_task=MEMORY
    )
    writer = ours.writeStream.format("memory").queryName("warm").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(60)
    assert len(query.recentProgress) == batches
    table = master_table([*range(KEYS)])
    assert_same_rows(spark.table("warm").toArrow(), oracle(sales, table, "id", "inner"))
    joins = warm_joins(spark, store)
    assert sum(join["rows_in"] for join in joins.values()) == rows
    assert len(joins) < batches, "as many joins as micro-batches: none was used twice"
    assert sum(join["front_hits"] for join in joins.values()) >= rows / batches
    assert all(join["peak_bytes"] <= join["budget_bytes"] for join in joins.values())


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
    """The same without Spark: the next task finds the same join, empty."""
    sales, table = sales_table(4_000, [*range(KEYS + 500), None]), master_table([*range(KEYS)])
    batches = sales.to_batches(max_chunksize=700)
    locator = ss.Store.open(store).locator()
    on, memory = [("id", "id")], 1_000_000
    task = EnrichTask(locator, on, "left", None, None, memory, algorithm)

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
        (join,) = _WARM.values()
        assert join.stats.waiting == 0
        assert_same_rows(list(task(iter(batches))), oracle(sales, table, "id", "left"))
        assert list(_WARM.values()) == [join], "a new join was made"
    finally:
        while _WARM:
            _WARM.popitem()[1].close()


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
