"""Closed forms over a Zipf law, against sums over every rank and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.errors import SpecError
from semistream.planning.laws import zipf
from tests.helpers import model_simulator as simulator

SKEWS = (0.0, 0.3, 0.5, 0.99999, 1.0, 1.0001, 1.5, 2.0)


@pytest.mark.parametrize("skew", SKEWS)
def test_the_harmonic_sum_is_the_sum(skew: float) -> None:
    sizes = np.array([1, 5, 31, 32, 33, 40, 1000, 1_000_000])
    sums = np.cumsum(np.arange(1, sizes[-1] + 1, dtype=np.float64) ** -skew)
    found = zipf.harmonic(sizes.astype(np.float64), skew)
    np.testing.assert_allclose(found, sums[sizes - 1], rtol=1e-11)


def test_the_harmonic_sum_of_a_huge_table() -> None:
    # ln n + Euler's constant + 1/2n; and zeta(2) less what lies beyond n.
    n = 10**11
    assert zipf.harmonic(n, 1) == pytest.approx(np.log(n) + 0.57721566490153286, rel=1e-12)
    assert zipf.harmonic(n, 2) == pytest.approx(np.pi**2 / 6 - 1 / n, rel=1e-11)
    assert zipf.harmonic(n, 0) == pytest.approx(n, rel=1e-12)


def test_shares_worked_by_hand() -> None:
    assert zipf.share(1, 3, 1) == pytest.approx(1 / (1 + 1 / 2 + 1 / 3))
    assert zipf.share(25, 100, 0) == pytest.approx(0.25)
    assert zipf.share(500, 100, 1) == 1.0
    assert zipf.share(0, 100, 1) == 0.0


@given(
    share=st.floats(0.001, 1.0),
    rows=st.sampled_from([1, 7, 40, 10**6, 10**11]),
    skew=st.sampled_from(SKEWS),
)
def test_the_inverse_of_share(share: float, rows: int, skew: float) -> None:
    top = zipf.top_for(share, rows, skew)
    assert 0 <= top <= rows
    assert zipf.share(top, rows, skew) == pytest.approx(share, rel=1e-7)


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("rows", [1, 3, 40, 2000, 200_000])
@pytest.mark.parametrize("skip", [0, 1, 777])
def test_distinct_keys_are_the_sum_over_ranks(skew: float, rows: int, skip: int) -> None:
    draws = np.array([1.0, 10, 1000, 1e5, 1e7, 1e9])
    found = zipf.expected_distinct(draws, rows, skew, skip)
    if skip >= rows:
        assert np.all(found == 0)
        return
    chances = simulator.zipf_chances(rows, skew, skip)
    with np.errstate(divide="ignore"):
        exact = [-np.expm1(n * np.log1p(-chances)).sum() for n in draws]
    np.testing.assert_allclose(found, exact, rtol=5e-5)


def test_distinct_keys_in_a_huge_uniform_table() -> None:
    assert zipf.expected_distinct(1e9, 1e11, 0) == pytest.approx(1e11 * -np.expm1(-0.01), rel=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize(
    ("rows", "per_page"), [(20_000, 1), (20_000, 3), (100_000, 50), (400_000, 2000)]
)
@pytest.mark.parametrize("skip", [0, 1000])
def test_pages_asked_for_match_simulation(
    ordered: bool, skew: float, rows: int, per_page: int, skip: int
) -> None:
    draws_of = simulator.Draws(rows, skew, seed=rows + per_page, skip=skip)
    pages = -(-rows // per_page)
    for draws, tries in ((10, 200), (1000, 12), (100_000, 2)):
        counts = [draws_of.pages_asked_for(draws, per_page, ordered) for _ in range(tries)]
        found = zipf.expected_pages(draws, rows, pages, skew, ordered, skip)
        noise = 3 * max(float(np.std(counts)), np.sqrt(found) / 2) / np.sqrt(tries)
        assert found == pytest.approx(np.mean(counts), rel=0.01, abs=noise)


@pytest.mark.parametrize(
    ("needed", "pages"), [(1, 10), (2, 10), (9, 10), (10, 10), (30, 1000), (400, 1000)]
)
@pytest.mark.parametrize("gap", [0, 1, 5, 40])
def test_merged_reads_match_simulation(needed: int, pages: int, gap: int) -> None:
    random = np.random.default_rng(1)
    runs = np.array([simulator.merged_reads(needed, pages, gap, random) for _ in range(300)])
    reads, brought = zipf.expected_reads(needed, pages, gap)
    for found, seen in ((reads, runs[:, 0]), (brought, runs[:, 1])):
        assert found == pytest.approx(seen.mean(), rel=0.002, abs=4 * seen.std() / np.sqrt(300))


def test_reads_worked_by_hand() -> None:
    # Two of three pages: neighbours in two choices of three, else one page apart.
    reads, brought = zipf.expected_reads(2, 3, 0)
    assert reads == pytest.approx(4 / 3)
    assert brought == pytest.approx(2)
    reads, brought = zipf.expected_reads(2, 3, 1)
    assert reads == pytest.approx(1)
    assert brought == pytest.approx(2 * 2 / 3 + 3 / 3)


@given(
    draws=st.floats(0, 1e12),
    more=st.floats(1, 100),
    skew=st.floats(0, 2),
    rows=st.sampled_from([1, 50, 10**5, 10**11]),
    ordered=st.booleans(),
)
def test_more_draws_ask_for_more(
    draws: float, more: float, skew: float, rows: int, ordered: bool
) -> None:
    pages = max(1, rows // 100)
    few, many = (
        (zipf.expected_distinct(n, rows, skew), zipf.expected_pages(n, rows, pages, skew, ordered))
        for n in (draws, draws * more)
    )
    for less, greater, most in zip(few, many, (rows, pages), strict=True):
        assert 0 <= less <= greater * (1 + 1e-9) + 1e-12
        assert greater <= most * (1 + 1e-4)
    assert few[0] <= draws * (1 + 1e-4)


def test_arrays_and_numbers_agree() -> None:
    draws = np.array([3.0, 300.0, 30000.0])
    skips = np.array([0.0, 10.0, 500.0])
    for ordered in (False, True):
        together = zipf.expected_pages(draws, 1e6, 1e4, 0.9, ordered, skips)
        alone = [
            zipf.expected_pages(float(n), 1e6, 1e4, 0.9, ordered, float(s))
            for n, s in zip(draws, skips, strict=True)
        ]
        np.testing.assert_allclose(together, alone)
    assert isinstance(zipf.expected_distinct(10, 100, 1), float)


def test_what_is_not_a_zipf_law_is_refused() -> None:
    with pytest.raises(SpecError, match="skew is -1"):
        zipf.harmonic(10, -1)
    with pytest.raises(SpecError, match="rows is 0"):
        zipf.expected_distinct(10, 0, 1)
