"""How many pages ssij reads: rows wait under their page, the most wanted pages are read first.

A mean-field law of ours. Time is counted in join phases. One comes when 70 % of the slots are in
use and answers half of the rows that wait; between two of them Y rows arrive. A page that draws a
share q of them gets a Poisson number of rows with mean l = q Y per phase, and is read by the first
phase that finds at least `theta` rows under it: reading the pages with the most rows until half of
all rows go amounts to such a threshold, the same for all pages. Below the threshold a page is read
when its oldest row is over age. With tau(l) the mean number of phases from one read of the page to
the next, and rest(l) the mean number of rows left under it after a phase,

    rows left after a phase, all pages      sum of rest(l)  =  half of those before it
    pages read per phase                    sum of 1/tau(l)

The first equation gives theta, the second the answer. Where theta is not whole, pages in the front
of the file have the smaller threshold, since equals are taken in file order. The page cache is
taken to hold the pages asked for most; the real one errs at times and then reads more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...budget import PAGES_FILL, PAGES_OLD, PAGES_PENDING
from ...kernels.arrays import F64
from . import zipf
from .numbers import as_floats

TERMS = 12  # phases that are looked at one by one
EXACT = 16  # thresholds up to this are summed up exactly
LONGEST = 64  # phases that such a sum goes through
SAMPLES = 160  # pages drawn to stand for those without a very hot key
HOT = 128  # keys that are placed one by one


@dataclass(frozen=True)
class Planned:
    """The steady state of ssij."""

    threshold: float  # theta: rows under a page that make it worth a read
    pages_per_row: float  # pages read per row of the stream
    cached_share: float  # of the stream, answered by cached pages at once
    waits: float  # rows that come while an average row waits that was not answered at once


@lru_cache(maxsize=1024)
def solve(
    waiting: float, rows: float, pages: float, skew: float, ordered: bool, pool_pages: float
) -> Planned:
    """The steady state with ``waiting`` slots and a cache of ``pool_pages`` pages."""
    counts, shares = page_groups(rows, pages, skew, ordered)
    counts, cached_share = _without_cached(counts, shares, pool_pages)
    missed = 1 - cached_share
    if missed <= 1e-9 or counts.sum() <= 0:
        return Planned(1.0, 0.0, 1.0, 0.0)
    filled = PAGES_FILL * waiting
    arrivals = filled / 2 / (1 - cached_share * _looked_at(filled / 2))
    for _ in range(8):
        crowd = _Crowd(counts, shares * arrivals, PAGES_OLD * waiting / arrivals, ordered)
        theta, read, left = crowd.leaving(filled / 2)
        if left >= 0.499 * filled:
            break
        # Rows over age make more than half of the slots free: more rows come per phase.
        arrivals = (filled - left) / (1 - cached_share * _looked_at(arrivals))
    at_once = cached_share * _looked_at(arrivals)
    return Planned(theta, read / arrivals, at_once, (filled + left) / 2 / (1 - at_once))


def _looked_at(arrivals: float) -> float:
    """The part of the rows of a phase that are shown to the cached pages when they come.

    That is done for thousands of rows at a time; the last ones wait for the join phase, which
    answers them without a read, but they take slots until then.
    """
    return 0.0 if arrivals < PAGES_PENDING else 1 - PAGES_PENDING / 2 / arrivals


@dataclass(frozen=True)
class _Crowd:
    """Groups of pages and what comes to them between two phases."""

    counts: F64
    load: F64
    age: float
    ordered: bool

    def leaving(self, wanted: float) -> tuple[float, float, float]:
        """(theta, pages read per phase, rows left after it) so that ``wanted`` rows are left."""
        low, high = 1.0, 2.0
        while self._left(high) < wanted and high < wanted:
            low, high = high, 2 * high
        while high - low > 1:
            middle = float(np.floor((low + high) / 2))
            low, high = (middle, high) if self._left(middle) < wanted else (low, middle)
        (tau_low, rest_low), (tau_high, rest_high) = (
            _stay(self.load, threshold, self.age) for threshold in (low, high)
        )
        part = self._with_higher(self.counts * rest_low, self.counts * rest_high, wanted)
        read = np.sum(self.counts * ((1 - part) / tau_low + part / tau_high))
        left = np.sum(self.counts * ((1 - part) * rest_low + part * rest_high))
        return low + float(np.average(part, weights=self.counts)), float(read), float(left)

    def _left(self, threshold: float) -> float:
        return float(np.sum(self.counts * _stay(self.load, threshold, self.age)[1]))

    def _with_higher(self, low: F64, high: F64, wanted: float) -> F64:
        """The part of each group that has the higher of two thresholds: the end of the file."""
        more = np.maximum(high - low, 0)
        lacking = max(0.0, wanted - float(low.sum()))
        if not self.ordered:
            return np.full(len(more), min(1.0, lacking / max(float(more.sum()), 1e-300)))
        behind = np.cumsum(more[::-1])[::-1] - more
        return np.asarray(np.clip((lacking - behind) / np.maximum(more, 1e-300), 0, 1))


def page_groups(rows: float, pages: float, skew: float, ordered: bool) -> tuple[F64, F64]:
    """Pages as (how many such pages, share of the stream of each), the shares adding up to 1."""
    if ordered or skew == 0:
        return zipf.page_shares(rows, pages, skew)
    return _pages_anywhere(rows, pages, skew)


@lru_cache(maxsize=64)
def _pages_anywhere(rows: float, pages: float, skew: float) -> tuple[F64, F64]:
    """Ranks at random over pages: the hottest keys one by one, the others by a seeded sample."""
    random = np.random.default_rng(0)
    hot = int(min(HOT, rows, max(1.0, pages / 4)))
    total = zipf.harmonic(rows, skew)
    hot_shares = as_floats(np.arange(1, hot + 1) ** -skew / total)
    # Groups of other ranks, log-spaced; a page has a Poisson number of keys of each.
    edges = np.unique(np.floor(np.geomspace(hot, rows, 49)))
    sizes = np.diff(edges)
    sums = np.diff(zipf.harmonic(edges, skew)) / total
    if len(sizes) == 0:
        return np.ones(hot), hot_shares
    keys = random.poisson(sizes / pages, (SAMPLES, len(sizes)))
    if rows / pages < 1.5:  # a page is a key: no sample is needed
        return _with_hot(hot_shares, 0.0, sizes, sums / sizes)
    base = keys @ (sums / sizes)
    rest = 1 - hot_shares.sum()
    base *= rest / pages / max(base.mean(), 1e-300)
    counts = np.full(SAMPLES, (pages - hot) / SAMPLES)
    return _with_hot(hot_shares, rest / pages, counts, base)


def _with_hot(hot: F64, more: float, counts: F64, shares: F64) -> tuple[F64, F64]:
    return np.concatenate([np.ones(len(hot)), counts]), np.concatenate([hot + more, shares])


def _without_cached(counts: F64, shares: F64, pool_pages: float) -> tuple[F64, float]:
    """The numbers of pages that are not cached, and the share of the stream of those that are."""
    order = np.argsort(-shares, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    cached = np.zeros_like(counts)
    cached[order] = np.clip(pool_pages - before, 0, counts[order])
    return counts - cached, float(np.sum(cached * shares))


def _stay(load: F64, threshold: float, age: float) -> tuple[F64, F64]:
    """(tau, rest): phases between two reads of a page, and rows left under it after a phase."""
    load = np.maximum(load, 1e-12)
    if threshold <= EXACT:
        return _stay_of_few(load, int(threshold), age)
    # Slow pages, in continuous time: the first row comes after 1/l, then the others or the age.
    more = _least_of(threshold - 1, load * age) / load
    slow = 1 / load + more + 0.5
    rest_slow = np.minimum(threshold / 2, 1 + load * more / 2) * more / (1 / load + more)
    # Fast pages: fewer than theta rows came in the first, second, ... phase since the last read.
    mean = np.arange(1, TERMS + 1)[:, None] * load
    spread = np.sqrt(mean)
    fast = 1 + np.sum(_normal((threshold - 0.5 - mean) / spread), axis=0)
    held = np.sum(mean * _normal((threshold - 1.5 - mean) / spread), axis=0)
    few = load * (TERMS - 3) > threshold  # phases until the threshold: few enough to be summed up
    return np.where(few, fast, slow), np.where(few, held / fast, rest_slow)


def _stay_of_few(load: F64, threshold: int, age: float) -> tuple[F64, F64]:
    """The same for a small threshold, exactly.

    A page is empty for 1/(1 - e^-l) phases. From the first phase that finds rows under it, m phases
    on, there are i of them with a chance of e^-(m+1)l l^i ((m+1)^i - m^i) / i! / (1 - e^-l).
    """
    some = -np.expm1(-load)
    tau, rest = 1 / some, np.zeros_like(load)
    if threshold == 1:
        return tau, rest
    steps = np.arange(min(LONGEST, int(np.ceil(age))), dtype=np.float64)
    weights = np.clip(age - steps, 0, 1)
    fading = weights[:, None] * np.exp(-(steps[:, None] + 1) * load) / some
    before, after = np.ones(len(steps)), np.ones(len(steps))
    power = np.ones_like(load)
    for i in range(1, threshold):
        before, after = before * steps, after * (steps + 1)
        power = power * load / i
        there = ((after - before) @ fading) * power
        tau, rest = tau + there, rest + i * there
    return tau, rest / tau


def _least_of(steps: float, limit: F64) -> F64:
    """The mean of the lesser of a Gamma time of so many steps and a limit."""
    if steps <= 0:
        return np.zeros_like(limit)
    spread = np.sqrt(steps)
    over = (steps - limit) / spread
    density = np.exp(-(over**2) / 2) / np.sqrt(2 * np.pi)
    cut = steps - spread * (over * _normal(over) + density)
    return np.asarray(np.clip(cut, 0, np.minimum(steps, limit)))


def _normal(x: F64) -> F64:
    """The normal distribution function, by a logistic curve: within 0.0002 of it."""
    return 1 / (1 + np.exp(-np.clip(x * (1.5976 + 0.070566 * x**2), -60, 60)))
