"""semistream plan and semistream calibrate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.cli import main
from semistream.planning.machine import DEFAULT_MACHINE, Machine
from semistream.spec import ALGORITHMS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    rows = 300_000
    products = pa.table({"id": np.arange(rows), "price": np.ones(rows), "stock": np.arange(rows)})
    ss.Store.create(folder / "products", products, "id")
    rng = np.random.default_rng(3)
    weights = np.arange(1, rows + 1) ** -1.1
    ids = rng.choice(rows, 30_000, p=weights / weights.sum())
    pq.write_table(
        pa.table({"product": ids, "qty": rng.integers(1, 9, 30_000)}), folder / "s.parquet"
    )
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*words: object, fails: bool = False) -> str:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        assert code == (1 if fails else 0), said.err
        return said.err if fails else said.out

    return call


def test_a_plan_for_people(run, folder: Path) -> None:
    text = run("plan", folder / "products", "--on", "id", "--memory", "2MB")
    assert text.split(":")[0] in ALGORITHMS
    for word in ("predicted rate", "expected wait", "runner-up", "plain broadcast join", "Zipf 1"):
        assert word in text, word


def test_a_plan_for_programs(run, folder: Path) -> None:
    words = ("plan", folder / "products", "--on", "product=id", "--memory", "10%", "--json")
    plan = json.loads(run(*words, "--sample", folder / "s.parquet"))
    assert {"algorithm", "predicted_rate", "memory_split", "alternatives"} <= set(plan)
    assert plan["workload"]["skew"] == pytest.approx(1.1, abs=0.05)
    assert sum(plan["memory_split"].values()) <= plan["memory"]
    uniform = json.loads(run(*words, "--skew", 0))
    assert uniform["hit_ratio"] < plan["hit_ratio"]
    one = json.loads(run(*words, "--skew", 0, "--algorithm", "cachejoin"))
    assert one["algorithm"] == "chybridjoin"
    assert one["alternatives"] == []


def test_the_least_memory_for_a_rate(run, folder: Path) -> None:
    words = ("plan", folder / "products", "--on", "id", "--device", "hdd-7200", "--json")
    plan = json.loads(run(*words, "--rate", 20_000))
    assert plan["predicted_rate"] >= 20_000
    less = json.loads(run(*words, "--memory", int(0.8 * plan["memory"])))
    assert less["predicted_rate"] < 20_000
    assert "use more tasks" in run(*words[:-1], "--rate", 10**12, fails=True)


def test_another_machine(run, folder: Path, tmp_path: Path) -> None:
    words = ("plan", folder / "products", "--on", "id", "--memory", "2MB", "--json")
    slow = Machine(
        DEFAULT_MACHINE.device,
        costs={n: tuple((a, 10 * b) for a, b in p) for n, p in DEFAULT_MACHINE.costs.items()},
        measured="2026-01-01",
    )
    slow.save(tmp_path / "machine.json")
    there = json.loads(run(*words, "--machine", tmp_path / "machine.json"))
    assert there["calibrated"] == "2026-01-01"
    DEFAULT_MACHINE.save(tmp_path / "default.json")
    here = json.loads(run(*words, "--machine", tmp_path / "default.json"))
    assert there["predicted_rate"] == pytest.approx(here["predicted_rate"] / 10, rel=0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "id", "--device", "tape"), "tape.*hdd-7200, ssd, object-store"),
        (("--on", "id", "--skew", "1", "--sample", "s.parquet"), "leave --skew out"),
        (("--on", "id", "--algorithm", "hash"), "'hash'.*auto"),
        (("--on", "id", "--memory", "10"), "least that works is"),
        (("--on", "price"), "the key of"),
        (("--on", "id", "--machine", "nowhere.json"), "nowhere.json cannot be read"),
    ],
)  # fmt: skip
def test_bad_words(run, folder: Path, words: tuple[str, ...], said: str) -> None:
    message = run("plan", folder / "products", *words, fails=True)
    assert re.search(said, message), message


def test_calibrate_keeps_what_it_measures(run, folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("semistream.cli.calibrate.samples.ROWS", (5_000, 20_000))
    monkeypatch.setattr("semistream.cli.calibrate.samples.WARM", 0.005)
    monkeypatch.setattr("semistream.cli.calibrate.samples.TIMED", 0.01)
    monkeypatch.setattr("semistream.cli.calibrate.samples.BATCH", 2_000)
    kept = tmp_path / "machine.json"
    words = ["calibrate", folder / "products", "--out", kept, "--json"]
    try:
        said = json.loads(run(*words, "--seconds", 12))
    except AssertionError:  # the machine is busy, and all algorithms were not met in that time
        said = json.loads(run(*words, "--seconds", 90))
    machine = Machine.load(kept)
    assert said["samples"] > 20
    assert machine.measured
    assert machine.reads
    assert set(DEFAULT_MACHINE.costs) <= set(machine.costs), "every operation was met"
    assert machine.device.name != DEFAULT_MACHINE.device.name
    asked = ("plan", folder / "products", "--on", "id", "--machine", kept, "--memory", "2MB")
    assert "not measured" not in run(*asked)
    assert "too short" in run("calibrate", "--seconds", 1, fails=True)
