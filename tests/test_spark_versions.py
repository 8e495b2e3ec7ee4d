"""enrich on a master that changes: every micro-batch has one version, also when it is replayed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from spark_data import PATIENCE, frame, no_job, stream_of, wait_for, write_files

import semistream as ss
from semistream.spark import enrich
from semistream.spark.pins import ID, Batch, Folder, Pins
from semistream.spark.pins_folder import FOLDER, pins_folder
from semistream.spark.worker import _WARM, EnrichTask
from semistream.testing import assert_same_rows

KEYS = 100


def said(key: int, version: int) -> str:
    return f"{key} in version {version}"


def rows(version: int, keys: range = range(KEYS), name: str = "name") -> pa.Table:
    """What the master says in a version; each row names the version that wrote it."""
    return pa.table({"id": pa.array(keys, pa.int64()), name: [said(k, version) for k in keys]})


@pytest.fixture
def store(tmp_path) -> Path:
    ss.Store.create(tmp_path / "store", rows(1), key="id", page_bytes=1024).close()
    return tmp_path / "store"


def publish(path: Path, keys: range = range(KEYS)) -> int:
    store = ss.Store.open(path)
    newer = store.upsert(rows(store.version + 1, keys))
    return newer.version


# --- pins, without Spark --------------------------------------------------------------------------


def version_of(folder: Path, batch: int, path: Path, query: str = "q") -> int | None:
    locator = ss.Store.open(path).locator()
    folder.mkdir(exist_ok=True)
    pins = Pins(Folder.at(str(folder)), Batch(query, batch))
    return pins.master(locator).describe().version


def test_the_first_task_decides(store, tmp_path) -> None:
    pins = tmp_path / "pins"
    assert version_of(pins, 0, store) == 1
    publish(store)
    assert version_of(pins, 0, store) == 1
    assert version_of(pins, 1, store) == version_of(pins, 0, store, "another query") == 2
    other = ss.Store.create(tmp_path / "other", rows(1), key="id")
    assert version_of(pins, 1, other.place.root) == 1
    (pin,) = [json.loads(p.read_text()) for p in (pins / "q").glob("000000000000-*.pin")]
    identity = ss.Store.open(store).manifest.store
    expected = {"master": str(store), "store": identity, "version": 1, "query": "q", "batch": 0}
    assert pin == expected
    assert len(list(pins.rglob("*.pin"))) == 4


def test_many_tasks_at_once(store, tmp_path) -> None:
    def task(n: int) -> int | None:
        if n == 3:
            publish(store)
        return version_of(tmp_path / "pins", 0, store)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(task, range(4)))) == 1


def test_a_faster_task_wins(store, tmp_path, monkeypatch) -> None:
    """Another task writes the pin between our look at it and our own attempt to write it."""
    pins = Pins(Folder.at(str(tmp_path / "pins")), Batch("q", 0))
    newer = publish(store)
    late = ss.Store.open(store, version=1)
    monkeypatch.setattr(late, "newest", lambda: version_of(tmp_path / "pins", 0, store) and late)
    assert pins.master(late.locator(), late).describe().version == newer


def test_old_pins_go(store, tmp_path) -> None:
    for query, batch in [("q", 0), ("q", 1), ("q", 2), ("other", 0), ("q", 102)]:
        version_of(tmp_path, batch, store, query)
    left = {(p.parent.name, int(p.name[:12])) for p in tmp_path.rglob("*.pin")}
    assert left == {("q", 2), ("q", 102), ("other", 0)}


def test_pinned_versions_do_not_expire(store, tmp_path) -> None:
    pins = tmp_path / "pins"
    for batch in range(4):
        assert version_of(pins, batch, store) == batch + 1
        publish(store)
    for pin in (pins / "q").glob("000000000001-*"):
        pin.unlink()
    assert ss.Store.open(store).expire(older_than=0, pins=pins) == [2]
    assert version_of(pins, 0, store) == 1
    assert ss.Store.open(store).expire(older_than=0) == [1, 3, 4]
    with pytest.raises(ss.MasterError, match=r"micro-batch 0 of query q .* version 1 .*it has 5"):
        version_of(pins, 0, store)


@pytest.mark.parametrize(
    "change",
    [
        lambda pin: b"",
        lambda pin: b"\xff\xfe",
        lambda pin: b"[1]",
        lambda pin: json.dumps(pin | {"version": "1"}).encode(),
        lambda pin: json.dumps(pin | {"batch": 7}).encode(),
        lambda pin: json.dumps(pin | {"master": "/elsewhere"}).encode(),
        lambda pin: json.dumps({k: v for k, v in pin.items() if k != "version"}).encode(),
    ],
)
def test_a_damaged_pin(store, tmp_path, change) -> None:
    version_of(tmp_path / "pins", 0, store)
    (path,) = (tmp_path / "pins").rglob("*.pin")
    path.write_bytes(change(json.loads(path.read_text())))
    with pytest.raises(ss.DamagedError, match=rf"{path.name} is damaged: .*delete the pin"):
        version_of(tmp_path / "pins", 0, store)


@pytest.mark.parametrize("there", ["another folder", "no folder"])
def test_a_folder_that_is_not_shared(store, tmp_path, there) -> None:
    """Every machine with pins of its own would have versions of its own."""
    pins = Pins(Folder.at(str(tmp_path / "pins")), Batch("q", 0))
    (tmp_path / "pins" / ID).unlink()
    if there == "another folder":
        Folder.at(str(tmp_path / "pins"))
    with pytest.raises(ss.MasterError, match=r"another one here than on the driver.*share"):
        pins.master(ss.Store.open(store).locator())


def test_a_pin_of_a_store_that_was_built_anew(store, tmp_path) -> None:
    version_of(tmp_path / "pins", 0, store)
    shutil.rmtree(store)
    ss.Store.create(store, rows(1), key="id").close()
    with pytest.raises(ss.MasterError, match="built anew since micro-batch 0 of query q"):
        version_of(tmp_path / "pins", 0, store)


def test_where_pins_go(spark, tmp_path) -> None:
    df, name = spark.range(1), "spark.sql.streaming.checkpointLocation"
    assert pins_folder(df, tmp_path / "a b").path == str(tmp_path / "a b")
    same = pins_folder(df, (tmp_path / "a b").as_uri())
    assert same == pins_folder(df, tmp_path / "a b")
    assert Path(pins_folder(df, None).path).is_dir()
    try:
        for checkpoints in (str(tmp_path / "c"), (tmp_path / "c").as_uri()):
            spark.conf.set(name, checkpoints)
            assert pins_folder(df, None).path == str(tmp_path / "c" / FOLDER)
    finally:
        spark.conf.unset(name)
    conf = {"spark.master": "spark://host:7077", name: "hdfs://host/checkpoints"}
    cluster = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
    with pytest.raises(ss.SpecError, match=r"hdfs://host/checkpoints.*pins=.*version="):
        pins_folder(cluster, None)  # type: ignore[arg-type]
    with pytest.raises(ss.SpecError, match="is not a folder"):
        pins_folder(df, "s3://bucket/pins")
    (tmp_path / "file").touch()
    with pytest.raises(ss.SpecError, match="cannot be made"):
        pins_folder(df, tmp_path / "file")


# --- the join that lives in a worker --------------------------------------------------------------


def test_the_warm_join_moves(store, tmp_path, monkeypatch) -> None:
    """The same join answers all versions. Forward it keeps what did not change; back it starts
    anew. A version that cannot be had leaves no join behind."""
    task = EnrichTask(
        ss.Store.open(store).locator(), [("id", "id")], "left", None, None, 1_000_000, "sweepjoin",
        pins=Folder.at(str(tmp_path / "pins")), version_column="version",
    )  # fmt: skip
    keys = pa.record_batch({"id": pa.array([k % 20 for k in range(400)], pa.int64())})

    def run(batch: int) -> tuple[set[tuple[int, str]], int]:
        monkeypatch.setattr(Batch, "running", lambda: Batch("q", batch))
        before = {id(j): j.stats.front_hits for j in _WARM.values()}
        table = pa.Table.from_batches(list(task(iter([keys]))))
        (join,) = _WARM.values()
        found = zip(table["version"].to_pylist(), table["name"].to_pylist(), strict=True)
        return set(found), join.stats.front_hits - before.get(id(join), 0)

    try:
        assert run(0)[0] == {(1, said(k, 1)) for k in range(20)}
        (join,) = _WARM.values()
        assert run(0)[1] == len(keys), "all keys are known by now"
        publish(store, range(10))
        ss.Store.open(store).compact()
        publish(store, range(5))
        assert run(0)[0] == {(1, said(k, 1)) for k in range(20)}
        wanted = {(4, said(k, 4 if k < 5 else 2 if k < 10 else 1)) for k in range(20)}
        assert run(1)[0] == wanted
        publish(store, range(19, 20))
        found, hits = run(2)
        assert found == {(5, said(19, 5) if s == said(19, 1) else s) for _, s in wanted}
        assert hits >= 19 * 20, "what did not change was known"
        assert run(1)[0] == wanted
        assert list(_WARM.values()) == [join]
        ss.Store.open(store).expire(older_than=0)
        with pytest.raises(ss.MasterError, match="pinned to version 1"):
            run(0)
        assert not _WARM
    finally:
        while _WARM:
            _WARM.popitem()[1].close()


# --- on Spark -------------------------------------------------------------------------------------


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


def test_other_columns_than_planned(store) -> None:
    """What a task adds is what the driver told Spark, or an error."""
    locator = ss.Store.open(store).locator()
    planned = pa.schema([("name", pa.string()), ("price", pa.float64())])
    task = EnrichTask(
        locator, [("id", "id")], "left", ["name"], None, 10**6, "sweepjoin", {}, planned
    )
    with pytest.raises(ss.MasterError, match="name string instead of name string, price double"):
        list(task(iter([pa.record_batch({"id": pa.array([1], pa.int64())})])))
    assert not _WARM


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
