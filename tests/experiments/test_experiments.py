"""Every experiment runs at smoke scale, from measuring to its verdict; the page says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lib.report import read_csv
from experiments.__main__ import main
from experiments.data.products import products_for, share_of
from experiments.data.streams import ZipfStream
from experiments.lib import NOT, Run, Verdict
from experiments.lib.cell import HDD, cell
from experiments.lib.charts import curve, panels
from experiments.lib.measure import Course, interval, measure, measure_anew
from experiments.page import DOCS, page
from experiments.registry import CLAIMS, STUDIES, experiment, names
from semistream import ALGORITHMS
from tests.helpers.paths import ROOT

ROWS = 20_000
NO_READS = ("P2.2", "P1.4")  # about reads, and `memory` has none: a line in the chart, no rows
TIMES = ("rate", "rate_low", "rate_high", "predicted")  # the processor's part of these is measured


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def test_one_for_each_claim() -> None:
    assert names() == [*CLAIMS, *STUDIES]
    assert len(CLAIMS) == 25
    for name in names():
        found = experiment(name)
        assert set(found.minutes) == {"smoke", "laptop", "paper"}
        texts = (found.title, found.claim, found.paper, found.method)
        assert all(text and "|" not in text for text in texts)
        assert found.method.endswith(".")
    assert sum(experiment(name).minutes["laptop"] for name in names()) < 45


SAMPLE = ("P0.2", "P1.3", "P2.2", "P3.2", "P4.1")  # of every paper one


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.campaign) for n in names()],
)
def test_runs_to_a_verdict(name, data, tmp_path, capsys) -> None:
    assert main([name, "--scale", "smoke", "--out", str(tmp_path), "--data", str(data)]) == 0
    said = capsys.readouterr().out
    found = experiment(name)
    assert f"takes about {found.minutes['smoke']:.1f} min; writes" in said
    csv, record, chart = (tmp_path / file for file in found.files)
    rows = read_csv(csv)
    algorithms = {row.get("algorithm") for row in rows}
    assert name in STUDIES or "sweepjoin" in algorithms
    assert name in (*STUDIES, *NO_READS) or "memory" in algorithms
    origin = json.loads(record.read_text())
    assert (origin["seed"], origin["scale"]) == (1, "smoke")
    assert origin["commit"]
    assert {"versions", "machine", "devices"} <= set(origin)
    assert chart.read_bytes()[:4] == b"\x89PNG"
    verdict = found.judge(rows)
    assert f"{verdict.word}: {verdict.ours}" in said
    assert f"### {name} " in page(tmp_path)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "memory"])
def test_the_same_seed_counts_the_same_reads(algorithm, data) -> None:
    run = Run("smoke", 7, data)
    memory = 4 * share_of(ROWS, 0.1)
    store = products_for(algorithm, data, ROWS, memory)
    found = cell(run, store, ZipfStream(ROWS, 1.0, algorithm == "xhybridjoin"), algorithm, memory)
    first, second = measure_anew(found), measure_anew(found)
    for a, b in zip(first, second, strict=True):
        assert a["device"] == HDD.name
        assert a["timed_reads"] > 0
        assert {k: v for k, v in a.items() if k not in TIMES} == {
            k: v for k, v in b.items() if k not in TIMES
        }
    assert first[0]["rate"] == second[0]["rate"], "the papers' processor is charged, not measured"
    if ALGORITHMS[algorithm].disk != "scan":  # a scan reads the same for any stream
        (other, _) = measure_anew(replace(found, seed=8))
        assert (other["bytes"], other["hits"]) != (first[0]["bytes"], first[0]["hits"])


def test_the_page_is_generated_from_what_was_measured() -> None:
    written = (ROOT / "docs" / "reproduction.md").read_text()
    assert written == page(ROOT / DOCS), "run: python -m experiments page"
    for name in CLAIMS:
        (line,) = [line for line in written.splitlines() if line.startswith(f"| [{name}](")]
        assert len(line.split(" | ")) == 6
    assert "Missing" not in written
    assert written.count("hdd-7200 (cold)") > 20


def test_a_verdict_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="numbers and a reason"):
        Verdict(NOT, "1 row/s", " ")
    with pytest.raises(ValueError, match="no verdict"):
        Verdict("perhaps", "1 row/s", "because")


def test_experiments_share_what_they_have_in_common(data) -> None:
    """The same cell is measured once, and nobody can spoil it for the next one."""
    store = products_for("memory", data, ROWS, 1)
    made = []

    def begun(wanted) -> Course:
        made.append(wanted)
        return Course(wanted)

    found = cell(Run("smoke", 3, data), store, ZipfStream(ROWS, 1.0), "memory", 0)
    first = measure(found, begun)
    kept = [dict(row) for row in first]
    first[0]["rate"] = 0.0
    assert measure(found, begun) == kept
    assert measure(replace(found, seed=4), begun) != kept
    assert len(made) == 2


def test_refused_memory_is_a_row_and_not_a_crash(data) -> None:
    store = products_for("meshjoin", data, ROWS, 1)
    (row,) = measure(cell(Run("smoke", 1, data), store, ZipfStream(ROWS, 1.0), "meshjoin", 1000))
    assert "the least that works" in row["refused"]
    _, (panel,) = panels(1)
    curve(panel, [{**row, "x": 1}], "x", "meshjoin")
    assert not panel.lines


def test_interval_of_a_mean() -> None:
    assert interval([5.0]) == (5.0, 5.0)
    low, high = interval([9.0, 10.0, 11.0])  # standard error 0.577, t of 2 degrees 4.303
    assert (low, high) == pytest.approx((10 - 2.484, 10 + 2.484), abs=1e-3)


def test_waves_that_come_back_do_not_widen_an_interval() -> None:
    low, high = interval([1.0, 9.0, 1.0, 9.0, 1.0, 9.0], phases=2)
    assert low == high == pytest.approx(5.0)
    # Two phases, two of each: differences 0.2 and 0.4, so the sum of squares is 0.02 + 0.08 with
    # two degrees, the standard error sqrt(0.05 / 4) and t 4.303.
    low, high = interval([1.0, 9.0, 1.2, 9.4], phases=2)
    assert (high - low) / 2 == pytest.approx(4.303 * (0.05 / 4) ** 0.5, rel=1e-3)
    assert interval([1.0, 9.0], phases=2) == interval([1.0, 9.0])  # one of each: nothing to compare


def test_a_scan_is_timed_for_whole_cycles(data) -> None:
    run = Run("smoke", data=data)
    memory = 10 * share_of(20_000, 0.1)
    store = products_for("meshjoin", data, 20_000, memory)
    wanted = cell(run, store, ZipfStream(20_000, 1.0), "meshjoin", memory, cycles=2,
                  most_rows=10**6)  # fmt: skip
    course = Course(wanted)
    course.warm_up()
    points = course.time()
    read = [p.stats.pages_read - points[0].stats.pages_read for p in points]
    pages = course.master.describe().pages
    step = course.found.split.read / course.found.case.master.max_page_bytes
    course.close()
    assert len(points) == 1 + 2 * 4
    assert all(0 <= n - i * pages / 4 <= 2 * step + 1 for i, n in enumerate(read))


def test_unknown_names_are_told(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["P9.9"])
    assert "no experiment is called P9.9; there are P4.1" in capsys.readouterr().err
    assert main([]) == 0
    assert "P4.1" in capsys.readouterr().out
