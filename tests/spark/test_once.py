"""Several changes in one micro-batch: each happens once, none is taken for a replay of another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.spark import cause, delete_from_store, into_delta, upsert_into, upsert_store
from semistream.spark.once import Once
from semistream.testing import assert_same_rows
from tests.helpers.spark_data import PATIENCE, frame, stream_of, write_files

CHANGES = pa.table({"id": [1, 2, 3], "name": ["new", None, None], "op": ["u", "d", "u"]})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    table = pa.table({"id": range(4), "name": ["old"] * 4})
    ss.Store.create(tmp_path / "store", table, key="id").close()
    return tmp_path / "store"


def content(path: Path) -> dict[int, Any]:
    found = pa.Table.from_batches(ss.Store.open(path).batches()).sort_by("id").to_pydict()
    assert len(set(found["id"])) == len(found["id"])
    return dict(zip(found["id"], found["name"], strict=True))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return frame(spark, pa.table({"id": list(ids), "name": ["new"] * len(ids)}))


# --- what is remembered, without Spark ------------------------------------------------------------


def change(name: str, number: int = 3, attempt: str | None = "app 1") -> Once:
    return Once("q", number, name, "/store", attempt, "upsert_into(path)")


def test_changes_go_by_their_names() -> None:
    """In any order, with any of them made before."""
    marks = {"q/upsert": 3, "q/delete": 2}
    replayed = change("upsert", attempt="app 2")
    assert change("upsert").done("names", marks.get)
    assert not change("delete").done("names", marks.get)
    assert replayed.done("names", marks.get)
    assert not change("upsert", number=4).done("names", marks.get)
    assert not change("other").done("names", marks.get)


def test_a_second_change_of_one_name_is_refused() -> None:
    """In the same attempt at the same micro-batch of the same target, and only there."""
    change("upsert").made("again")
    with pytest.raises(ss.SpecError, match=r"'upsert' of /store.*upsert_into\(path, name=") as e:
        change("upsert").done("again", {}.get)
    assert "Leave the first one as it is" in str(e.value)
    assert not change("delete").done("again", {}.get)
    assert not change("upsert").done("another target", {}.get)
    assert not change("upsert", number=4).done("again", {}.get)
    assert not change("upsert", attempt="app 2").done("again", {}.get)


def test_without_a_stream_the_number_says_which_change_it_is() -> None:
    change("upsert", attempt=None).made("loop")
    assert change("upsert", attempt=None).done("loop", {"q/upsert": 3}.get)


def test_a_number_that_the_caller_gives_stands_for_one_change() -> None:
    """writer_batch=("w", 3) twice is the same change; as another one it is a mistake."""
    upsert, delete = (Once("w", 3, kind, "/store", None, None) for kind in ("upsert", "delete"))
    assert not upsert.done("numbers", {}.get)
    upsert.made("numbers")
    assert upsert.done("numbers", {"w": 3}.get)
    with pytest.raises(ss.SpecError, match=r"batch 3 of writer 'w'.*\(upsert\).*number of its own"):
        delete.done("numbers", {"w": 3}.get)
    assert not Once("w", 4, "delete", "/store", None, None).done("numbers", {"w": 3}.get)


def test_marks_of_earlier_releases() -> None:
    """They stand for the first change of a micro-batch: the others were skipped."""
    old = {"q": 3}
    assert change("upsert").done("old", old.get)
    change("upsert").made("old")
    assert not change("delete").done("old", old.get)
    assert not change("upsert", number=4).done("old", old.get)
    assert change("delete", number=0).done("very old", {"q": 0}.get)


# --- on Spark -------------------------------------------------------------------------------------


def test_a_store_with_marks_of_earlier_releases(spark, store) -> None:
    old = ss.Store.open(store).upsert(pa.table({"id": [1], "name": ["new"]}), writer_batch=("w", 0))
    assert old.manifest.writers == {"w": 0}
    upsert_into(store, writer="w", partitions=1)(rows(spark, 0), 0)
    upsert_into(store, kind="delete", writer="w", partitions=1)(rows(spark, 3), 0)
    assert content(store) == {0: "old", 1: "new", 2: "old"}
    assert ss.Store.open(store).manifest.writers == {"w": 0, "w/delete": 0}


def test_a_change_feed_that_dies_between_its_changes(spark, store, tmp_path) -> None:
    """Upserts and deletes of a store, two writes into a Delta table; the query dies after some
    of them. In the end each was made once."""
    files = write_files(CHANGES, tmp_path / "changes", 1)
    table, died = tmp_path / "delta", [0, 2, 3]

    def each(df: DataFrame, batch: int) -> None:
        changed, gone = df.where("op = 'u'").select("id", "name"), df.where("op = 'd'")
        steps = [
            lambda: upsert_into(store, partitions=1)(changed, batch),
            lambda: upsert_into(store, kind="delete", partitions=1)(gone, batch),
            lambda: into_delta(table)(changed, batch),
            lambda: into_delta(table, name="gone")(gone.select("id", "name"), batch),
        ]
        for at, step in enumerate(steps):
            step()
            if died and died[0] == at:
                raise OSError(f"dies after step {died.pop(0)}")

    def start() -> Any:
        writer = stream_of(spark, files).writeStream.foreachBatch(each).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    for at in list(died):
        with pytest.raises(StreamingQueryException, match=f"dies after step {at}"):
            start().awaitTermination(PATIENCE)
    query = start()
    assert query.awaitTermination(PATIENCE)
    assert content(store) == {0: "old", 1: "new", 3: None}
    done = ss.Store.open(store)
    assert done.version == 3
    assert done.manifest.writers == {f"{query.id}/upsert": 0, f"{query.id}/delete": 0}
    written = DeltaTable(table)
    assert_same_rows(written.to_pyarrow_table(), [(1, "new"), (2, None), (3, None)])
    assert written.version() == 2


def test_two_changes_under_one_number(spark, store, tmp_path) -> None:
    """Refused; a copy of a store is another one, though."""
    shutil.copytree(store, tmp_path / "copy")
    for path in (store, tmp_path / "copy"):
        upsert_store(rows(spark, 1), path, writer_batch=("w", 5), partitions=1)
    with pytest.raises(ss.SpecError, match=r"batch 5 of writer 'w' has made another change"):
        delete_from_store(rows(spark, 1), store, writer_batch=("w", 5))
    delete_from_store(rows(spark, 1), store, writer_batch=("w", 6), partitions=1).close()
    assert (1 in content(store), content(tmp_path / "copy")[1]) == (False, "new")


def test_the_same_change_twice_in_a_micro_batch(spark, store, tmp_path) -> None:
    """Refused, by whatever path; and when the second one has a name, the first is not repeated."""
    files = write_files(pa.table({"id": [7], "name": ["x"]}), tmp_path / "changes", 1)
    (tmp_path / "link").symlink_to(store)
    names: dict[str, Any] = {}

    def each(df: DataFrame, batch: int) -> None:
        upsert_into(store, "append", partitions=1)(df, batch)
        upsert_into(tmp_path / "link", "append", partitions=1, **names)(df, batch)

    def start() -> Any:
        writer = stream_of(spark, files).writeStream.foreachBatch(each).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE)
    assert isinstance(cause(caught.value), ss.SpecError)
    assert "micro-batch 0 has made a change 'append'" in str(caught.value)
    names["name"] = "second"
    assert start().awaitTermination(PATIENCE)
    assert ss.Store.open(store).describe().rows == 6
    assert set(ss.Store.open(store).manifest.writers.values()) == {0}


def test_wrong_names_and_options(spark, store, tmp_path) -> None:
    for name in ("", "a/b", 7):
        with pytest.raises(ss.SpecError, match="name="):
            upsert_into(store, name=name)  # type: ignore[arg-type]
        with pytest.raises(ss.SpecError, match="name="):
            into_delta(tmp_path / "delta", name=name)  # type: ignore[arg-type]
    with pytest.raises(ss.SpecError, match='"delete" needs none'):
        upsert_into(store, kind="delete", key="id")
    with pytest.raises(ss.SpecError, match="partitions=0"):
        upsert_into(store, partitions=0)
    for wrong in (("w",), ("w", "1"), ("w", True), "w1"):
        with pytest.raises(ss.SpecError, match="writer_batch="):
            upsert_store(rows(spark, 1), store, writer_batch=wrong)  # type: ignore[arg-type]
