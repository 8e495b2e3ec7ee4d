"""Joins that adapt, on a modelled disk: from a bad division of memory to one about as good as the
best. All time is the device's, so every number here is the same on every machine."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, Cpu
from semistream.budget.split import Division
from semistream.join.adapt.adapt import proposal, skew_of, stream_now
from semistream.join.adapt.climb import Pace
from semistream.join.adapt.divide import Divider, divide_anew
from semistream.master.table import TableMaster
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine
from semistream.testing import ManualClock, check_join
from tests.helpers.sample_data import ALGORITHMS, HOWS, build, least_memory, products, sales

KEYS, BATCH, PART = 20_000, 4_000, 1_000
TABLE = pa.table({"id": np.arange(KEYS), "text": pa.array(["x" * 96] * KEYS)})
MEMORY, PAGE_ROWS = "600kB", 64
READS = {"sweepjoin": None, "cmeshjoin": 16_000, "chybridjoin": 131_000}  # about the best
NO_CPU = Cpu(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # the clock has none


def quick(device: str = "hdd-7200") -> Pace:
    return Pace(rows=1_000, machine=Machine(device=DEVICES[device], cpu=NO_CPU))


class Run:
    """A join on a modelled device, and a stream whose popular keys may change."""

    def __init__(self, algorithm: str, device: str, skew: float = 1.0, **join: object) -> None:
        self.clock, self._rng = ManualClock(), np.random.default_rng(1)
        table = TableMaster(TABLE, "id", page_rows=PAGE_ROWS)
        master = ModelledMaster(table, DEVICES[device], self.clock)
        schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
        self.join = ss.SemiStreamJoin(
            master, "id", algorithm=algorithm, memory=MEMORY, clock=self.clock,
            stream_schema=schema, **join,
        )  # fmt: skip
        weight = 1 / np.arange(1, KEYS + 1) ** skew
        self._share = np.cumsum(weight) / weight.sum()
        self.change_keys()

    def change_keys(self) -> None:
        """Other keys are popular from now on."""
        self._order = self._rng.permutation(KEYS)

    def push(self, rows: int) -> float:
        """So many rows; returns how many were answered per second, from the end of one step of the
        disk phase to that of another."""
        ends: list[tuple[int, float]] = []
        steps = self.join.stats.steps
        for _ in range(rows // PART):
            keys = self._order[np.searchsorted(self._share, self._rng.random(PART))]
            for _ in self.join.push(pa.record_batch({"id": keys, "n": keys})):
                pass
            stats = self.join.stats
            assert stats.bytes_held <= stats.budget_bytes
            if stats.steps > steps:
                ends.append((stats.rows_matched, self.clock()))
                steps = stats.steps
        if len(ends) < 2:
            return 0.0
        return (ends[-1][0] - ends[0][0]) / (ends[-1][1] - ends[0][1])

    def divide(self, share: float, read: int | None) -> Run:
        engine = self.join._engine
        assert engine is not None
        assert divide_anew(engine, Division(share, read or engine.split.read))
        return self


def fixed_rate(algorithm: str, device: str, share: float, skew: float = 1.0) -> float:
    run = Run(algorithm, device, skew).divide(share, READS[algorithm])
    run.push(5 * BATCH)  # warm
    return run.push(8 * BATCH)


@cache
def best_rate(algorithm: str, device: str, skew: float = 1.0) -> float:
    """Of fixed divisions."""
    shares = [0.12, 0.2, 0.3] if skew else [0.02]
    return max(fixed_rate(algorithm, device, share, skew) for share in shares)


BAD = [(0.02, None), (0.9, 1)]  # front_share, read_bytes
MANY = [
    pytest.param(*case, marks=pytest.mark.slow if case[:2] != ("sweepjoin", "hdd-7200") else [])
    for case in product(READS, ["hdd-7200", "ssd"], BAD)
]


@pytest.mark.parametrize(("algorithm", "device", "bad"), MANY)
def test_from_a_bad_division_to_a_good_one(algorithm, device, bad) -> None:
    """Its own rate counts, not just the place that it comes to: first from a bad division, then
    after other keys have become popular."""
    share, read = bad
    params = ss.Params(front_share=share, read_bytes=read if algorithm != "sweepjoin" else None)
    run = Run(algorithm, device, params=params, adapt=quick(device))
    best = best_rate(algorithm, device)
    assert 0 < run.push(2 * BATCH) < 0.8 * best
    settling = {"sweepjoin": 23, "cmeshjoin": 20, "chybridjoin": 23}
    run.push(settling[algorithm] * BATCH)
    assert run.push(10 * BATCH) > 0.9 * best
    run.change_keys()
    run.push(12 * BATCH)
    assert run.push(8 * BATCH) > 0.9 * best


def test_the_default_pace_settles_within_a_million_rows() -> None:
    machine = Machine(device=DEVICES["hdd-7200"], cpu=NO_CPU)
    bad = ss.Params(front_share=0.9)
    run = Run("sweepjoin", "hdd-7200", params=bad, adapt=Pace(machine=machine))
    adapting, batches = run.join._adapting, 0
    assert adapting is not None
    while not (adapting.resting and run.join.stats.moves):
        run.push(BATCH)
        batches += 1
        assert batches < 200
    assert run.push(20 * BATCH) > 0.9 * best_rate("sweepjoin", "hdd-7200")


def test_when_other_keys_become_popular_the_division_stays() -> None:
    """It is still right: all that the front stage needs is time."""
    run = Run("sweepjoin", "hdd-7200", params=ss.Params(front_share=0.9), adapt=quick())
    run.push(60 * BATCH)
    assert run.join._adapting is not None
    assert run.join._adapting.resting
    moves, division = run.join.stats.moves, run.join.division
    run.change_keys()
    hits = run.join.stats.front_hits
    run.push(PART)
    assert run.join.stats.front_hits - hits < 0.3 * PART
    run.push(12 * BATCH)
    assert (run.join.stats.moves, run.join.division) == (moves, division)
    assert run.push(5 * BATCH) > 0.9 * best_rate("sweepjoin", "hdd-7200")


@pytest.mark.parametrize(
    "algorithm", ["sweepjoin", *(pytest.param(a, marks=pytest.mark.slow) for a in list(READS)[1:])]
)
def test_a_uniform_stream(algorithm) -> None:
    """Where nothing is popular a cache is a burden."""
    best = best_rate(algorithm, "hdd-7200", skew=0.0)
    run = Run(algorithm, "hdd-7200", 0.0, params=ss.Params(front_share=0.8), adapt=quick())
    run.push((30 if algorithm == "chybridjoin" else 15) * BATCH)  # few rows a read: it takes longer
    assert run.push(10 * BATCH) > 0.9 * best


# --- what the model proposes --------------------------------------------------------------------


def proposed(run: Run, device: str = "hdd-7200", hits: float = 0.0) -> Division | None:
    assert run.join._engine is not None
    return proposal(run.join._engine, Machine(device=DEVICES[device], cpu=NO_CPU), hits)


def test_a_proposal_does_not_depend_on_what_the_user_has_set() -> None:
    found = {
        proposed(Run("cmeshjoin", "hdd-7200", params=ss.Params(front_share=share, read_bytes=read)))
        for share, read in product([0.0, 0.02, 0.9], [None, 1, 200_000])
    }
    assert len(found) == 1
    division = found.pop()
    assert division is not None
    assert 0.05 < division.share < 0.5


@pytest.mark.parametrize("skew", [0.6, 0.8, 1.0, 1.2])
def test_hits_tell_the_skew(skew) -> None:
    run = Run("sweepjoin", "hdd-7200", skew, params=ss.Params(front_share=0.5))
    run.push(5 * BATCH)
    before = run.join.stats
    run.push(5 * BATCH)
    hits = run.join.stats.front_hits - before.front_hits
    rows = run.join.stats.rows_matched - before.rows_matched
    assert run.join._engine is not None
    assert run.join.workload().skew_error is None  # too little memory for a sketch
    assert stream_now(run.join._engine, hits / rows).skew == pytest.approx(skew, abs=0.2)


@pytest.mark.parametrize(("hits", "skew"), [(0.0, 0.0), (1.0, 2.0)])
def test_hits_beyond_what_the_model_knows(hits, skew) -> None:
    assert skew_of(hits, 100, 10_000) == pytest.approx(skew, abs=1e-3)


def test_a_machine_that_lacks_a_cost_is_no_reason_to_stop() -> None:
    run = Run("sweepjoin", "hdd-7200", adapt=Pace(rows=1_000, machine=Machine(DEVICES["ssd"])))
    run.push(3 * BATCH)
    assert run.join._engine is not None
    proposed = proposal(run.join._engine, Machine(DEVICES["ssd"]), 0.5)
    assert proposed is not None, "by the usual costs"


def test_a_wrong_machine_does_no_harm() -> None:
    """What is proposed for another one is tried, and given up where it is worse."""
    slow = Machine(
        DEVICES["ssd"], cpu=PAPER_CPU
    )  # the processor is all: as large a cache as can be
    bad = ss.Params(front_share=0.9)
    run = Run("sweepjoin", "hdd-7200", params=bad, adapt=Pace(rows=1_000, machine=slow))
    run.push(72 * BATCH)
    assert run.push(36 * BATCH) > 0.9 * best_rate("sweepjoin", "hdd-7200")  # of many rounds


def test_without_adapt_nothing_moves() -> None:
    run = Run("sweepjoin", "hdd-7200", params=ss.Params(front_share=0.9))
    before = run.join.division
    run.push(5 * BATCH)
    assert run.join.division == before
    assert run.join.stats.moves == 0


# --- results ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop() -> tuple[pa.Table, pa.Table]:
    rng = random.Random(3)
    keys = [rng.choice([*range(300), None]) for _ in range(400)] + [7] * 20
    return products(keys), sales(rng, 900, [*range(0, 330, 3), *[7] * 30, *[8] * 30, None])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_with_tiny_periods(shop, algorithm, how, tmp_path, monkeypatch) -> None:
    """Every algorithm x join type, in random batches and with snapshots in between."""
    table, stream = shop
    moves: list[int] = []
    settle = Divider.settle

    def counted(self: Divider) -> bool:
        before = self.moves
        done = settle(self)
        moves.append(self.moves - before)
        return done

    monkeypatch.setattr(Divider, "settle", counted)
    master = build("pread", table, "id", tmp_path)
    memory = int(1.3 * least_memory(master, algorithm, stream, on="id"))
    tiny = Pace(rows=1, turnovers=0.01, repeats=1, warm=1, rest=2)
    check_join(
        master, stream, on="id", how=how, algorithm=algorithm, memory=memory, table=table,
        params=ss.Params(page_pool=0.3 if algorithm == "inlj" else 0.0), adapt=tiny, rng=5,
    )  # fmt: skip
    assert (sum(moves) > 0) == (ss.ALGORITHMS[algorithm].disk != "none")
    master.close()


def test_another_read_size_does_not_seek_back() -> None:
    """Rows whose cycle ends within a read leave then, and the rest of it is met without reading it
    again. As it was, every such read was cut short, and where the sizes of reads had changed the
    disk went back a little nearly every time, ever after."""
    run = Run("cmeshjoin", "hdd-7200").divide(0.2, 26_000)
    run.push(2 * BATCH)
    run.divide(0.2, 17_000)
    run.push(2 * BATCH)
    master = run.join.master
    assert isinstance(master, ModelledMaster)
    before = master.use
    run.push(6 * BATCH)
    asked = master.use - before
    cycles = asked.pages / master.describe().pages
    assert cycles > 3
    assert asked.requests - asked.sequential <= cycles + 1


def test_rows_that_left_leave_no_holes() -> None:
    """Rows leave in any order, and their bytes come back only when their chunk goes or is copied:
    as it was, bytes ran short while half of the slots were free."""
    run = Run("chybridjoin", "hdd-7200", skew=0.0).divide(0.02, 40_000)
    run.push(2 * BATCH)
    assert run.join._engine is not None
    assert run.join._engine.phase is not None
    backlog, waiting = run.join._engine.phase.parts.backlog, []
    for _ in range(8):
        run.push(BATCH)
        waiting.append(len(backlog) / backlog.capacity)
    assert np.mean(waiting) > 0.8
