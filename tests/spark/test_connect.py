"""Spark Connect: clients in processes of their own, a server on this machine; a pipeline there."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import semistream as ss
from semistream.testing import assert_same_rows, oracle
from tests.docs.test_examples import KNOWN, UNKNOWN
from tests.helpers.connect_server import ConnectServer
from tests.helpers.paths import EXAMPLES
from tests.helpers.spark_data import SPARK_HOWS, master_table, sales_table, write_files

MASTER = master_table([*range(100), 7, 7, None])
SALES = sales_table(200, [*range(120), 7, 7, None])


@pytest.fixture(scope="module")
def folder(connect_server: ConnectServer, tmp_path_factory) -> Path:
    """What the client has left, in a folder."""
    folder = tmp_path_factory.mktemp("client")
    write_files(SALES, folder / "sales", 2)
    pq.write_table(MASTER, folder / "master.parquet")
    ss.Store.create(folder / "store", MASTER, key="id", page_bytes=512).close()
    connect_server.run("-m", "tests.helpers.connect_child", folder)
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> dict:
    return json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize("how", SPARK_HOWS)
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
    query = said["query"]
    assert len(list((folder / "pins" / query["id"]).glob("*.pin"))) == 2
    halves = [SALES.slice(0, 100), SALES.slice(100)]
    rows = [len(oracle(half, MASTER, "id", "left")) for half in halves]
    assert query["progress"] == [[i, 100, rows[i]] for i in range(2)]


def test_for_each_batch_once(folder: Path) -> None:
    assert_same_rows(
        DeltaTable(folder / "delta").to_pyarrow_table(), oracle(SALES, MASTER, "id", "left")
    )
    store = ss.Store.open(folder / "by-id")
    assert store.describe().rows == MASTER.num_rows - 1 + SALES.num_rows
    assert store.manifest.writers == {"w/upsert": 1}


def test_what_connect_cannot_do_is_said(said: dict) -> None:
    errors = said["errors"]
    assert 'upsert_into(path, writer="...")' in errors["upsert_into"]
    assert 'into_delta(path, writer="...")' in errors["into_delta"]
    for name in ("upsert_into", "into_delta", "pins", "name"):
        assert errors[name].startswith("SpecError: "), errors[name]
    assert "enrich the stream itself" in errors["pins"]
    assert 'into_delta(path, name="...")' in errors["twice"]
    assert "SpecError: Spark does not tell this task" in errors["outside"]


# --- examples, a pipeline -------------------------------------------------------------------------


def test_the_example(connect_server: ConnectServer) -> None:
    assert connect_server.run(EXAMPLES / "connect.py").splitlines() == [
        "the store has version 2",
        f"{len(KNOWN)} sales of known products",
        "product 7 is now called: better product 7",
        "and a stream of changes made version 3",
    ]


def test_a_pipeline(connect_server: ConnectServer, tmp_path: Path, monkeypatch, capfd) -> None:
    """Two runs; the store changes in between, and the second run has just the new sales."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    pipeline = importlib.import_module("pipeline")
    warehouse = connect_server.warehouse
    pipeline.prepare(tmp_path)
    store, sales = tmp_path / "data" / "store", tmp_path / "data" / "sales"
    first = pq.read_table(sales)
    pipeline.run(tmp_path, connect_server.url)
    capfd.readouterr()
    pipeline.show(warehouse)
    assert capfd.readouterr().out.splitlines() == [
        f"{len(KNOWN)} sales have their product, the first three:",
        "  1 of product 0 at 0.5",
        "  2 of product 7 at 7.5",
        "  3 of product 14 at 14.5",
        f"{len(set(UNKNOWN))} products are unknown",
    ]
    news = pa.table({"product_id": pa.array([7], pa.int64()), "name": ["new"], "price": [1.0]})
    ss.Store.open(store).upsert(news)
    more = first.slice(0, 3).set_column(0, "sale_id", pa.array([9000, 9001, 9002]))
    pq.write_table(more, sales / "more.parquet")
    pipeline.run(tmp_path, connect_server.url)

    products = pq.read_table(tmp_path / "data" / "products.parquet")
    expected = [(*row, 1) for row in oracle(first, products, "product_id", "inner")]
    changed = pa.concat_tables([products.filter(pa.compute.field("product_id") != 7), news])
    expected += [(*row, 2) for row in oracle(more, changed, "product_id", "inner")]
    assert_same_rows(pq.read_table(warehouse / "enriched_sales"), expected)
    assert len(list((tmp_path / "pins").rglob("*.pin"))) == 2


def test_a_pipeline_must_name_columns(connect_server: ConnectServer, tmp_path: Path) -> None:
    """The function of a pipeline that does not is told how, before anything runs. One that does may
    also shuffle."""
    ss.Store.create(tmp_path / "store", pa.table({"id": [1]}), key="id").close()
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: wrong\nstorage: {tmp_path.as_uri()}\nlibraries: [{{glob: {{include: wrong.py}}}}]\n"
    )
    (tmp_path / "wrong.py").write_text(
        "from pyspark import pipelines as dp\n"
        "from semistream.spark import enrich\n\n"
        "@dp.table\n"
        "def right():\n"
        f"    return enrich(spark.readStream.table('sold'), {str(tmp_path / 'store')!r}, on='id',\n"
        "                  stream_schema='id bigint', shuffle='key', partitions=2)\n\n"
        "print('right')\n\n"
        "@dp.table\n"
        "def wrong():\n"
        f"    return enrich(spark.readStream.table('sold'), {str(tmp_path / 'store')!r}, on='id')\n"
    )
    with pytest.raises(
        AssertionError, match=r'(?s)\nright\n.*SpecError: .*stream_schema="id bigint'
    ):
        connect_server.run(
            "-m", "pyspark.pipelines.cli", "dry-run", "--spec", tmp_path / "spark-pipeline.yml"
        )
