"""enrich against Spark's own join: join types, batch and streaming, masters, keys, columns."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.spark import enrich
from semistream.testing import assert_same_rows, oracle
from tests.helpers.spark_data import (
    SPARK_HOWS,
    batches_of,
    frame,
    master_table,
    new_store,
    no_job,
    payload,
    plan_of,
    sales_table,
    setting,
    stream_of,
    write_files,
)

# Duplicates, a NULL; the stream has orphans (100 and up) and NULLs too.
MASTER = master_table([*range(100), *range(0, 100, 3), 7, 7, 7, None, None])
SALES = sales_table(500, [*range(120), 7, 7, 7, None, None])
SMALL = "200kB"  # too little to hold the master whole


_many_batches = batches_of(60)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return new_store(tmp_path_factory, MASTER)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return write_files(SALES, tmp_path_factory.mktemp("stream") / "sales", 3)


def sparks_join(stream: DataFrame, master: DataFrame, on: Any, how: str) -> DataFrame:
    """The same question to Spark: the stream's columns, then the master's without its key."""
    pairs = on if isinstance(on, dict) else {on: on}
    renamed = master.withColumnsRenamed({m: f"master_{m}" for m in pairs.values()})
    same = [stream[s] == renamed[f"master_{m}"] for s, m in pairs.items()]
    return stream.join(renamed, same, how).drop(*(f"master_{m}" for m in pairs.values()))


# --- equal to Spark's own join --------------------------------------------------------------------


@pytest.mark.parametrize("how", SPARK_HOWS)
def test_batch_equals_sparks_join(spark, store, how) -> None:
    stream = frame(spark, SALES)
    ours = enrich(stream, str(store), on="id", how=how, memory_per_task=SMALL)
    sparks = sparks_join(stream, frame(spark, MASTER), "id", how)
    assert ours.columns == sparks.columns
    assert [f.dataType for f in ours.schema] == [f.dataType for f in sparks.schema]
    got = ours.toArrow()
    assert_same_rows(got, sparks.toArrow(), "against Spark")
    assert_same_rows(got, oracle(SALES, MASTER, "id", SPARK_HOWS[how]), "against Python")


@pytest.mark.parametrize("how", SPARK_HOWS)
def test_streaming_equals_sparks_join(spark, store, files, how, tmp_path) -> None:
    """Three micro-batches, into memory or into Parquet."""
    stream = stream_of(spark, files)
    ours = enrich(stream, str(store), on="id", how=how, memory_per_task=SMALL)
    assert ours.isStreaming
    writer = ours.writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    out, memory = str(tmp_path / "out"), f"out_{how}"
    parquet = how in ("left", "left_anti")
    if parquet:
        query = writer.format("parquet").start(out)
    else:
        query = writer.format("memory").queryName(memory).start()
    assert query.awaitTermination(100)
    assert [p["numInputRows"] for p in query.recentProgress] == [167, 167, 166]
    result = spark.read.parquet(out) if parquet else spark.table(memory)
    batch = spark.read.parquet(str(files))
    sparks = sparks_join(batch, frame(spark, MASTER), "id", how)
    assert_same_rows(result.toArrow(), sparks.toArrow(), how)


def test_one_narrow_stage(spark, store) -> None:
    """No shuffle, no broadcast, no join of Spark's; and nothing runs before the result is used."""
    stream = frame(spark, SALES)
    with no_job(spark, "planning"):
        ours = enrich(stream, str(store), on="id")
        plan = plan_of(ours)
    assert plan.count("MapInArrow") == 1
    assert not any(word in plan for word in ("Exchange", "Broadcast", "Join", "Aggregate", "Sort"))


def test_two_enrichments_in_a_row(spark, store) -> None:
    second = pa.table({"sale": pa.array(range(0, 500, 2)), "channel": ["web"] * 250})
    once = enrich(frame(spark, SALES), str(store), on="id", memory_per_task=SMALL)
    twice = enrich(once, second, on="sale", how="left")
    expected = [
        (*row, "web" if row[0] % 2 == 0 else None) for row in oracle(SALES, MASTER, "id", "inner")
    ]
    assert_same_rows(twice.toArrow(), expected)


# --- masters --------------------------------------------------------------------------------------


def _parquet(path: Path, count: int) -> Path:
    if count > 1:
        return write_files(MASTER, path / "folder", count)
    pq.write_table(MASTER.sort_by("id"), path / "m.parquet", row_group_size=30)
    return path / "m.parquet"


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [
        (lambda store, _: str(store), "inlj"),
        (lambda store, _: store, "meshjoin"),
        (lambda store, _: ss.Store.open(store), "sweepjoin"),
        (lambda store, _: ss.Store.open(store, io="pread"), "memory"),
        (lambda _, path: _parquet(path, 1), "sweepjoin"),
        (lambda _, path: str(_parquet(path, 3)), "meshjoin"),
        (lambda *_: MASTER, "auto"),
        (lambda *_: MASTER.combine_chunks().to_batches()[0], "sweepjoin"),
    ],
)
def test_every_kind_of_master(spark, store, tmp_path, make, algorithm) -> None:
    master = make(store, tmp_path)
    ours = enrich(
        frame(spark, SALES), master, on="id", how="left", memory_per_task="2MB", algorithm=algorithm
    )
    assert_same_rows(ours.toArrow(), oracle(SALES, MASTER, "id", "left"))


@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_a_master_rebuilt_in_its_place_is_read_again(spark, tmp_path, kind) -> None:
    """Workers keep a join between jobs; it must not outlive the files that it was opened on."""
    path, stream = tmp_path / kind, frame(spark, pa.table({"id": [1, 2, 3]}))
    for name in ("first", "second, longer"):
        table = pa.table({"id": [1, 2], "name": [name, name]})
        if kind == "store":
            shutil.rmtree(path, ignore_errors=True)
            ss.Store.create(path, table, key="id").close()
        else:
            pq.write_table(table, path)
        for _ in range(3):  # often enough to meet every worker that there is
            got = enrich(stream, path, on="id", columns=["name"]).toArrow()
            assert_same_rows(got, [(1, name), (2, name)], name)


# --- keys -----------------------------------------------------------------------------------------

_DAYS = [dt.date(1969, 7, 20) + dt.timedelta(days=1000 * i) for i in range(30)]
_TIMES = [dt.datetime(1969, 12, 31, 23) + dt.timedelta(hours=i, microseconds=i) for i in range(30)]
_KEYS: dict[str, pa.Array] = {
    "int": pa.array(range(-10, 20), pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, *range(28)], pa.int64()),
    "byte": pa.array(range(100, 128), pa.int8()),
    "string": pa.array(["", "ä", "long" * 20, *map(str, range(27))]),
    "binary": pa.array([b"", b"\0", b"\xff" * 40, *map(bytes, range(1, 28))]),
    "date": pa.array(_DAYS),
    "timestamp": pa.array(_TIMES, pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array(_TIMES, pa.timestamp("us")),
    "decimal": pa.array([Decimal(i).scaleb(-2) for i in range(-9, 21)], pa.decimal128(12, 2)),
    "bool": pa.array([True]),
}


def _keyed(name: str, *columns: str) -> tuple[pa.Table, pa.Table]:
    """(stream, master) with these key columns: half of the keys are in the master, some of them
    twice, NULLs are on both sides."""
    keys = [pa.concat_arrays([_KEYS[c], pa.nulls(2, _KEYS[c].type), _KEYS[c]]) for c in columns]
    size = min(map(len, keys))
    stream = {f"k{i}": key[:size] for i, key in enumerate(keys)} | {"row": pa.array(range(size))}
    part = [pa.concat_arrays([key[: size // 4], key[size // 5 : size // 2]]) for key in keys]
    master = {f"{name}{i}": key for i, key in enumerate(part)}
    return pa.table(stream), pa.table(master | {"text": [f"m{i}" for i in range(len(part[0]))]})


@pytest.mark.parametrize(
    "columns", [*((c,) for c in _KEYS), ("string", "int"), ("date", "long", "binary")], ids="+".join
)
def test_key_types(spark, tmp_path, columns) -> None:
    """Names on the two sides differ, and so does the order of the master's key columns."""
    sales, master = _keyed("m", *columns)
    names = [f"m{i}" for i in range(len(columns))]
    ss.Store.create(tmp_path / "store", master, key=names[::-1], page_bytes=256).close()
    on = {f"k{i}": name for i, name in enumerate(names)}
    stream = frame(spark, sales)
    got = enrich(stream, tmp_path / "store", on=on, how="left", memory_per_task=SMALL).toArrow()
    assert_same_rows(got, oracle(sales, master, on, "left"), "against Python")
    sparks = sparks_join(stream, frame(spark, master), on, "left")
    assert_same_rows(got, sparks.toArrow(), "against Spark")


def test_narrower_and_wider_keys_meet(spark) -> None:
    stream = pa.table({"k": pa.array([1, 2, 300, 2**40, None], pa.int64())})
    for kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint64(), pa.decimal128(20, 2)):
        master = pa.table({"k": pa.array([1, 2, 100], kind), "name": ["one", "two", "more"]})
        got = enrich(frame(spark, stream), master, on="k").toArrow()
        assert_same_rows(got, [(1, "one"), (2, "two")], str(kind))


def test_time_zones_are_only_a_way_to_print(spark) -> None:
    table = pa.table({"at": pa.array(_TIMES, pa.timestamp("us", "UTC")), "i": pa.array(range(30))})
    master = pa.table({"at": table["at"].cast(pa.timestamp("us", "Asia/Tokyo")), "j": table["i"]})
    master = master.append_column("when", master["at"])
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        rows = enrich(frame(spark, table), master, on="at").selectExpr("i", "j", "at = when")
        assert_same_rows(rows.toArrow(), [(i, i, True) for i in range(30)])


# --- columns --------------------------------------------------------------------------------------


def test_projection(spark, store) -> None:
    stream = frame(spark, SALES)
    for columns in (["name"], ["price", "name"], []):
        ours = enrich(stream, str(store), on="id", columns=columns, memory_per_task=SMALL)
        assert ours.columns == ["sale", "id", "note", *columns]
        assert_same_rows(ours.toArrow(), oracle(SALES, MASTER, "id", "inner", columns))


def test_names_that_clash(spark, store) -> None:
    stream = frame(spark, SALES.rename_columns(["sale", "id", "name"]))
    with no_job(spark, "clash"), pytest.raises(ss.SpecError, match=r"'name'.*suffix="):
        enrich(stream, str(store), on="id")
    ours = enrich(stream, str(store), on="id", suffix="_master")
    assert ours.columns == ["sale", "id", "name", "name_master", "price"]
    assert_same_rows(ours.toArrow(), oracle(SALES, MASTER, "id", "inner"))
    for how in ("left_semi", "left_anti"):
        assert enrich(stream, str(store), on="id", how=how).columns == stream.columns


def test_nested_columns_of_the_stream_pass_through(spark) -> None:
    stream = spark.sql(
        "select id, array(id, null) a, named_struct('x', id, 'y', null) s, map('k', id) m, "
        "interval 1 day i, cast(null as void) v, id % 2 = 0 b from range(0, 20, 1, 2)"
    )
    master = master_table([*range(0, 20, 2)])
    got = enrich(stream, master, on="id", how="left", columns=["name"]).collect()
    expected = [(*row, payload(row.id) if row.id % 2 == 0 else None) for row in stream.collect()]
    assert sorted(map(repr, map(tuple, got))) == sorted(map(repr, map(tuple, expected)))
