"""The benchmark "prediction against measurement", on the modelled disk, whose seconds are the same
on every machine."""

from __future__ import annotations

import numpy as np
import pytest

import semistream as ss
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.master.facts import facts
from semistream.master.table import TableMaster
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine
from semistream.planning.predict import predict
from semistream.planning.work import Case
from semistream.testing import ManualClock

pytest.importorskip("matplotlib")
from benchmarks.lib import workload
from benchmarks.lib.report import read_csv
from benchmarks.prediction import __main__ as prediction
from benchmarks.prediction.report import compare_choices, error_summary, median_error
from benchmarks.prediction.setup import known_stream

SMALL = (
    "--devices hdd-7200 --modelled-rows 100k --memory 10% --skews 0,1 --jobs 1 "
    "--algorithms sweepjoin,meshjoin,cmeshjoin,chybridjoin,ssij"
)


def test_predictions_hold_on_the_modelled_disk(tmp_path, capsys) -> None:
    rows = prediction.main([*SMALL.split(), "--out", str(tmp_path)])
    assert len(rows) == 10
    assert all(row["steady"] for row in rows)
    assert median_error(rows) <= 0.05
    said = capsys.readouterr().out
    assert "10/10, 0 s left" in said
    assert "planner: " in said
    kept = read_csv(tmp_path / "prediction.csv")
    assert [row["measured"] for row in kept] == [row["measured"] for row in rows]
    for name in ("planner.csv", "prediction-manifest.json", "prediction.png"):
        assert (tmp_path / name).stat().st_size > 0


def test_choices_are_compared_with_the_best_measured() -> None:
    where = {"device": "ssd", "memory": "10%", "skew": 1.0}
    rows = [
        {**where, "algorithm": "meshjoin", "measured": 50.0},
        {**where, "algorithm": "sweepjoin", "measured": 200.0},
    ]
    (verdict,) = compare_choices(rows, {("ssd", "10%", 1.0): "meshjoin"})
    assert (verdict["best"], verdict["ratio"]) == ("sweepjoin", 0.25)
    assert compare_choices(rows, {("ssd", "3%", 1.0): "meshjoin"}) == []


def test_the_summary_names_the_worst() -> None:
    where = {"device": "ssd", "memory": "10%", "algorithm": "inlj"}
    rows = [{**where, "skew": skew, "error": skew / 4 - 0.3} for skew in (0.0, 1.0, 1.2)]
    everything, only = error_summary(rows)
    assert (everything["algorithm"], only["algorithm"]) == ("all", "inlj")
    assert everything["worst"] == "-30.0 %"
    assert everything["median error"] == "5.0 %"
    assert everything["within 15 %"] == "67 %"
    assert everything["at"] == "inlj, 10%, Zipf 0"


@pytest.mark.parametrize("sketch", [True, False])
@pytest.mark.parametrize("name", prediction.NAMES)
def test_slots_are_predicted_exactly(name, sketch) -> None:
    """Also where a sample of the stream takes some of the memory."""
    table = workload.master_table(0, 20_000)
    master = ModelledMaster(TableMaster(table, workload.KEY), DEVICES["ssd"], ManualClock())
    stream = workload.stream_table(np.random.default_rng(1), 100, 20_000, 1.0)
    params = ss.Params(sketch=sketch, front_share=0.3, read_bytes=100_000, page_pool=0.2)
    for memory in (600_000, 3_000_000):
        known = known_stream(1.0, len(stream))
        case = Case(ss.ALGORITHMS[name], facts(master), known, memory, params)
        found = predict(case, Machine(device=DEVICES["ssd"], cpu=PAPER_CPU))
        join = ss.SemiStreamJoin(master, workload.KEY, algorithm=name, memory=memory, params=params)
        for _ in join.push(stream.to_batches()[0]):
            pass
        assert join.stats.slots == found.work.waiting


@pytest.mark.parametrize("words", ["--devices floppy", "--algorithms nestedloop"])
def test_unknown_words_are_refused(words, capsys) -> None:
    with pytest.raises(SystemExit):
        prediction.parse(words.split())
    assert "choose among" in capsys.readouterr().err
