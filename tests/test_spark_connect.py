"""Spark Connect: a client in a process of its own, a server that this machine runs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connect_child import HOWS
from connect_server import ConnectServer
from deltalake import DeltaTable
from spark_data import SPARK_HOWS, master_table, sales_table, write_files

import semistream as ss
from semistream.testing import assert_same_rows, oracle

MASTER = master_table([*range(100), 7, 7, None])
SALES = sales_table(200, [*range(120), 7, 7, None])
CHILD = Path(__file__).with_name("connect_child.py")


@pytest.fixture(scope="module")
def folder(connect_server: ConnectServer, tmp_path_factory) -> Path:
    """What the client has left, in a folder."""
    folder = tmp_path_factory.mktemp("client")
    write_files(SALES, folder / "sales", 2)
    pq.write_table(MASTER, folder / "master.parquet")
    ss.Store.create(folder / "store", MASTER, key="id", page_bytes=512).close()
    connect_server.run(CHILD, folder)
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> dict:
    return json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize("how", HOWS)
def test_batches(folder: Path, how: str) -> None:
    expected = oracle(SALES, MASTER, "id", SPARK_HOWS[how])
    assert_same_rows(pq.read_table(folder / f"{how}.parquet"), expected)


def test_two_masters(folder: Path) -> None:
    named = oracle(SALES, MASTER, "id", "inner", ["name"])
    names = [*SALES.column_names, "name"]
    once = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in named])
    expected = oracle(once, MASTER, "id", "left", ["price"])
    assert_same_rows(pq.read_table(folder / "twice.parquet"), expected)


def test_stores_are_built_and_changed(folder: Path, said: dict) -> None:
    rows = MASTER.num_rows - 1  # the key of one is NULL
    assert said["stores"] == [rows, rows, rows + 1, rows]
    for key in ("id", "name"):
        assert ss.Store.open(folder / f"by-{key}").verify() > 0


def test_a_stream_notes_its_versions(folder: Path, said: dict) -> None:
    expected = [(*row, 1) for row in oracle(SALES, MASTER, "id", "left")]
    assert_same_rows(pq.read_table(folder / "streamed"), expected)
    assert len(list((folder / "pins" / said["query"]).glob("*.pin"))) == 2


def test_for_each_batch_once(folder: Path) -> None:
    assert_same_rows(
        DeltaTable(folder / "delta").to_pyarrow_table(), oracle(SALES, MASTER, "id", "left")
    )
    store = ss.Store.open(folder / "by-id")
    assert store.describe().rows == MASTER.num_rows - 1 + SALES.num_rows
    assert store.manifest.writers == {"w": 1}


def test_what_connect_cannot_do_is_said(said: dict) -> None:
    errors = said["errors"]
    assert 'upsert_into(path, writer="...")' in errors["upsert_into"]
    assert 'into_delta(path, writer="...")' in errors["into_delta"]
    for name in ("upsert_into", "into_delta", "pins", "name"):
        assert errors[name].startswith("SpecError: "), errors[name]
    assert "enrich the stream itself" in errors["pins"]
    assert "SpecError: Spark does not tell this task" in errors["outside"]
