"""enrich on a master that changes: every micro-batch has one version, also when it is replayed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import semistream as ss
from semistream.spark import enrich
from semistream.testing import assert_same_rows
from tests.helpers.spark_data import PATIENCE, frame, no_job, stream_of, wait_for, write_files
from tests.helpers.stamped_data import KEYS, publish, rows, said, store

__all__ = ["store"]


def test_versions_of_a_batch(spark, store) -> None:
    publish(store, range(50))
    df = frame(spark, pa.table({"id": pa.array([1, 70, 500], pa.int64())}))
    for version, number in ((1, 1), ("latest", 2)):
        ours = enrich(df, store, "id", "left", version=version, version_column="v")
        assert (ours.schema["v"].dataType.typeName(), ours.schema["v"].nullable) == ("long", False)
        if version == "latest":
            publish(store)  # too late for this one
        wanted = [(1, said(1, number), number), (70, said(70, 1), number), (500, None, number)]
        assert_same_rows(ours.toArrow(), wanted)
    opened = ss.Store.open(store, version=1)  # which store, not which version
    assert enrich(df, opened, "id", version_column="v").first().v == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"version": "newest"}, ["'newest'", '"latest"']),
        ({"version": True}, ["True", '"latest"']),
        ({"version": 9}, ["no version 9", "it has 1"]),
        ({"version_column": "id"}, ["'id'", "choose another"]),
        ({"version_column": "NAME"}, ["'NAME'", "'name'", "case"]),
        ({"master": rows(1), "version": 1}, ["version=1", "no versions", "Store.create"]),
        ({"master": rows(1), "version_column": "v"}, ["'v'", "no versions", "Store.create"]),
    ],
)
def test_refused_on_the_driver(spark, store, arguments, words) -> None:
    df = frame(spark, pa.table({"id": pa.array([1], pa.int64())}))
    with no_job(spark, "refused"), pytest.raises(ss.SemiStreamError) as caught:
        enrich(**({"df": df, "master": store, "on": "id"} | arguments))
    for word in words:
        assert word in str(caught.value)


def gate(df: DataFrame, folder: Path) -> DataFrame:
    """The second task waits for the file "go" before it gives its first row."""
    go = str(folder / "go")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        from pyspark import TaskContext

        while TaskContext.get().partitionId() == 1 and not os.path.exists(go):
            time.sleep(0.05)
        yield from batches

    return df.mapInArrow(wait, df.schema)


def fails(df: DataFrame, folder: Path) -> DataFrame:
    """The first task says when it is done; the second one fails at its end, if there is a file
    "fail"."""
    done, fail = str(folder / "done"), str(folder / "fail")

    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 0:
            open(done, "w").close()
        elif os.path.exists(fail):
            raise OSError("fails as it was told to")

    return df.mapInArrow(end, df.schema)


def test_a_micro_batch_has_one_version_also_when_replayed(spark, store, tmp_path) -> None:
    """A version is published while a micro-batch runs, which fails and is replayed after more
    versions, a compaction and an expiry: its rows are of the version it began with. Another master
    in the same query has versions of its own."""
    other = tmp_path / "other"
    ss.Store.create(other, rows(1, name="word"), key="id").close()
    sales = pa.table({"id": pa.array([i % KEYS for i in range(600)], pa.int64())})
    files = write_files(sales, tmp_path / "sales", 2)
    (tmp_path / "fail").touch()

    def start():
        stream = gate(stream_of(spark, files).repartition(2), tmp_path)
        named = enrich(stream, store, "id", version_column="v", pins=tmp_path / "pins")
        both = enrich(named, other, "id", version_column="w", pins=tmp_path / "pins")
        writer = fails(both, tmp_path).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.format("parquet").start(str(tmp_path / "out"))

    query = start()
    try:
        wait_for("the end of the first task", lambda: (tmp_path / "done").exists())
        publish(store)
        (tmp_path / "go").touch()
        with pytest.raises(StreamingQueryException, match="as it was told to"):
            query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    publish(store, range(0, KEYS, 2))
    ss.Store.open(store).compact()
    assert ss.Store.open(store).expire(older_than=0, pins=tmp_path / "pins") == [2, 3]
    (tmp_path / "fail").unlink()
    query = start()
    assert query.awaitTermination(PATIENCE)
    result = spark.read.parquet(str(tmp_path / "out")).toArrow()
    wanted = []
    for i, key in enumerate(sales["id"].to_pylist()):
        version, wrote = (1, 1) if i < 300 else (4, 2 + (key % 2 == 0))
        wanted.append((key, said(key, wrote), version, said(key, 1), 1))
    assert_same_rows(result, wanted)


def test_within_foreach_batch(spark, store, tmp_path) -> None:
    sales = pa.table({"id": pa.array(range(KEYS), pa.int64())})
    files = write_files(sales, tmp_path / "sales", 1)
    found: list[set[int]] = []

    def each(df: DataFrame, batch: int) -> None:
        ours = enrich(df, store, "id", version_column="v", pins=tmp_path / "pins")
        found.append({row.v for row in ours.select("v").distinct().collect()})
        if len(found) == 1:
            raise OSError("after the first")

    def start():
        writer = stream_of(spark, files).writeStream.foreachBatch(each).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="after the first"):
        start().awaitTermination(PATIENCE)
    publish(store)
    assert start().awaitTermination(PATIENCE)
    pq.write_table(sales, files / "more.parquet")
    assert start().awaitTermination(PATIENCE)
    assert found == [{1}, {1}, {2}]


def test_a_stream_follows_a_delta_table(spark, tmp_path) -> None:
    """Also when it gets a column that the query does not know."""
    write_deltalake(tmp_path / "delta", rows(0))
    sales = pa.table({"id": pa.array([3, 500], pa.int64())})
    files = write_files(sales, tmp_path / "sales", 1)
    ours = enrich(
        stream_of(spark, files),
        tmp_path / "delta",
        "id",
        version_column="v",
        pins=tmp_path / "pins",
    )
    writer = ours.writeStream.format("memory").queryName("delta")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        more = rows(1).append_column("more", pa.array(range(KEYS)))
        write_deltalake(tmp_path / "delta", more, mode="overwrite", schema_mode="overwrite")
        pq.write_table(sales, files / "more.parquet")
        query.processAllAvailable()
    finally:
        query.stop()
    assert_same_rows(spark.table("delta").toArrow(), [(3, said(3, 0), 0), (3, said(3, 1), 1)])
    old = enrich(frame(spark, sales), tmp_path / "delta", "id", version=0, version_column="v")
    assert_same_rows(old.toArrow(), [(3, said(3, 0), 0)])


def test_a_store_built_anew_under_a_query(spark, store, tmp_path) -> None:
    sales = pa.table({"id": pa.array(range(KEYS), pa.int64())})
    files = write_files(sales, tmp_path / "sales", 1)
    ours = enrich(stream_of(spark, files), store, "id", pins=tmp_path / "pins")
    writer = ours.writeStream.format("memory").queryName("anew")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        shutil.rmtree(store)
        ss.Store.create(store, rows(1), key="id").close()
        pq.write_table(sales, files / "more.parquet")
        with pytest.raises(StreamingQueryException, match=r"built anew|was rebuilt"):
            query.processAllAvailable()
    finally:
        query.stop()
