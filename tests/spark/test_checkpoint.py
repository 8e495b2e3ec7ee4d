"""A checkpoint that is copied becomes a query of its own; one that is moved stays what it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.spark import enrich, upsert_into
from semistream.spark.checkpoint import NOTE
from semistream.spark.task.versions import owner_named
from tests.helpers.spark_data import PATIENCE, write_files
from tests.helpers.stamped_data import publish, store

__all__ = ["store"]
SALES = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def run(spark, store, tmp_path) -> Any:
    """Runs a query from a checkpoint over what there is: which version each micro-batch had."""
    files = write_files(SALES, tmp_path / "sales", 1)
    ss.Store.create(tmp_path / "sink", pa.table({"id": [0], "n": [0]}), key="id").close()

    def start(checkpoint: Path, more: bool = False) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}

        def each(df: DataFrame, batch: int) -> None:
            found[batch] = {row.v for row in df.select("v").collect()}
            rows = df.selectExpr("id", "v n")
            upsert_into(tmp_path / "sink", kind="append", partitions=1)(rows, batch)

        if more:
            pq.write_table(SALES, files / f"{len(list(files.iterdir()))}.parquet")
        stream = spark.readStream.schema("id bigint").parquet(str(files))
        ours = enrich(stream, store, "id", version_column="v", pins=tmp_path / "pins")
        writer = ours.writeStream.foreachBatch(each).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        assert query.awaitTermination(PATIENCE)
        return found

    return start


def replay(checkpoint: Path, batch: int) -> None:
    """Spark forgets that it has done this one, as if the driver had died before the commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_copies_and_moves(run, store, tmp_path) -> None:
    original, copy, moved = (tmp_path / name for name in ("original", "a copy", "moved"))
    assert run(original) == {0: {1}}
    shutil.copytree(original, copy)
    publish(store)
    assert run(original, more=True) == {1: {2}}
    publish(store)
    assert run(copy) == {1: {3}}, "its own version, not the pinned one of its original"
    query = json.loads((original / "metadata").read_text())["id"]
    name = json.loads((copy / NOTE).read_text())["owner"]
    assert name.startswith(f"{query}-copy-")
    marks = {f"{query}/append": 1, f"{name}/append": 1}
    assert ss.Store.open(tmp_path / "sink").manifest.writers == marks
    assert {p.name for p in (tmp_path / "pins").iterdir() if p.is_dir()} == {query, name}

    # Moved: what it has pinned and marked is still known, whoever has copied it.
    rows = ss.Store.open(tmp_path / "sink").describe().rows
    for checkpoint in (original, copy):
        replay(checkpoint, 1)
    original.rename(moved)
    (tmp_path / "link").symlink_to(moved)
    assert run(moved) == {1: {2}}
    replay(moved, 1)
    assert run(tmp_path / "link") == {1: {2}}, "the same folder under another name is no copy"
    assert run(copy) == {1: {3}}
    assert json.loads((moved / NOTE).read_text())["owner"] == query
    sink = ss.Store.open(tmp_path / "sink")
    assert (sink.describe().rows, sink.manifest.writers) == (rows, marks)
    assert not [p for p in tmp_path.rglob(".semistream-*") if p.is_file()], "probes"


def test_a_note_that_is_damaged(run, store, tmp_path) -> None:
    """It says nothing, then: the query's id has to do, and the note is written again."""
    run(tmp_path / "checkpoint")
    note = tmp_path / "checkpoint" / NOTE
    good = note.read_text()
    publish(store)
    for bad in ('{"own', json.dumps(json.loads(good) | {"owner": "../elsewhere"})):
        note.write_text(bad)
        (note.parent / f".{NOTE}.crc").unlink()
        replay(tmp_path / "checkpoint", 0)
        assert run(tmp_path / "checkpoint") == {0: {1}}
        assert note.read_text() == good


def test_what_a_thread_has_inherited_from_another_query() -> None:
    assert owner_named("q1 q1-copy-2", "q1") == "q1-copy-2"
    for told in (None, "", "q1", "q1 ", "q2 q2-copy-2"):
        assert owner_named(told, "q1") is None
