"""The version of a micro-batch: pins, and the warm join in a worker that moves along."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import semistream as ss
from semistream.spark.dimensions import _locator
from semistream.spark.pins_folder import FOLDER, pins_folder
from semistream.spark.task.enrich import EnrichTask, Step
from semistream.spark.task.joins import POOL
from semistream.spark.task.versions import ID, Batch, PinFolder, Pins
from tests.helpers.spark_data import task_of, warm_joins
from tests.helpers.stamped_data import publish, rows, said, store

__all__ = ["store"]


# --- pins, without Spark --------------------------------------------------------------------------


def version_of(folder: Path, batch: int, path: Path, query: str = "q") -> int | None:
    locator = ss.Store.open(path).locator()
    folder.mkdir(exist_ok=True)
    pins = Pins(PinFolder.at(str(folder)), Batch(query, batch))
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
    pins = Pins(PinFolder.at(str(tmp_path / "pins")), Batch("q", 0))
    newer = publish(store)
    late = ss.Store.open(store, version=1)
    monkeypatch.setattr(late, "newest", lambda: version_of(tmp_path / "pins", 0, store) and late)
    assert pins.master(late.locator(), late).describe().version == newer


def test_old_pins_go(store, tmp_path) -> None:
    for query, batch in [("q", 0), ("q", 1), ("q", 2), ("other", 0), ("q", 102)]:
        version_of(tmp_path, batch, store, query)
    left = {(p.parent.name, int(p.name[:12])) for p in tmp_path.rglob("*.pin")}
    assert left == {("q", 2), ("q", 102), ("other", 0)}


def test_pins_of_a_query_that_lags_behind_stay(store, tmp_path) -> None:
    """Two queries of one id: one is 200 micro-batches ahead, the other at work on its second."""
    ahead = [p for n in (120, 200) for p in _aged(tmp_path, store, n, 1_700_000_000 + n)]
    (old,) = _aged(tmp_path, store, 0, 1_700_000_000)
    (lagging,) = _aged(tmp_path, store, 1, 1_700_000_150)
    version_of(tmp_path, 201, store)
    assert all(p.exists() for p in (*ahead, lagging))
    assert not old.exists()
    _aged(tmp_path, store, 250, 1_700_000_250)
    version_of(tmp_path, 301, store)
    assert not lagging.exists(), "all that is needed is younger by now"


def _aged(pins: Path, store: Path, batch: int, when: int) -> list[Path]:
    """The pin of a micro-batch, written at this time."""
    version_of(pins, batch, store)
    found = list((pins / "q").glob(f"{batch:012d}-*.pin"))
    for pin in found:
        os.utime(pin, (when, when))
    return found


def test_a_link_to_a_store_is_that_store(store, tmp_path) -> None:
    """One pin for both paths, also where an earlier release has pinned the link; and neither path
    lets a pinned version expire."""
    link, pins = tmp_path / "link", PinFolder.at(str(tmp_path / "pins"))
    link.symlink_to(store)

    def version(path: Path, batch: int, resolved: bool = True) -> int | None:
        opened = ss.Store.open(path)
        locator = _locator(opened) if resolved else opened.locator()
        return Pins(pins, Batch("q", batch)).master(locator).describe().version

    assert version(link, 0) == 1
    assert version(link, 1, resolved=False) == 1
    publish(store)
    assert (version(store, 0), version(link, 0), version(link, 1)) == (1, 1, 1)
    assert (version(store, 2), version(link, 2)) == (2, 2)
    assert len(list(tmp_path.rglob("*.pin"))) == 3
    publish(store)
    assert ss.Store.open(link).expire(0, pins=pins.path) == []
    assert ss.Store.open(store).expire(0, pins=pins.path) == []


def test_what_killed_tasks_left_goes(store, tmp_path) -> None:
    """A file on its way to be a pin stays while its task may be alive: for two micro-batches."""
    query = tmp_path / "q"
    half = query / f".{'0' * 32}.tmp"
    there = []
    for batch in range(4):
        version_of(tmp_path, batch, store)
        (pin,) = query.glob(f"*{batch}-*.pin")
        os.utime(pin, (1_700_000_000 + batch,) * 2)
        if batch == 0:
            half.write_bytes(b"{")
            (query / "something else.tmp").touch()
            os.utime(half, (1_700_000_000.5,) * 2)
        there.append(half.exists())
    assert there == [True, True, False, False]
    assert len(list(query.iterdir())) == 5, "nothing else is removed"


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
    pins = Pins(PinFolder.at(str(tmp_path / "pins")), Batch("q", 0))
    (tmp_path / "pins" / ID).unlink()
    if there == "another folder":
        PinFolder.at(str(tmp_path / "pins"))
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
    task = task_of(store, pins=PinFolder.at(str(tmp_path / "pins")), version_column="version")
    keys = pa.record_batch({"id": pa.array([k % 20 for k in range(400)], pa.int64())})

    def run(batch: int) -> tuple[set[tuple[int, str]], int]:
        monkeypatch.setattr(Batch, "running", lambda: Batch("q", batch))
        before = {id(j): j.stats.front_hits for j in warm_joins()}
        table = pa.Table.from_batches(list(task(iter([keys]))))
        (join,) = warm_joins()
        found = zip(table["version"].to_pylist(), table["name"].to_pylist(), strict=True)
        return set(found), join.stats.front_hits - before.get(id(join), 0)

    try:
        assert run(0)[0] == {(1, said(k, 1)) for k in range(20)}
        (join,) = warm_joins()
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
        assert warm_joins() == [join]
        ss.Store.open(store).expire(older_than=0)
        with pytest.raises(ss.MasterError, match="pinned to version 1"):
            run(0)
        assert not warm_joins()
    finally:
        POOL.drop(warm_joins())


def test_a_warm_join_notices_a_store_built_anew(store, tmp_path, monkeypatch) -> None:
    """Its own files are gone but still mapped, and the new store has the same version number."""
    task = task_of(store, pins=PinFolder.at(str(tmp_path / "pins")))
    keys = pa.record_batch({"id": pa.array(range(20), pa.int64())})
    monkeypatch.setattr(Batch, "running", lambda: Batch("q", 0))
    assert sum(batch.num_rows for batch in task(iter([keys]))) == 20
    shutil.rmtree(store)
    ss.Store.create(store, rows(1), key="id").close()
    for batch, words in ((0, "was deleted and built anew"), (1, "was rebuilt")):  # warm, then cold
        monkeypatch.setattr(Batch, "running", lambda batch=batch: Batch("q", batch))
        with pytest.raises(ss.MasterError, match=f"{words} since the query began"):
            list(task(iter([keys])))
        assert not warm_joins()


@pytest.mark.parametrize("pinned", [True, False])
def test_a_warm_join_notices_that_its_store_is_gone(store, tmp_path, monkeypatch, pinned) -> None:
    """All its answers are in memory. A version that has expired is still read."""
    folder = PinFolder.at(str(tmp_path / "pins")) if pinned else None
    task = task_of(store, pins=folder, algorithm="memory")
    keys = pa.record_batch({"id": pa.array(range(20), pa.int64())})
    monkeypatch.setattr(Batch, "running", lambda: Batch("q", 0))
    assert sum(batch.num_rows for batch in task(iter([keys]))) == 20
    publish(store)
    ss.Store.open(store).expire(0)
    assert sum(batch.num_rows for batch in task(iter([keys]))) == 20
    store.rename(tmp_path / "elsewhere")
    for batch in (0, 1):
        monkeypatch.setattr(Batch, "running", lambda batch=batch: Batch("q", batch))
        with pytest.raises(ss.StoreError, match=r"was (deleted since|there for)"):
            list(task(iter([keys])))
        assert not warm_joins()


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_warm_join_notices_that_its_files_are_gone(tmp_path, kind) -> None:
    path = tmp_path / kind
    if kind == "delta":
        write_deltalake(path, rows(1))
    else:
        pq.write_table(rows(1), path)
    step = Step(
        ss.open_master(path, "id").locator(), [("id", "id")], "left", None, None, 2_000_000,
        "memory", pa.schema([("name", pa.string())]),
    )  # fmt: skip
    keys = pa.record_batch({"id": pa.array(range(20), pa.int64())})
    assert sum(batch.num_rows for batch in EnrichTask([step])(iter([keys]))) == 20
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(ss.MasterError, match=f"{kind} was deleted since the query began"):
        list(EnrichTask([step])(iter([keys])))
    assert not warm_joins()


def test_other_columns_than_planned(store) -> None:
    """What a task adds is what the driver told Spark, or an error."""
    planned = pa.schema([("name", pa.string()), ("price", pa.float64())])
    task = task_of(store, columns=["name"], added=planned)
    with pytest.raises(ss.MasterError, match="name string instead of name string, price double"):
        list(task(iter([pa.record_batch({"id": pa.array([1], pa.int64())})])))
    assert not warm_joins()
