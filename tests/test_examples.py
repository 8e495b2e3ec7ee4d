"""Every example runs, and what it prints is right."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connect_server import ConnectServer

import semistream as ss
from semistream.testing import assert_same_rows, oracle

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SOLD = [i * 7 % 1050 for i in range(600)]
KNOWN, UNKNOWN = [i for i in SOLD if i < 1000], [i for i in SOLD if i >= 1000]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        for known in (name, "shop"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        return importlib.import_module(name)

    return load


def test_all_of_them_are_tested_and_listed() -> None:
    names = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "shop")
    assert names == ["connect", "files_to_parquet", "pipeline", "two_outputs"]
    text = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"({name}.py)" not in text] == []


def test_files_to_parquet(spark, example, capsys) -> None:
    example("shop")  # for the script to find
    runpy.run_path(str(EXAMPLES / "files_to_parquet.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "600 sales in 3 micro-batches, the first three:",
        "  1 of product 0 at 0.5",
        "  2 of product 7 at 7.5",
        "  3 of product 14 at 14.5",
        f"{len(UNKNOWN)} are of products that nobody knows",
    ]


def test_two_outputs(spark, example, capsys) -> None:
    example("shop")
    runpy.run_path(str(EXAMPLES / "two_outputs.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        f"known: {len(KNOWN)} sales, with sale_id, product_id, quantity, name, price",
        f"unknown: {len(UNKNOWN)} sales, with sale_id, product_id, quantity",
    ]


def test_connect(connect_server: ConnectServer) -> None:
    assert connect_server.run(EXAMPLES / "connect.py").splitlines() == [
        "the store has version 2",
        f"{len(KNOWN)} sales of known products",
        "product 7 is now called: better product 7",
        "and a stream of changes made version 3",
    ]


def test_pipeline(connect_server: ConnectServer, example, tmp_path: Path, capfd) -> None:
    """Two runs; the store changes in between, and the second run has just the new sales."""
    pipeline = example("pipeline")
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
