"""Joins that adapt, on a modelled disk: from a bad division of memory to one about as good as the
best. All time is the device's, so every number here is the same on every machine."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from sample_data import ALGORITHMS, HOWS, build, least_memory, products, sales

import semistream as ss
from semistream.adapt import Pace
from semistream.device import DEVICES
from semistream.dividing import Divider, divide_anew
from semistream.master.memory import MemoryMaster
from semistream.master.modelled import ModelledMaster
from semistream.plan import Division
from semistream.testing import ManualClock, check_join

KEYS, BATCH = 8_000, 4_000
TABLE = pa.table({"id": np.arange(KEYS), "text": pa.array(["x" * 96] * KEYS)})
QUICK = Pace(rows=1_000)
READS = {"sweepjoin": [26_000], "cmeshjoin": [15_000, 40_000], "chybridjoin": [40_000, 70_000]}
PAGE_ROWS = {"sweepjoin": 32, "cmeshjoin": 64, "chybridjoin": 64}
MEMORY = {"sweepjoin": "200kB", "cmeshjoin": "300kB", "chybridjoin": "300kB"}


class Run:
    """A join on a modelled device, and a stream whose popular keys may change."""

    def __init__(self, algorithm: str, device: str, skew: float = 1.0, **join: object) -> None:
        self.clock, self._rng = ManualClock(), np.random.default_rng(1)
        table = MemoryMaster(TABLE, "id", page_rows=PAGE_ROWS[algorithm])
        master = ModelledMaster(table, DEVICES[device], self.clock)
        schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
        self.join = ss.SemiStreamJoin(
            master, "id", algorithm=algorithm, memory=MEMORY[algorithm], clock=self.clock,
            stream_schema=schema, **join,
        )  # fmt: skip
        weight = 1 / np.arange(1, KEYS + 1) ** skew
        self._share = np.cumsum(weight) / weight.sum()
        self.change_keys()

    def change_keys(self) -> None:
        """Other keys are popular from now on."""
        self._order = self._rng.permutation(KEYS)

    def push(self, rows: int) -> float:
        """So many rows; returns how many were answered per second."""
        before, begin = self.join.stats.rows_matched, self.clock()
        for _ in range(rows // BATCH):
            keys = self._order[np.searchsorted(self._share, self._rng.random(BATCH))]
            for _ in self.join.push(pa.record_batch({"id": keys, "n": keys})):
                pass
            assert self.join.stats.bytes_held <= self.join.stats.budget_bytes
        return (self.join.stats.rows_matched - before) / (self.clock() - begin)

    def divide(self, share: float, read: int) -> Run:
        assert self.join._engine is not None
        assert divide_anew(self.join._engine, Division(share, read))
        return self

    def push_until_it_rests(self, most: int = 120) -> tuple[float, int]:
        """Returns the share and the read it has come to."""
        adapting = self.join._adapting
        assert adapting is not None
        for _ in range(most):
            self.push(BATCH)
            if adapting.resting and self.join.stats.moves:
                return adapting.divider.division.share, adapting.divider.division.read
        raise AssertionError(f"it still moves after {self.join.stats.moves} times")


def fixed_rate(algorithm: str, device: str, share: float, read: int, skew: float = 1.0) -> float:
    run = Run(algorithm, device, skew).divide(share, read)
    run.push(5 * BATCH)  # warm
    return run.push(5 * BATCH)


@cache
def best_rate(algorithm: str, device: str, skew: float = 1.0) -> float:
    """Of fixed divisions."""
    places = product([0.16, 0.3, 0.5] if skew else [0.02], READS[algorithm])
    return max(fixed_rate(algorithm, device, share, read, skew) for share, read in places)


BAD = [(0.02, None), (0.9, 1)]  # front_share, read_bytes
MANY = [
    pytest.param(*case, marks=pytest.mark.slow if case != ("sweepjoin", "hdd-7200") else [])
    for case in product(READS, ["hdd-7200", "ssd"])
]


@pytest.mark.parametrize(("algorithm", "device"), MANY)
def test_from_a_bad_division_to_a_good_one(algorithm, device) -> None:
    best = best_rate(algorithm, device)
    for share, read in BAD:
        bad = ss.Params(front_share=share, read_bytes=read if len(READS[algorithm]) > 1 else None)
        run = Run(algorithm, device, params=bad, adapt=QUICK)
        first = run.push(BATCH)
        assert first < 0.8 * best
        assert fixed_rate(algorithm, device, *run.push_until_it_rests()) > 0.9 * best


def test_other_keys_become_popular() -> None:
    best = best_rate("sweepjoin", "hdd-7200")
    run = Run("sweepjoin", "hdd-7200", params=ss.Params(front_share=0.9), adapt=QUICK)
    run.push_until_it_rests()
    run.change_keys()
    run.push(8 * BATCH)
    assert fixed_rate("sweepjoin", "hdd-7200", *run.push_until_it_rests()) > 0.9 * best
    assert run.push(4 * BATCH) > 0.9 * best


@pytest.mark.parametrize(
    "algorithm", ["sweepjoin", *(pytest.param(a, marks=pytest.mark.slow) for a in list(READS)[1:])]
)
def test_a_uniform_stream(algorithm) -> None:
    """Where nothing is popular a cache is a burden."""
    best = best_rate(algorithm, "hdd-7200", skew=0.0)
    run = Run(algorithm, "hdd-7200", 0.0, params=ss.Params(front_share=0.8), adapt=QUICK)
    run.push(25 * BATCH if algorithm == "sweepjoin" else 60 * BATCH)
    assert run.push(5 * BATCH) > 0.9 * best


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
        adapt=tiny, rng=5,
    )  # fmt: skip
    member = ss.ALGORITHMS[algorithm]
    assert (sum(moves) > 0) == (member.front == "groups" or member.disk in ("scan", "seek", "plan"))
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
    run.push(2 * BATCH)
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
