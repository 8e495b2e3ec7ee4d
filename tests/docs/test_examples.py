"""The examples run and print what is right. Those over Spark Connect: tests/spark/test_connect."""

from __future__ import annotations

import runpy

import pytest

from tests.helpers.paths import EXAMPLES

SOLD = [i * 7 % 1050 for i in range(600)]
KNOWN, UNKNOWN = [i for i in SOLD if i < 1000], [i for i in SOLD if i >= 1000]


@pytest.fixture(autouse=True)
def _modules_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_all_of_them_are_tested_and_listed() -> None:
    names = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "shop")
    assert names == ["connect", "files_to_parquet", "pipeline", "two_outputs"]
    text = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"({name}.py)" not in text] == []


def test_files_to_parquet(spark, capsys) -> None:
    runpy.run_path(str(EXAMPLES / "files_to_parquet.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "600 sales in 3 micro-batches, the first three:",
        "  1 of product 0 at 0.5",
        "  2 of product 7 at 7.5",
        "  3 of product 14 at 14.5",
        f"{len(UNKNOWN)} are of products that nobody knows",
    ]


def test_two_outputs(spark, capsys) -> None:
    runpy.run_path(str(EXAMPLES / "two_outputs.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        f"known: {len(KNOWN)} sales, with sale_id, product_id, quantity, name, price",
        f"unknown: {len(UNKNOWN)} sales, with sale_id, product_id, quantity",
    ]
