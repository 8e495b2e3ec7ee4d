"""A store changed from Spark: the same as changed here, from batches and from streams, once."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import semistream as ss
from semistream.master.store import format as fmt
from semistream.spark import (
    append_to_store,
    build_store,
    change,
    delete_from_store,
    enrich,
    upsert_into,
    upsert_store,
)
from semistream.spark.schema import spark_type
from semistream.spark.task.write import CodeTask, ShardTask, _whole_codes
from semistream.testing import assert_same_rows, check_master
from tests.helpers.spark_data import PATIENCE, batches_of, frame, no_job, stream_of, write_files

FROM_SPARK = {"upsert": upsert_store, "append": append_to_store, "delete": delete_from_store}
KEY_TYPES = {
    "int64": (pa.int64(), lambda i: i),
    "uint32": (pa.uint32(), lambda i: i),
    "date64": (pa.date64(), lambda i: i * 86_400_000),
    "string": (pa.large_string(), lambda i: f"key {i}"),
}


_many_batches = batches_of(7)  # the rows of a key come in several of them


def table(keys: list[int | None], kind: str, word: str) -> pa.Table:
    t, value = KEY_TYPES[kind]
    ids = pa.array([None if k is None else value(k) for k in keys], t)
    part = pa.array([None if k is None else k % 3 for k in keys], pa.int16())
    names = [f"{word} {i}" for i in range(len(keys))]
    return pa.table({"id": ids, "part": part, "name": names})


def files_of(path: Path) -> set[str]:
    return {file.name for file in (path / "data").iterdir()}


def check_tidy(store: ss.Store) -> None:
    """Every file belongs to a version; nothing is left of the tasks."""
    named = set()
    for version in fmt.versions(store.place):
        named |= {f for run in fmt.read_manifest(store.place, version).runs for f in run.files}
    assert files_of(Path(str(store.place))) == named


def test_rows_of_a_code_come_together() -> None:
    """However the sorted rows are cut into batches."""
    rng = random.Random(5)
    for _ in range(30):
        codes = np.sort([rng.randrange(8) for _ in range(rng.randrange(40))]).tolist()
        every = codes + [None] * rng.randrange(5)
        rows = pa.table(
            {
                "id": pa.array(every, pa.int64()),
                "nr": pa.array(range(len(every)), pa.int64()),
                fmt.CODE_COLUMN: pa.array(every, pa.int64()),
            }
        )
        cuts = sorted(rng.randrange(len(every) + 1) for _ in range(rng.randrange(8)))
        parts = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(every)], strict=True)]
        batches = [b for part in parts for b in part.combine_chunks().to_batches() if len(b)]
        schema = pa.schema([("id", pa.int64()), ("nr", pa.int64())])
        pieces = list(_whole_codes(iter(batches), schema, divided=False))
        keyed = [(c, r) for c, r in pieces if c is not None]
        assert [n for _, r in pieces for n in r["nr"].to_pylist()] == [*range(len(every))]
        assert all(r["id"].to_pylist() == c.tolist() for c, r in keyed)
        distinct = [code for c, _ in keyed for code in np.unique(c).tolist()]
        assert len(distinct) == len(set(distinct)) == len(set(codes))


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_the_same_as_from_here(spark, tmp_path, kind) -> None:
    """The same changes of two stores, one of them from Spark: the same rows, found by key."""
    rng = random.Random(3)
    start = table([*(rng.randrange(90) for _ in range(150)), None], kind, "at first")
    key = ["id", "part"] if kind == "int64" else "id"
    ours = ss.Store.create(tmp_path / "ours", start, key=key, page_bytes=512)
    local = ss.Store.create(tmp_path / "local", start, key=key, page_bytes=512)
    for verb in FROM_SPARK if kind in ("int64", "string") else ["upsert"]:
        keys: list[int | None] = [rng.randrange(120) for _ in range(40)] + [7] * 20
        keys += [] if verb == "upsert" else [None]
        data = table(keys, kind, verb)
        df = frame(spark, data.cast(spark_types(data.schema)))
        ours = FROM_SPARK[verb](df, tmp_path / "ours", partitions=2)
        names = data.column_names if verb != "delete" else list(local.describe().key)
        local = getattr(local, verb)(data.select(names))
        assert (ours.version, ours.describe().rows) == (local.version, local.describe().rows)
        assert ours.manifest.operation == verb
    assert ours.verify() == ours.describe().pages
    content = pa.Table.from_batches(local.batches())
    check_master(ours, content, key)
    check_tidy(ours)


def spark_types(schema: pa.Schema) -> pa.Schema:
    """What Spark has instead of some types."""
    instead = {pa.uint32(): pa.int64(), pa.date64(): pa.date32(), pa.large_string(): pa.string()}
    return pa.schema([f.with_type(instead.get(f.type, f.type)) for f in schema])


@pytest.fixture
def store(tmp_path) -> Path:
    ss.Store.create(tmp_path / "store", rows(range(100), "old"), key="id").close()
    return tmp_path / "store"


def rows(keys: Any, word: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "name": [f"{k} {word}" for k in keys]})


def content(path: Path) -> list[tuple[int, str]]:
    return sorted(
        (r["id"], r["name"]) for b in ss.Store.open(path).batches() for r in b.to_pylist()
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (rows([1], "x").append_column("more", pa.array([1])), ["'more'", "select these"]),
        (rows([1], "x").select(["id"]), ["['id']", "'name'"]),
        (pa.table({"id": pa.array([1], pa.int32()), "name": ["x"]}), ["int32", "int64", "cast"]),
    ],
)
def test_refused_on_the_driver(spark, store, data, words) -> None:
    df = frame(spark, data)
    with no_job(spark, "refused"), pytest.raises(ss.SpecError) as caught:
        upsert_store(df, store)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(ss.SpecError, match="has key"):
        upsert_store(df, store, key="name")
    with pytest.raises(ss.StoreError, match="is not a store"):
        upsert_store(df, store.parent / "nothing")


def test_null_keys_are_refused(spark, store, tmp_path) -> None:
    df = frame(spark, rows([1, None, None], "x"))
    with pytest.raises(ss.SpecError, match="2 rows have a NULL in the key"):
        upsert_store(df, store)
    with pytest.raises(ss.SpecError, match="2 rows have a NULL in the key"):
        upsert_store(df, tmp_path / "new", key="id")
    assert not (tmp_path / "new" / "manifests").exists()
    assert ss.Store.open(store).version == 1
    check_tidy(ss.Store.open(store))


_HELD = {
    "not null": (pa.field("v", pa.string(), nullable=False), [None], "NULL.*fill it"),
    "uint32": (pa.field("v", pa.uint32()), [-1], "value that the store's uint32 cannot hold"),
    "seconds": (pa.field("v", pa.timestamp("s")), [dt.datetime(2020, 1, 1, microsecond=5)], "lose"),
    "fixed": (pa.field("v", pa.binary(2)), [b"abc"], r"fixed_size_binary\[2\] cannot hold"),
}


@pytest.mark.parametrize("case", _HELD)
def test_values_that_the_store_cannot_hold(tmp_path, case) -> None:
    """As a value and as a key, in the tasks that Spark would run: our error, which names the
    column, and nothing is left."""
    field, values, words = _HELD[case]
    given = pa.array(values, spark_type("v", field.type))
    for key in ("id", "v"):
        schema = pa.schema([pa.field("id", pa.int64()), field])
        made = ss.Store.create(tmp_path / key, schema.empty_table(), key=key)
        coded = iter([pa.record_batch({"c0": pa.array([1]), "c1": given})])
        places = (("id", "v").index(key),)
        task = ShardTask(made.place.locator(), "0" * 32, made.design, "upsert", made.locator())
        with pytest.raises(ss.SpecError, match=f"column 'v' has a .*{words}"):
            list(task(CodeTask(made.design, places)(coded)))
        check_tidy(made)


def test_a_null_for_a_column_that_has_none(spark, tmp_path) -> None:
    """Refused; but keys that are NULL can be deleted, of which there are none."""
    strict = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string(), nullable=False),
    ]
    path, never = tmp_path / "store", pa.schema(strict)
    ss.Store.create(path, pa.table({"id": [1], "v": ["a"]}, never), key="id").close()
    with pytest.raises(ss.SpecError, match="column 'v' has a NULL, and the store's is declared"):
        upsert_store(spark.sql("select 1L id, cast(null as string) v"), path, partitions=1)
    keys = spark.sql("select cast(null as bigint) id")
    assert delete_from_store(keys, path, partitions=1).version == 1
    check_tidy(ss.Store.open(path))


def test_other_wrong_calls(spark, store, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match="a store cannot be built from a stream"):
        build_store(spark.readStream.format("rate").load(), tmp_path / "new", key="value")
    with pytest.raises(ss.SpecError, match=r"not a pyarrow.lib.Table; make one"):
        build_store(rows([1], "x"), tmp_path / "new", key="id")
    with pytest.raises(ss.SpecError, match=r"not a pyarrow.lib.Table; make one"):
        upsert_store(rows([1], "x"), store)
    for call in (build_store, upsert_store):
        with pytest.raises(ss.SpecError, match="partitions='2'"):
            call(frame(spark, rows([1], "x")), tmp_path / "new", key="id", partitions="2")
    with pytest.raises(ss.StoreError, match=r"is not a store.*build_store.*key="):
        append_to_store(frame(spark, rows([1], "x")), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_made_if_it_is_not_there(spark, tmp_path) -> None:
    """And a batch of a writer changes the store once; small runs are merged."""
    path, name = tmp_path / "store", "nightly"
    for number in (3, 3, 4, 5, 5, 1):
        df = frame(spark, rows([number, 10], f"batch {number}"))
        made = upsert_store(df, path, key="id", writer_batch=(name, number), partitions=1)
    assert (made.version, made.manifest.writers) == (3, {name: 5})
    assert len(made.manifest.runs) == 2
    wanted = [(3, "3 batch 3"), (4, "4 batch 4"), (5, "5 batch 5"), (10, "10 batch 5")]
    assert content(path) == wanted
    nothing = delete_from_store(frame(spark, rows([77], "")), path)
    assert nothing.version == 3
    noted = delete_from_store(frame(spark, rows([77], "")), path, writer_batch=(name, 6))
    assert (noted.version, noted.manifest.writers) == (4, {name: 6})
    check_tidy(noted)


@pytest.mark.parametrize(("theirs", "times"), [(range(50, 60), 1), (range(5, 15), 2)])
def test_others_write_too(spark, store, monkeypatch, theirs, times) -> None:
    """Where others changed other keys meanwhile the run is published as it is, else written
    again."""
    calls = []

    def write_run(*arguments: Any, **options: Any) -> Any:
        written = real(*arguments, **options)
        if not calls:
            ss.Store.open(store).append(rows(theirs, "theirs"))
        calls.append(written)
        return written

    real = change.write_run
    monkeypatch.setattr(change, "write_run", write_run)
    newer = append_to_store(frame(spark, rows(range(10), "ours")), store)
    assert (newer.version, newer.describe().rows, len(calls)) == (3, 120, times)
    old, new = [(k, f"{k} old") for k in range(100)], [(k, f"{k} ours") for k in range(10)]
    assert content(store) == sorted(old + new + [(k, f"{k} theirs") for k in theirs])
    check_tidy(newer)


def test_the_version_expires_under_the_tasks(spark, store, monkeypatch) -> None:
    """Others replace it, compact and expire before a task has opened it: the work is done again."""

    def write_run(*arguments: Any, **options: Any) -> Any:
        if ss.Store.open(store).version == 1:
            ss.Store.open(store).upsert(rows([1], "theirs")).compact().expire(older_than=0)
        return real(*arguments, **options)

    real = change.write_run
    monkeypatch.setattr(change, "write_run", write_run)
    newer = append_to_store(frame(spark, rows([1], "ours")), store)
    assert newer.version == 4
    assert [name for key, name in content(store) if key == 1] == ["1 ours", "1 theirs"]


def test_others_are_always_faster(spark, store, monkeypatch) -> None:
    def write_run(*arguments: Any, **options: Any) -> Any:
        written = real(*arguments, **options)
        ss.Store.open(store).upsert(rows([1], "theirs"))
        return written

    real = change.write_run
    monkeypatch.setattr(change, "write_run", write_run)
    monkeypatch.setattr(change, "ATTEMPTS", 2)
    with pytest.raises(ss.ConflictError, match="published by someone else"):
        upsert_store(frame(spark, rows([1], "ours")), store)
    assert (1, "1 theirs") in content(store)
    check_tidy(ss.Store.open(store))


def test_a_stream_writes_every_micro_batch_once(spark, store, tmp_path) -> None:
    """The query fails after the second micro-batch was published and before Spark knows of it. The
    replay changes nothing: appended rows are there once."""
    files = write_files(rows(range(40, 100), "new"), tmp_path / "files", 3)
    append = upsert_into(store, kind="append", partitions=2)
    failed: list[int] = []

    def each(df: DataFrame, batch: int) -> None:
        append(df, batch)
        if batch == 1 and not failed:
            failed.append(batch)
            raise OSError("after it was published")

    def start() -> Any:
        writer = stream_of(spark, files).writeStream.foreachBatch(each).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="after it was published"):
        start().awaitTermination(PATIENCE)
    assert ss.Store.open(store).version == 3
    query = start()
    assert query.awaitTermination(PATIENCE)
    done = ss.Store.open(store)
    assert (done.version, done.manifest.writers) == (4, {f"{query.id}/append": 2})
    wanted = [(k, f"{k} old") for k in range(100)] + [(k, f"{k} new") for k in range(40, 100)]
    assert content(store) == sorted(wanted)
    assert_same_rows(pq.read_table(files), rows(range(40, 100), "new"))


def test_a_store_in_an_object_store(spark, bucket) -> None:
    """Built, changed and joined in tasks, which get there by themselves."""
    url, options = f"{bucket.url}/store", bucket.options
    df = frame(spark, rows(range(50), "old"))
    build_store(df, url, key="id", partitions=2, storage_options=options).close()
    news = frame(spark, rows(range(45, 55), "new"))
    newer = upsert_store(news, url, partitions=2, storage_options=options)
    assert (newer.version, newer.describe().rows) == (2, 55)
    ours = enrich(news.select("id"), newer, on="id", version_column="v")
    assert_same_rows(ours.toArrow(), [(k, f"{k} new", 2) for k in range(45, 55)])
    named = {name for run in newer.manifest.runs for name in run.files}
    assert {file.name for file in newer.place.list("data")} == named


def test_wrong_ways_to_stream(spark, store, tmp_path) -> None:
    files = write_files(rows([1], "new"), tmp_path / "files", 1)
    with pytest.raises(ss.SpecError, match=r"foreachBatch\(upsert_into"):
        upsert_store(stream_of(spark, files), store)
    with pytest.raises(ss.SpecError, match="for foreachBatch"):
        upsert_into(store)(frame(spark, rows([1], "new")), 0)
    with pytest.raises(ss.SpecError, match="'replace'"):
        upsert_into(store, kind="replace")
