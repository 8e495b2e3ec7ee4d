"""The demo with tiny sizes. It makes its own Spark, so it runs as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semistream import Store
from semistream.cli import main
from semistream.cli.demo import Options, run
from semistream.cli.demo.data import products, sales
from semistream.cli.demo.runs import Outcome
from semistream.cli.demo.view import View, bar, trend
from semistream.errors import SemiStreamError
from semistream.spark import BatchProgress

SMALL = ("--products", "20k", "--batches", "4", "--batch-rows", "5k", "--memory", "400kB")


@pytest.mark.slow
def test_the_demo_ends_with_equal_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "semistream.cli", "demo", *SMALL, "--out", str(out), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert data["same_rows"] is True
    ours, sparks = data["runs"]["semistream"], data["runs"]["spark"]
    assert ours["rows_in"] == sparks["rows_in"] == 20_000
    assert ours["rows_out"] == sparks["rows_out"] == _known_sales(out)
    assert ours["checksum"] == sparks["checksum"]
    assert len(ours["batch_seconds"]) == 4
    assert 0 < data["peak_bytes"] <= data["budget_bytes"] == 400_000
    assert 0 < data["hit_ratio"] < 1
    assert data["pages_read"] > 0
    assert data["ratios"]["spark"] > 0
    _check_files(out, ours["rows_out"])


def _known_sales(out: Path) -> int:
    keys = pq.read_table(out / "sales")["product_id"].to_numpy()
    return int((keys < 20_000).sum())


def _check_files(out: Path, rows: int) -> None:
    warehouse = pq.read_table(out / "warehouse")
    assert warehouse.num_rows == rows
    assert {"sale_id", "product_id", "name", "price"} <= set(warehouse.column_names)
    assert Store.open(out / "products").verify() > 0
    left = {p.name for p in out.iterdir() if not p.name.startswith(".")}
    assert left == {"products", "products.parquet", "sales", "spark.log", "warehouse"}


def test_products_are_about_120_bytes_and_do_not_depend_on_the_slice() -> None:
    table = products(0, 1_000)
    assert 100 < table.nbytes / table.num_rows < 140
    assert table["product_id"].to_pylist() == list(range(1_000))


def test_sales_are_skewed() -> None:
    (table,) = sales(20_000, 1_000, 1.0, 1)
    counts = sorted(c["counts"] for c in table["product_id"].value_counts().to_pylist())
    assert sum(counts[-100:]) > 10_000
    (table,) = sales(20_000, 1_000, 0.0, 1)
    counts = sorted(c["counts"] for c in table["product_id"].value_counts().to_pylist())
    assert sum(counts[-100:]) < 5_000


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SemiStreamError, match="not made by the demo"):
        run(Options(out=tmp_path), View(sys.stderr))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("words", ["--products 0", "--batches 2", "--batch-rows 1", "--skew -1"])
def test_sizes_that_cannot_work(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words.split()]) == 1
    assert words.split()[0] in capfd.readouterr().err


def test_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "Spark needs Java 17 or newer, and none was found: " in capfd.readouterr().err
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["demo", "--out", str(tmp_path / "out"), "--json"]) == 1
    assert "JAVA_HOME" in json.loads(capfd.readouterr().out)["error"]
    assert not (tmp_path / "out").exists()


def test_counters_of_some_micro_batches(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path)
    assert outcome.counters() is None
    for batch, hits in ((0, 5), (1, 10)):
        outcome.progress[batch] = BatchProgress(
            "query", batch, "call", 0, "products", rows_in=10, front_hits=hits, pages_read=3,
            bytes_read=30, bytes_held=14 + 2 * batch, peak_bytes=9 - batch, budget_bytes=20,
            algorithm="sweepjoin", tasks=2,
        )  # fmt: skip
    found = outcome.counters()
    assert (found.rows_in, found.bytes_held, found.peak_bytes, found.pages_read) == (20, 8, 9, 6)
    assert (found.hit_ratio, outcome.counters(last=0).hit_ratio) == (0.75, 0.5)


def test_bars() -> None:
    assert bar(0.5) == "█" * 12 + "░" * 12
    assert bar(2.0) == "█" * 24
    assert trend([1.0, 8.0]) == "▂█"
    assert trend([]) == ""
