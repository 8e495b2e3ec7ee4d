"""What the experiments with a front stage make of measured rows."""

from __future__ import annotations

import pytest

from experiments.claims.p0_2_cache_size import law_at
from experiments.lib import Run
from experiments.lib.cell import HDD, PAPER
from experiments.lib.charts import look
from experiments.lib.front_claims import (
    Line,
    both_parts,
    by_memory,
    by_rows,
    grown,
    law_gain,
    on_data,
    ratio_at,
    ratios,
    times,
)
from semistream.spec import MasterFacts


def row(line: str, x: float, rate: float, **more: object) -> dict[str, object]:
    wide = {"rate_low": rate * 0.9, "rate_high": rate * 1.1}
    return {"line": line, "x": x, "rate": rate, "device": HDD.name, "cpu": PAPER, **wide, **more}


def test_a_ratio_takes_both_intervals_at_their_worst() -> None:
    (found,) = ratios([row("fast", 1, 300.0), row("slow", 1, 100.0), row("fast", 2, 1.0)],
                      "fast", "slow")  # fmt: skip
    assert found["ratio"] == pytest.approx(3)
    assert found["ratio_low"] == pytest.approx(270 / 110)
    assert found["ratio_high"] == pytest.approx(330 / 90)


def test_refused_rows_have_no_ratio() -> None:
    refused = {"line": "fast", "x": 1, "refused": "too small"}
    assert ratio_at([refused, row("slow", 1, 100.0)], "fast", "slow") == {}


def test_a_tenth_of_the_master_is_also_the_last_point_by_size() -> None:
    rows = [
        row("meshjoin", 1, 1.0, part="memory", rows=50),
        row("meshjoin", 10, 2.0, part="memory", rows=50),
        row("meshjoin: Zipf 0", 10, 3.0, part="memory", rows=50),
    ]
    added = [r for r in both_parts(rows, [Line("meshjoin")]) if r["part"] == "rows"]
    assert [(r["x"], r["rate"]) for r in added] == [(50, 2.0)]


def test_memory_is_the_same_at_every_size_and_belongs_to_the_largest() -> None:
    run = Run("laptop")
    shares, sizes = by_memory(run), by_rows(run)
    assert {memory for _, _, memory in sizes} == {shares[-1][2]}
    assert [rows for _, rows, _ in sizes] == [400_000, 1_200_000]


def test_data_that_was_not_measured_has_no_number() -> None:
    some = [row("a", 0, 4.0, part="data", data="here", percent=10),
            row("b", 0, 2.0, part="data", data="here", percent=10)]  # fmt: skip
    assert on_data(some, "here", "a", "b") == [2.0]
    assert on_data(some, "elsewhere", "a", "b") == []
    assert times([]) == "not measured"


def test_a_grown_master_has_the_same_rows_and_more_of_them() -> None:
    known = MasterFacts("m", ("k",), 1000, 120_000, 10, 12_000, 12_500, 120, 5, 1, True, True, True,
                        True, False, False, False, False, True, 240)  # fmt: skip
    large = grown(known, 5_000)
    assert (large.rows, large.bytes, large.pages, large.resident_bytes) == (
        5_000,
        600_000,
        50,
        1200,
    )
    assert (large.row_bytes, large.page_bytes) == (120, 12_000)


def test_the_corrected_law_at_the_papers_sizes() -> None:
    """M/(c h) = 1 + ln(R/h): 13.0 % and 20.1 % of the memory, a gain of 2.5 and 3.8."""
    assert law_at(0.01) == pytest.approx(0.130, abs=0.001)
    assert law_at(0.1) == pytest.approx(0.201, abs=0.001)
    assert law_gain(0.01) == pytest.approx(2.5, abs=0.05)
    assert law_gain(0.1) == pytest.approx(3.8, abs=0.05)
    assert law_gain(0.1, skew=0.5) < 1.05  # little to gain from a moderate skew


def test_variants_look_like_their_algorithm_but_hollow() -> None:
    usual, variant = look("meshjoin"), look("meshjoin: Zipf 0")
    assert variant["color"] == usual["color"]
    assert variant["linestyle"] != usual["linestyle"]
    assert "markerfacecolor" not in usual
