"""Columns of a stream leave with the names and the Spark types that they came with; any names that
Spark has can be joined, built and changed; collated keys are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import semistream as ss
from semistream.spark import (
    Dimension,
    build_store,
    delete_from_store,
    enrich,
    into_delta,
    upsert_store,
)
from semistream.testing import assert_same_rows
from tests.helpers.spark_data import no_job, setting

MASTER = pa.table({"id": range(5), "name": [f"name {i}" for i in range(5)]})
STRANGE = ["a.b", "e`f", "x", "X", "", "*", "ID", "c0", "with space", "x"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    ss.Store.create(tmp_path / "store", MASTER, key="id").close()
    return tmp_path / "store"


def numbered(spark: SparkSession, names: list[str], ids: range = range(3)) -> DataFrame:
    """A column `id`, then these, each with other values."""
    df = spark.range(ids.start, ids.stop, 1, 1)
    more = [(F.col("id") * 100 + i).alias(f"n{i}") for i in range(len(names))]
    return df.select("id", *more).toDF("id", *names)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["none", "key"])
def test_strange_names_in_a_stream(spark, store, shuffle) -> None:
    stream = numbered(spark, STRANGE)
    once = enrich(stream, store, on="id", shuffle=shuffle)
    assert once.columns == ["id", *STRANGE, "name"]
    expected = [(k, *(k * 100 + i for i in range(len(STRANGE))), f"name {k}") for k in range(3)]
    assert_same_rows([tuple(row) for row in once.collect()], expected)


def test_strange_keys_and_names_in_masters(spark, tmp_path) -> None:
    """A chain in one call, and two calls; names that differ in case only are refused where they
    would be new."""
    master = MASTER.rename_columns(["the.key", "its`name"])
    stream = numbered(spark, ["a.b"]).withColumnRenamed("id", "k.1")
    ss.Store.create(tmp_path / "store", master, key="the.key").close()
    names = pa.table({"its`name": ["name 1", "name 2"], "n.n": [1, 2]})
    both = [Dimension(tmp_path / "store", on={"k.1": "the.key"}), Dimension(names, on="its`name")]
    expected = [(k, k * 100, f"name {k}", k) for k in (1, 2)]
    assert_same_rows([tuple(row) for row in enrich(stream, both).collect()], expected)
    first = enrich(stream, tmp_path / "store", on={"k.1": "the.key"})
    assert first.columns == ["k.1", "a.b", "its`name"]
    second = enrich(first, names, on="its`name")
    assert_same_rows([tuple(row) for row in second.collect()], expected)
    clash = pa.table({"id": [1], "A.B": [1]})
    with no_job(spark, "case"), pytest.raises(ss.SpecError, match=r"'a\.b' and 'A\.B'.*case"):
        enrich(stream, clash, on={"k.1": "id"})
    with setting(spark, "spark.sql.caseSensitive", "true"):
        assert enrich(stream, clash, on={"k.1": "id"}).columns == ["k.1", "a.b", "A.B"]


def test_strange_names_in_stores(spark, tmp_path) -> None:
    """Built, upserted in another order of columns, deleted by key; with codes made in SQL and in
    tasks."""
    names = [*STRANGE[:-1], "__SEMISTREAM_CODE"]
    keys = {"id": lambda k: k, "text.key": lambda k: f"key {k}"}

    def table(key: str, ids: range) -> DataFrame:
        """Its key is the last column."""
        df = numbered(spark, [str(i) for i in range(len(names))], ids)
        coded = F.concat(F.lit("key "), "id") if key != "id" else F.col("id")
        df = df.withColumn("key", coded).drop("id")
        return df.toDF(*names, key)

    for key, value in keys.items():
        path = tmp_path / key
        build_store(table(key, range(3)), path, key=key, partitions=2).close()
        more = table(key, range(1, 4))
        turned = more.toDF(*map(str, range(len(more.columns))))
        turned = turned.select(*turned.columns[::-1]).toDF(*more.columns[::-1])
        upsert_store(turned, path, partitions=2).close()
        gone = delete_from_store(table(key, range(2, 3)), path, partitions=1)
        assert gone.describe().schema.names == [*names, key]
        rows = [tuple(row.values()) for batch in gone.batches() for row in batch.to_pylist()]
        expected = [(*(k * 100 + i for i in range(len(names))), value(k)) for k in (0, 1, 3)]
        assert_same_rows(rows, expected)


def test_names_that_a_delta_table_cannot_have(spark, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match=r"\['x', 'X'\].*ignores case; rename"):
        into_delta(tmp_path / "delta", writer="w")(numbered(spark, ["x", "X"]), 0)
    for column, words in (
        ("interval '1' day", "Invalid data type"),
        ("array(parse_json('1'))", "type variant.*cast"),
    ):
        with pytest.raises(ss.SpecError, match=words):
            into_delta(tmp_path / "delta", writer="w")(spark.sql(f"select {column} v"), 0)
    assert not (tmp_path / "delta").exists()


def test_named_columns_are_found_by_position(spark, store) -> None:
    wanted = "`a.b` bigint, X bigint, id bigint"
    joined = enrich(numbered(spark, ["x", "X", "a.b"]), store, on="id", stream_schema=wanted)
    assert_same_rows(
        [tuple(r) for r in joined.where("id = 1").collect()], [(102, 101, 1, "name 1")]
    )


# --- types ----------------------------------------------------------------------------------------


def typed(spark: SparkSession) -> DataFrame:
    """A row of types of which Arrow does not know everything."""
    row = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0]))], ["id", "vector"]).coalesce(1)
    typed = row.selectExpr(
        "id", "vector", "'A' collate UTF8_LCASE text", "array('A' collate UNICODE_CI) texts",
        "map('k' collate UTF8_LCASE, named_struct('a.b', 'v' collate UTF8_LCASE)) nested",
        "interval '1' day i", "interval '1' hour j", "interval '1:02' minute to second s",
        "cast(null as string) void", "parse_json('{\"a\":1}') v", "array(1, 2) numbers",
    )  # fmt: skip
    return typed.withMetadata("id", {"comment": "hello"})


def test_types_stay(spark, store) -> None:
    """With nullability and metadata; values too; after two joins, one of them shuffled and with
    columns by position."""
    stream = typed(spark)
    once = enrich(stream, store, on="id")
    strange = once.withColumnRenamed("name", "the.name")
    twice = enrich(strange, store, on="id", shuffle="key", partitions=1)
    for joined in (once, twice):
        kept = joined.schema.fields[: len(stream.columns)]
        assert kept == stream.schema.fields
        assert [field.metadata for field in kept] == [f.metadata for f in stream.schema.fields]
    shown = [repr(tuple(row)[: len(stream.columns)]) for row in twice.collect()]
    assert shown == [repr(tuple(row)) for row in stream.collect()]
    same = "text = 'a' and array_contains(texts, 'a') and nested['K'].`a.b` = 'V'"
    assert twice.where(same).count() == 1


def test_a_watermark_stays(spark, store) -> None:
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    joined = enrich(rate, store, on={"value": "id"})
    assert joined.schema.fields[:2] == rate.schema.fields
    assert joined.schema["timestamp"].metadata == {"spark.watermarkDelayMs": 5000}


@pytest.mark.parametrize("kind", ["interval '1' year", "make_interval(1, 2, 3)"])
def test_types_that_cannot_travel(spark, store, tmp_path, kind) -> None:
    df = spark.sql(f"select 1L id, {kind} span")
    for call in (
        lambda: enrich(df, store, on="id"),
        lambda: build_store(df, tmp_path / "new", key="id"),
    ):
        with no_job(spark, "type"), pytest.raises(ss.SpecError, match=r"'span' is interval.*cast"):
            call()


def test_collated_keys_are_refused(spark, tmp_path) -> None:
    """On both sides, whatever the collation; as values they may be anywhere, and a cast helps."""
    path = tmp_path / "text"
    plain = spark.sql("select 'a' k, 'A' collate UTF8_LCASE v")
    build_store(plain, path, key="k").close()
    for collation in ("UTF8_LCASE", "UNICODE", "UTF8_BINARY_RTRIM"):
        df = spark.sql(f"select 'A' collate {collation} k, 'v' v")
        for call in (
            lambda df=df: enrich(df.select("k"), path, on="k"),
            lambda df=df: build_store(df, tmp_path / "new", key="k"),
            lambda df=df: upsert_store(df, path),
            lambda df=df: upsert_store(df, tmp_path / "new", key="k"),
            lambda df=df: delete_from_store(df, path),
        ):
            with no_job(spark, "collation"), pytest.raises(ss.KeyTypeError) as caught:
                call()
            assert f"'k' is a string with the collation {collation}," in str(caught.value)
            assert '.cast("string")' in str(caught.value)
    lower = spark.sql("select cast(lower('A' collate UTF8_LCASE) as string) k")
    assert enrich(lower, path, on="k").count() == 1
    later = enrich(spark.range(1), pa.table({"id": [0], "k": ["a"]}), on="id")
    assert enrich(later, path, on="k").count() == 1
    assert not (tmp_path / "new").exists()
    assert isinstance(plain.schema["v"].dataType, T.StringType)
