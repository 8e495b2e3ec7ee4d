"""build_store: a DataFrame becomes a store in Spark's tasks, whole or not at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import semistream as ss
from semistream.spark import build_store, enrich
from semistream.testing import assert_same_rows, check_master, oracle
from semistream.testing.rows import keys_of
from tests.helpers.spark_data import batches_of, frame, no_job, sales_table, setting

ROWS = 400


_many_batches = batches_of(70)  # a shard is written in many pieces


@pytest.fixture(scope="module")
def rows(spark) -> DataFrame:
    """Every key type, with duplicates and NULLs, in three partitions."""
    return spark.sql(f"""
        select id as nr,
            if(id % 10 = 3, null, id * 7919 % 301 - 150) as whole,
            cast(if(id % 10 = 4, null, id % 90) as tinyint) as small,
            if(id % 10 = 5, null, concat('key ', id * 31 % 211)) as text,
            cast(if(id % 10 = 5, null, concat('key ', id * 31 % 211)) as binary) as bytes,
            if(id % 10 = 6, null, date_add(date'1969-12-01', cast(id % 97 as int))) as day,
            if(id % 10 = 7, null, timestamp_micros(id * 977 % 89 - 40)) as at,
            cast(if(id % 10 = 8, null, timestamp_micros(id % 83 - 40)) as timestamp_ntz) as naive,
            cast(id % 71 as decimal(10, 2)) as amount,
            if(id % 3 = 0, null, array(id, null)) as many,
            repeat('x', cast(id % 40 as int)) as filler
        from range(0, {ROWS}, 1, 3)""")


def files_under(path: Path) -> list[str]:
    return sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())


def check_files(store: ss.Store) -> None:
    """A manifest, an index and the shards; nothing else is left of the build."""
    run = store.manifest.runs[0]
    names = [f"data/{run.id}.index", *(f"data/{s.name}" for s in run.shards)]
    names += ["manifests/00000001.json", f"newest/00000001.{store.manifest.id}"]
    assert files_under(store.place.root) == sorted(names)


def keys_by_shard(store: ss.Store) -> list[set[tuple[object, ...]]]:
    """The keys in each file, read as any Arrow tool would."""
    found = []
    for shard in store.manifest.runs[0].shards:
        with pa.memory_map(str(store.place.root / "data" / shard.name)) as source:
            keys = keys_of(pa.ipc.open_file(source).read_all(), store.manifest.key)
        found.append({key for key in keys if None not in key})
    return found


# --- content --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["whole", "small", "text", "bytes", "day", "at", "naive", "amount", ["text", "day"]],
    ids=str,
)
def test_content(spark, rows, tmp_path, key) -> None:
    """All rows are there, found by key, and no key is in two shards."""
    store = build_store(rows, tmp_path / "store", key=key, partitions=3, page_bytes=1024)
    table = rows.toArrow().cast(store.describe().schema)
    assert store.describe().rows == ROWS
    assert store.verify() == store.describe().pages > 3
    check_master(store, table, key)
    check_files(store)
    shards = keys_by_shard(store)
    assert len(shards) == 3
    assert max(Counter(k for keys in shards for k in keys).values()) == 1


def test_the_number_of_shards_may_be_left_to_spark(spark, rows, tmp_path) -> None:
    store = build_store(rows, tmp_path / "store", "nr")
    assert ss.Store.open(tmp_path / "store").verify() == store.describe().pages
    assert store.describe().unique
    assert_same_rows(store.batches(), rows.toArrow().cast(store.describe().schema))


def test_a_hot_key_stays_together(spark, tmp_path) -> None:
    """Nine of ten rows have one key: its pages are many, its shard is one, all of it is found."""
    hot = spark.range(0, 3_000, 1, 3).selectExpr("if(id % 10 > 0, 7, id) as k", "id as nr")
    store = build_store(hot, tmp_path / "store", key="k", partitions=4, page_bytes=512)
    assert store.verify() > 50
    assert not store.describe().unique
    assert sum((7,) in keys for keys in keys_by_shard(store)) == 1
    found = store.lookup(pa.record_batch({"k": pa.array([7, 10, 11], pa.int64())}))
    assert_same_rows(found, [(7, i) for i in range(3_000) if i % 10] + [(10, 10)])


@pytest.mark.parametrize("kind", ["long", "string"])
def test_without_keys(spark, tmp_path, kind) -> None:
    """No rows at all; and rows of which none has a key."""
    stream = frame(spark, sales_table(20, [1, None])).selectExpr(f"cast(id as {kind}) id", "sale")
    for count in (0, 500):
        nothing = spark.range(0, count, 1, 2).selectExpr(f"cast(null as {kind}) as id", "id as nr")
        store = build_store(nothing, tmp_path / f"store{count}", key="id", partitions=2)
        assert store.describe().rows == count
        assert (store.verify() > 0) == (count > 0)
        check_files(store)
        assert enrich(stream, store, on="id").count() == 0
        assert enrich(stream, store, on="id", how="left_anti").count() == 20


def test_built_and_read_in_spark(spark, tmp_path) -> None:
    """The way from a DataFrame to an enriched DataFrame, never leaving Spark."""
    products = spark.range(0, 1_000, 1, 3).selectExpr("id", "concat('name ', id) as name")
    build_store(products, tmp_path / "store", key="id", partitions=3, page_bytes=1024)
    sales = sales_table(600, [*range(1_200), None])
    ours = enrich(
        frame(spark, sales), tmp_path / "store", on="id", how="left", memory_per_task="100kB"
    )
    assert_same_rows(ours.toArrow(), oracle(sales, products.toArrow(), "id", "left"))


def test_a_session_elsewhere_builds_the_same(spark, rows, tmp_path) -> None:
    """Zone and width of strings are settings of the session, not of the data."""
    expected = rows.toArrow()
    with (
        setting(spark, "spark.sql.session.timeZone", "Asia/Tokyo"),
        setting(spark, "spark.sql.execution.arrow.useLargeVarTypes", "true"),
    ):
        store = build_store(rows, tmp_path / "store", key=["at", "text"], partitions=2)
    assert store.verify() > 0
    assert_same_rows(store.batches(), expected.cast(store.describe().schema))


# --- refusals and failures ------------------------------------------------------------------------


def test_an_existing_store_is_refused(spark, rows, tmp_path) -> None:
    ss.Store.create(tmp_path / "store", pa.table({"nr": [1]}), key="nr").close()
    before = files_under(tmp_path / "store")
    with no_job(spark, "exists"), pytest.raises(ss.StoreError, match="is a store already"):
        build_store(rows, tmp_path / "store", key="nr")
    assert files_under(tmp_path / "store") == before


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("missing", ss.SpecError, ["'missing'", "'nr'"]),
        ([], ss.SpecError, ["no columns"]),
        ("real", ss.KeyTypeError, ["'real'", "double", "floating"]),
        ("many", ss.KeyTypeError, ["'many'", "list"]),
    ],
)
def test_a_bad_key_is_refused_on_the_driver(spark, tmp_path, key, error, words) -> None:
    df = spark.range(3).selectExpr("id as nr", "cast(id as double) as real", "array(id) as many")
    with no_job(spark, "key"), pytest.raises(error) as caught:
        build_store(df, tmp_path / "store", key=key)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_failing_task_leaves_nothing(spark, tmp_path) -> None:
    """And the same path works once the cause is gone."""

    @F.udf("long")
    def picky(nr: int) -> int:
        if nr == 77:
            raise ValueError("row 77 is not to my taste")
        return nr

    bad = spark.range(0, 200, 1, 2).select(picky("id").alias("id"))
    with pytest.raises(Exception, match="not to my taste"):
        build_store(bad, tmp_path / "store", key="id")
    assert files_under(tmp_path) == []
    with pytest.raises(ss.StoreError, match="not a store"):
        ss.Store.open(tmp_path / "store")
    store = build_store(spark.range(200), tmp_path / "store", key="id")
    assert store.describe().rows == 200


def test_someone_else_was_faster(spark, tmp_path) -> None:
    """A store that appears while ours is built stays as it is, and ours leaves nothing."""
    path = str(tmp_path / "store")

    def rival(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import semistream

        for batch in batches:
            semistream.Store.create(path, pa.table({"other": [5]}), key="other").close()
            yield batch

    slow = spark.range(0, 20, 1, 1).coalesce(1).mapInArrow(rival, "id long").localCheckpoint(False)
    with pytest.raises(ss.StoreError, match="published by someone else"):
        build_store(slow, path, key="id", partitions=1)
    store = ss.Store.open(path)
    check_files(store)
    assert_same_rows(store.batches(), [(5,)])


def test_progress(spark, tmp_path) -> None:
    """Called while the job runs, with what was written and how long it took."""
    called = tmp_path / "called"
    name, calls = str(called), []

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        yield from batches
        for _ in range(200):
            if os.path.exists(name):
                return
            time.sleep(0.1)

    def report(count: int, seconds: float) -> None:
        calls.append((count, seconds))
        called.touch()

    slow = spark.range(0, 100, 1, 1).mapInArrow(wait, "id long")
    store = build_store(slow, tmp_path / "store", "id", progress=report)
    assert store.describe().rows == 100
    assert called.exists()
    assert all(count >= 0 and seconds > 0 for count, seconds in calls)


def test_progress_as_a_line(spark, tmp_path, capsys) -> None:
    store = build_store(spark.range(100), os.fspath(tmp_path / "b"), "id", progress=True)
    assert store.describe().rows == 100
    line = capsys.readouterr().err
    assert line == "" or "building the store" in line  # a fast build has nothing to say
