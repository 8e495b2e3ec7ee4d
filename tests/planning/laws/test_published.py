"""The published equations by hand-worked numbers, and the corrected ones beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.errors import SpecError
from semistream.planning.laws import renewal, zipf
from semistream.planning.laws.published import cached, hybrid, mesh
from tests.helpers import model_simulator as simulator

KAPPA = 47_000.0
SYMBOLS = mesh.MeshSymbols(
    n_r=100, v_p=1000, v_r=100, v_s=20, c_io=lambda b: 0.01 + 0.001 * b,
    c_h=1e-4, c_o=2e-4, c_e=1e-5, c_s=2e-5, c_a=3e-5, sigma=0.5, f=5, pointer=4,
)  # fmt: skip


# --- MESHJOIN ---------------------------------------------------------------------------------


def test_meshjoin_by_hand() -> None:
    # b = 10 pages are a tenth of R; w = 50 rows come in per read, so 500 are in the window.
    assert mesh.memory(SYMBOLS, 50, 10) == 10 * 1000 + 50 * 20 + 500 * 4 + 500 * 5 * 20
    # 20 ms of reading, 100 tuples of R at 0.1 + 0.5 * 0.2 ms, 50 of S at 0.06 ms.
    assert mesh.loop_cost(SYMBOLS, 50, 10) == pytest.approx(0.020 + 0.020 + 0.003)
    assert mesh.service_rate(50, 0.043) == pytest.approx(1162.79, rel=1e-5)
    assert mesh.reads_per_tuple(50, 10) == 0.2
    assert mesh.reads_per_second(10, 0.043) == pytest.approx(232.558, rel=1e-5)
    assert mesh.keeps_up(1162, 50, 0.043)
    assert not mesh.keeps_up(1163, 50, 0.043)


def test_the_least_w_just_keeps_up() -> None:
    w = mesh.least_w(SYMBOLS, 1000, 10)
    assert w == pytest.approx(1000 * 0.040 / (1 - 0.06))
    assert mesh.service_rate(w, mesh.loop_cost(SYMBOLS, w, 10)) == pytest.approx(1000)
    assert mesh.least_memory(SYMBOLS, 1000, 10) == mesh.memory(SYMBOLS, w, 10)


def test_no_memory_is_enough_for_a_stream_that_the_cpu_cannot_take_in() -> None:
    assert mesh.least_w(SYMBOLS, 16_600, 10) > 0
    with pytest.raises(SpecError, match="fewer than 16666"):
        mesh.least_w(SYMBOLS, 16_667, 10)


def test_w_for_a_memory_undoes_the_memory_for_a_w() -> None:
    assert mesh.tuples_for_memory(SYMBOLS, mesh.memory(SYMBOLS, 50, 10), 10) == pytest.approx(50)
    assert mesh.tuples_for_memory(SYMBOLS, 9_000, 10) == 0
    rate = mesh.rate_for_buffer(SYMBOLS, mesh.memory(SYMBOLS, 50, 10), 10)
    assert rate == pytest.approx(50 / 0.043)


@pytest.mark.parametrize(("memory", "printed"), [(20, 0.93), (40, 1.35), (80, 1.91), (160, 2.63)])
def test_the_best_buffer_is_the_published_optimum(memory: int, printed: float) -> None:
    assert mesh.best_buffer(memory * 1e6, KAPPA) == pytest.approx(printed * 1e6, rel=0.03)


@pytest.mark.parametrize(("memory", "loss"), [(40, 0.43), (80, 1.26), (160, 2.11), (320, 2.84)])
def test_what_the_default_buffer_loses(memory: int, loss: float) -> None:
    assert 100 * mesh.buffer_loss(memory * 1e6, 0.93e6, KAPPA) == pytest.approx(loss, abs=0.005)


@given(memory=st.floats(1e3, 1e12), kappa=st.floats(1, 1e9), other=st.floats(0.001, 0.999))
def test_no_buffer_beats_the_best(memory: float, kappa: float, other: float) -> None:
    assert 0 < mesh.best_buffer(memory, kappa) < memory
    assert mesh.buffer_loss(memory, other * memory, kappa) >= -1e-9
    assert mesh.buffer_loss(memory, memory, kappa) == math.inf


def test_the_closed_form_maximises_the_papers_equation() -> None:
    # Eq. 5 of the default-buffer paper where reading alone takes time.
    tau, pages = 1 / 60e6, 4_000_000
    symbols = mesh.MeshSymbols(
        n_r=pages, v_p=100, v_r=100, v_s=20, c_io=lambda b: tau * (KAPPA + 100 * b),
        c_h=0, c_o=0, c_e=0, c_s=0, c_a=0,
    )  # fmt: skip
    buffers = np.linspace(2_000, 100_000, 4001)
    rates = [mesh.rate_for_buffer(symbols, 20e6, b) for b in buffers]
    assert 100 * buffers[np.argmax(rates)] == pytest.approx(mesh.best_buffer(20e6, KAPPA), rel=0.01)


# --- CMESHJOIN --------------------------------------------------------------------------------

ROWS, ROW, KEPT = 1e8, 120.0, 128.0
LARGE, SMALL = 0.1 * ROWS * ROW, 0.01 * ROWS * ROW


def test_cmeshjoin_by_hand() -> None:
    assert cached.hit_rate(2, 4) == pytest.approx(1.5 / (25 / 12))
    assert cached.hit_rate_slope(2, 4) == pytest.approx((1 / 3) / (25 / 12))
    assert cached.disk_rate(1280, 5, 100, 120) == pytest.approx(640 / 12000)
    missed = 1 - (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / zipf.harmonic(100, 1)
    assert cached.cached_rate(1280, 5, 100, 120) == pytest.approx(640 / 12000 / missed)
    slope = cached.hit_rate_slope(5, 100)
    assert cached.printed_slope(1280, 5, 100, 120) == pytest.approx(640 / 12000 / missed**2 * slope)
    bend = 2 * 640 / 12000 / missed**3 * slope**2
    assert cached.printed_curvature(1280, 5, 100, 120) == pytest.approx(bend)


@given(part=st.floats(0.001, 0.999), memory=st.floats(1e4, 1e9))
def test_the_printed_derivative_finds_no_maximum(part: float, memory: float) -> None:
    kept = part * memory / KEPT
    assert cached.printed_slope(memory, kept, ROWS, ROW) > 0
    assert cached.printed_curvature(memory, kept, ROWS, ROW) > 0


@pytest.mark.parametrize(
    ("memory", "share", "gain", "gain_at_75"), [(LARGE, 0.201, 3.8, 1.8), (SMALL, 0.130, 2.5, 0.96)]
)
def test_the_best_cache(memory: float, share: float, gain: float, gain_at_75: float) -> None:
    best = cached.best_cache(memory, KEPT, ROWS, 1.0)
    assert KEPT * best / memory == pytest.approx(share, abs=0.0005)
    assert best == pytest.approx(cached.best_cache_zipf_1(memory, KEPT, ROWS), rel=1e-4)
    assert cached.cache_gain(memory, best, KEPT, ROWS, 1.0) == pytest.approx(gain, abs=0.05)
    three_quarters = cached.cache_gain(memory, 0.75 * memory / KEPT, KEPT, ROWS, 1.0)
    assert three_quarters == pytest.approx(gain_at_75, abs=0.015)


@pytest.mark.parametrize(("memory", "low", "high"), [(LARGE, 0.11, 0.31), (SMALL, 0.06, 0.22)])
def test_the_top_is_flat(memory: float, low: float, high: float) -> None:
    best = cached.cache_gain(memory, cached.best_cache(memory, KEPT, ROWS, 1), KEPT, ROWS, 1)
    shares = np.linspace(low, high, 20)
    gains = cached.cache_gain(memory, shares * memory / KEPT, KEPT, ROWS, 1)
    assert gains.min() > 0.965 * best  # the ends are rounded to a percent
    beyond = np.array([low - 0.015, high + 0.015])
    assert cached.cache_gain(memory, beyond * memory / KEPT, KEPT, ROWS, 1).max() < 0.972 * best


@given(
    skew=st.floats(0, 2), rows=st.floats(100, 1e11), part=st.floats(1e-4, 0.9),
    other=st.floats(1e-6, 1),
)  # fmt: skip
def test_no_cache_beats_the_best(skew: float, rows: float, part: float, other: float) -> None:
    memory = part * rows * KEPT
    best = cached.best_cache(memory, KEPT, rows, skew)
    assert 0 <= best <= memory / KEPT
    highest = cached.cache_gain(memory, best, KEPT, rows, skew)
    rival = max(1.0, np.floor(other * memory / KEPT))
    assert cached.cache_gain(memory, rival, KEPT, rows, skew) <= highest * (1 + 1e-3)


def test_a_cache_that_cannot_pay_is_empty_and_one_that_holds_all_is_full() -> None:
    assert cached.best_cache(1e6, 100, 1e6, 0.0) == 0
    assert cached.best_cache(1e9, 100, 1e6, 1.0) == 1e6
    assert cached.best_cache(50, 100, 1e6, 1.0) == 0


# --- HYBRIDJOIN -------------------------------------------------------------------------------


def test_hybridjoin_by_hand() -> None:
    costs = hybrid.HybridCosts(c_h=10, c_o=1, c_e=2, c_s=3, c_a=4)
    assert hybrid.memory_of_equal_parts(100, 10, 0.9).total == pytest.approx(100)
    parts = hybrid.memory_of_parts(100, 10, 0.75, k=2, l_pages=4)
    assert (parts.disk_buffer, parts.hash_table, parts.queue) == (60, 30, 10)
    assert hybrid.loop_cost_of_equal_parts(costs, 1000, 50, 20) == pytest.approx(2.2e-6)
    assert hybrid.loop_cost(costs, 1000, 50, 30, 20) == pytest.approx(2.0e-6)
    with pytest.raises(SpecError, match="exceed a memory of 100"):
        hybrid.memory_of_parts(100, 10, 0.75, k=9, l_pages=2)


def test_probabilities_of_hybridjoin_by_hand() -> None:
    # Of 6 rows 2 are pinned, two partitions of 2 remain.
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6
    first = (1 / 3 + 1 / 4) / (total - 1.5)
    assert hybrid.partition_probability(1, 2, 2, 6) == pytest.approx(first)
    assert hybrid.partition_probability(2, 2, 2, 6) == pytest.approx(1 - first)
    assert hybrid.old_match_probability(2, 2, 6) == 0.5
    assert hybrid.new_match_probability(2, 2, 6) == pytest.approx((1.5 + (total - 1.5) / 2) / total)


def test_what_each_law_predicts_for_the_published_setting() -> None:
    """R = 2 M in order, 950 rows per read, 1500 pinned, 0.5 M slots: simulated, about 995."""
    printed = hybrid.tuples_per_iteration(500_000, 1500, 950, 2_000_000)
    assert printed == pytest.approx(316, abs=0.5)
    law = renewal.rows_per_read(500_000, 2_000_000, 950, 1.0, True, 1500)
    assert law == pytest.approx(1002, abs=0.5)


def test_a_uniform_stream_gets_twice_meshjoins_rows_per_read() -> None:
    for ordered in (True, False):
        law = renewal.rows_per_read(500_000, 2_000_000, 950, 0.0, ordered)
        assert law == pytest.approx(2 * 500_000 * 950 / 2_000_000, rel=0.001)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("skew", [0.0, 1.0, 1.3])
@pytest.mark.parametrize(("waiting", "per_block", "skip"), [(20_000, 100, 1000), (3_000, 20, 300)])
def test_the_renewal_law_matches_simulation(
    ordered: bool, skew: float, waiting: int, per_block: int, skip: int
) -> None:
    rows = 200_000
    draws = simulator.Draws(rows, skew, seed=7, skip=skip)
    block = simulator.page_of_rank(rows, rows // per_block, ordered, draws.random)
    seen = simulator.Hybrid(draws, block, waiting).rows_per_read(4_000, 4_000)
    law = renewal.solve(waiting, rows, rows / per_block, skew, ordered, skip)
    assert law.rows_per_read == pytest.approx(seen, rel=0.03)


@given(
    waiting=st.floats(10, 1e8), more=st.floats(1.01, 10), skew=st.floats(0, 1.5),
    ordered=st.booleans(),
)  # fmt: skip
def test_more_slots_answer_more_rows_per_read(
    waiting: float, more: float, skew: float, ordered: bool
) -> None:
    few = renewal.solve(waiting, 1e9, 1e6, skew, ordered, 1000)
    many = renewal.solve(waiting * more, 1e9, 1e6, skew, ordered, 1000)
    assert 1 - 1e-3 <= few.rows_per_read <= many.rows_per_read * (1 + 1e-3)
    assert few.stay >= waiting * (1 - 1e-3)
