"""The laws of the model hold for the real joins, on a small master and a modelled disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.laws import __main__ as laws
from benchmarks.laws import buffer, cache, reads
from benchmarks.laws.cell import Table, table_of
from benchmarks.lib.report import read_csv


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    return table_of(tmp_path_factory.mktemp("laws"), 60_000)


def test_the_corrected_cache_size_is_near_the_best(table) -> None:
    plan = cache.Plan(("cmeshjoin",), (1.0,), (0.2,), shares=(0.0, 0.08, 0.16, 0.3, 0.6), real=())
    (line,) = cache.summary(list(cache.measure(plan, table, 11)))
    assert line["x no cache"] > 1.3, "a cache pays, so a law that gave none would miss"
    assert line["law loses %"] <= 5
    assert 0.05 < line["law share"] < 0.4


def test_the_printed_slope_vanishes_at_no_rate_only(table) -> None:
    case = cache.Sweep(table, "cmeshjoin", 1.0, 0.2, cache.DISK).case
    assert "0 at 100.0%" in cache.printed(case)


def test_the_renewal_law_is_closer_than_equation_9(table) -> None:
    kinds = (("hybridjoin", True), ("hybridjoin", False), ("xhybridjoin", True))
    plan = reads.Plan(kinds, skews=(1.0,), memories=(0.2,))
    for row in reads.measure(plan, table, 11):
        assert abs(row["renewal_error"]) < abs(row["eq9_error"])
        assert abs(row["renewal_error"]) < 0.25
    assert row["pinned_rows"] > 0


def test_the_best_buffer_is_where_the_closed_form_says(table) -> None:
    plan = buffer.Plan(("rmeshjoin",), (8e6,), buffers=(65_000, 260_000, 1_100_000), real=())
    rows = list(buffer.measure(plan, table, 11))
    (line,) = buffer.summary(rows, table.facts)
    assert line["law loses %"] < 3
    ends = [r["disk_rate"] for r in rows if r["buffer"] in (rows[0]["buffer"], rows[-1]["buffer"])]
    assert max(ends) < 0.97 * line["rows/s"], "too small and too large buffers are slower"


def test_the_same_numbers_again(table) -> None:
    plan = reads.Plan((("hybridjoin", False),), skews=(1.0,), memories=(0.1,))
    assert list(reads.measure(plan, table, 3)) == list(reads.measure(plan, table, 3))


def test_what_a_run_leaves(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(reads, "Plan", _one_cell)
    laws.main(["--quick", "--rows", "20k", "--only", "reads", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "verdict: the renewal law" in said
    assert "s left" in said
    (row,) = read_csv(tmp_path / "laws-reads.csv")
    assert row["algorithm"] == "hybridjoin"
    assert (tmp_path / "laws-reads-manifest.json").exists()
    assert (tmp_path / "laws-reads.png").stat().st_size > 10_000


def _one_cell(*args: object, **kwargs: object) -> reads.Plan:
    return PLAN


PLAN = reads.Plan((("hybridjoin", True),), skews=(1.0,), memories=(0.3,))
