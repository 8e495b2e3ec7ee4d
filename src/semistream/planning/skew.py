"""The Zipf exponent behind counts of keys, by maximum likelihood.

Nothing is known about which key has which rank, only how many keys were seen once, twice, and so
on. For an exponent these numbers have expectations, and the exponent that explains them best is
the estimate. (A line through log count over log rank is biased: the order of rare keys is chance.)

Keys are grouped into blocks of neighbouring ranks, counts into bins; so it costs the same for a
thousand keys and for a hundred million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..kernels.arrays import F64, I64, Mask
from .laws import zipf

MOST_SKEW = 4.0  # what a stream of one single key gets: its first key then has 92 % of the rows
MOST_KEYS = 1e12  # where nobody says how many keys there are
EXACT_RANKS = 24  # blocks of one key
BLOCK = 1.12  # ratio of the ends of later blocks
EXACT_COUNTS = 12  # bins of one count
BIN = 1.3  # ratio of the ends of later bins
STEP = 1e-3  # of the exponent, for slopes
FLOOR = 1e-12  # expected keys in a bin, where there should be none
GRID = np.concatenate([np.arange(0, 2, 0.1), [2, 2.5, 3, MOST_SKEW]])
POINTS = 4  # ratio of the numbers of keys at which popularity is told
GOLDEN = 0.6180339887498949
NORMAL_95 = 1.959964
DROP_95 = NORMAL_95**2 / 2  # of the log likelihood, at the ends of a 95 % interval


@dataclass(frozen=True)
class Counts:
    """How often keys were seen: `keys[i]` of them `times[i]` times, among `rows` rows in all. Of
    all keys only the part `share` was watched, chosen regardless of how popular they are."""

    times: I64  # ascending, from 1
    keys: F64
    rows: float
    share: float = 1.0
    least: int = 1  # keys seen less often say nothing: they may not be the master's

    @property
    def distinct(self) -> float:
        return float(self.keys.sum())


@dataclass(frozen=True)
class Fit:
    """An exponent, and its standard error: 1.96 times it is half of a 95 % interval."""

    skew: float
    error: float


def counts_of(times: I64, rows: float, share: float = 1.0) -> Counts:
    """`times` says of every key that was seen how often it was."""
    seen, keys = np.unique(times, return_counts=True)
    return Counts(seen, keys.astype(np.float64), rows, share)


def without_orphans(counts: Counts, times: I64, found: Mask) -> tuple[Counts, Counts | None]:
    """The counts without orphans: of keys seen so often, the part that the master has among those
    it was asked for; where none was asked for, the part among the rarer half. And the counts if
    these parts were one standard error larger (None: all keys were asked for)."""
    seen = np.searchsorted(counts.times, times)
    asked = np.bincount(seen, minlength=len(counts.times))
    has = np.bincount(seen[found], minlength=len(counts.times))
    overall = found[times <= np.median(times)].mean()
    part = np.where(asked > 0, has / np.maximum(asked, 1), overall)
    unasked = np.maximum(0.0, counts.keys - asked)
    if found.all() or not unasked.any():
        return _thinned(counts, part), None
    error = np.sqrt(part * (1 - part) / np.maximum(asked, 1) * unasked / counts.keys)
    return _thinned(counts, part), _thinned(counts, np.minimum(1.0, part + error))


def _thinned(counts: Counts, part: F64) -> Counts:
    keys = counts.keys * part
    return replace(counts, keys=keys, rows=float(counts.times @ keys))


def popularity(ranked: I64, measured: I64, scale: float) -> tuple[tuple[int, float], ...]:
    """(keys, share of the rows): what a cache of so many keys would answer of the rows `measured`
    if it had learnt from the rows `ranked` which ones are popular. The same rows for both would
    flatter it: of keys seen once, those seen are no better than others."""
    if len(ranked) == 0 or len(measured) == 0:
        return ()
    keys, counts = np.unique(ranked, return_counts=True)
    place = np.empty(len(keys), np.int64)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(keys))
    at = np.minimum(np.searchsorted(keys, measured), len(keys) - 1)
    hits = np.bincount(place[at[keys[at] == measured]], minlength=len(keys))
    answered = np.cumsum(hits) / len(measured) * scale
    powers = POINTS ** np.arange(0, 1 + int(np.log(len(keys)) / np.log(POINTS)))
    return tuple((int(n), float(answered[n - 1])) for n in np.unique([*powers, len(keys)]))


def fit_skew(evidence: Sequence[Counts], keys: float | None) -> Fit | None:
    """The exponent of a Zipf law over `keys` keys that explains the counts best (None: however many
    keys explain them best). No fit without two rows."""
    usable = [_Binned.of(c) for c in evidence if c.rows >= 2 and c.distinct >= 1]
    if not usable:
        return None
    if keys is not None:
        most = max(float(keys), *(c.distinct for c in evidence))
        return _fit(lambda skew: _likelihood(usable, most, skew), usable, lambda _: most)
    least = np.log(max(c.distinct / c.share for c in evidence))

    def best(skew: float) -> float:
        found = _highest(
            lambda x: _likelihood(usable, np.exp(x), skew), least, np.log(MOST_KEYS), 0.01
        )
        return float(np.exp(found))

    return _fit(lambda skew: _likelihood(usable, best(skew), skew), usable, best)


def _fit(
    likelihood: Callable[[float], float],
    evidence: Sequence[_Binned],
    keys_at: Callable[[float], float],
) -> Fit:
    heights = [likelihood(float(s)) for s in GRID]
    top = int(np.argmax(heights))
    low, high = float(GRID[max(0, top - 1)]), float(GRID[min(len(GRID) - 1, top + 1)])
    skew = _highest(likelihood, low, high, 1e-4)
    keys = keys_at(skew)
    lost = DROP_95 * _variation(evidence, keys, skew)
    bar = likelihood(skew) - lost
    above = _crossing(likelihood, bar, skew, MOST_SKEW)
    below = _crossing(likelihood, bar, skew, 0.0)
    return Fit(skew, max(above - skew, skew - below, STEP) / NORMAL_95)


def _highest(f: Callable[[float], float], low: float, high: float, width: float) -> float:
    """Golden section search; `low` itself where all the rest is lower."""
    at_low = f(low)
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_a, at_b = f(a), f(b)
    while high - low > width:
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - GOLDEN * (high - low)
            at_a = f(a)
        else:
            low, at_low, a, at_a = a, at_a, b, at_b
            b = low + GOLDEN * (high - low)
            at_b = f(b)
    return low if at_low >= max(at_a, at_b) else (low + high) / 2


def _crossing(f: Callable[[float], float], bar: float, inside: float, outside: float) -> float:
    """Where f falls below `bar` between a point above it and `outside`; that, if it never does."""
    if f(outside) >= bar:
        return outside
    while abs(outside - inside) > STEP / 4:
        middle = (inside + outside) / 2
        if f(middle) >= bar:
            inside = middle
        else:
            outside = middle
    return inside


# --- expectations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Binned:
    """Counts in bins [edges[i], edges[i + 1]), the last one open."""

    edges: F64
    keys: F64
    rows: float
    share: float

    @classmethod
    def of(cls, counts: Counts) -> _Binned:
        most = int(counts.times[-1])
        edges = list(range(counts.least, min(most, EXACT_COUNTS) + 2)) or [counts.least]
        while edges[-1] <= most:
            edges.append(int(np.ceil(edges[-1] * BIN)))
        ends = np.array(edges, np.float64)
        counted = counts.times >= counts.least
        where = np.searchsorted(ends, counts.times[counted], "right") - 1
        keys = np.zeros(len(ends), np.float64)
        np.add.at(keys, where, counts.keys[counted])
        return cls(ends, keys, counts.rows, counts.share)


def _likelihood(evidence: Sequence[_Binned], keys: float, skew: float) -> float:
    """As if the number of keys in each bin were Poisson; `_variation` makes up for what is not."""
    total = 0.0
    for one in evidence:
        members, weight = popularities(keys, skew)
        expected = one.share * (members @ _chances(one.rows * weight, one.edges))
        expected = np.maximum(expected, FLOOR)
        total += float(one.keys @ np.log(expected) - expected.sum())
    return total


def _variation(evidence: Sequence[_Binned], keys: float, skew: float) -> float:
    """Variance of the slope of the likelihood over what it would be if bins were Poisson. Keys that
    are sure to be in one bin vary less, and so do keys that share a fixed number of rows."""
    skew = max(skew, 0.05)  # the slope vanishes at 0, the ratio does not
    real = poisson = 0.0
    for one in evidence:
        members, weight = popularities(keys, skew)
        rate = one.rows * weight
        chance = _chances(rate, one.edges)
        now = np.maximum(members @ chance, FLOOR)
        ends = [popularities(keys, skew + d) for d in (-STEP, STEP)]
        before, after = (m @ _chances(one.rows * w, one.edges) for m, w in ends)
        slope = (after - before) / (2 * STEP)
        gain = slope / now
        mean = chance @ gain
        fewer = np.maximum(one.edges - 1, 0)  # E[count; bin] = rate P(count - 1 in the bin)
        lower = rate * (_chances(rate, fewer) @ gain)
        shared = one.share * float(members @ (lower - rate * mean))
        own = one.share * float(members @ (chance @ gain**2 - one.share * mean**2))
        real += max(0.0, own - shared**2 / one.rows)
        poisson += one.share * float(slope @ gain)
    return min(1.0, real / poisson) if poisson > 0 else 1.0


def popularities(keys: float, skew: float) -> tuple[F64, F64]:
    """Blocks of neighbouring ranks: keys in each, and the share of the rows that each of its keys
    has on average."""
    single = min(keys, EXACT_RANKS)
    blocks = int(np.ceil(np.log(keys / single) / np.log(BLOCK)))
    tail = np.geomspace(single, keys, blocks + 1)[1:]
    ends = np.concatenate([np.arange(single), [single], tail])
    members, sums = np.diff(ends), zipf.harmonic(ends, skew)
    return members, np.maximum(np.diff(sums), 0.0) / sums[-1] / members


def _chances(rate: F64, edges: F64) -> F64:
    """The chance that a Poisson count of each rate falls into each bin [edges[i], edges[i + 1])."""
    below = np.empty((len(rate), len(edges) + 1))  # P(count < edge)
    small = int(np.searchsorted(edges, EXACT_COUNTS + 1, "right"))
    term, total, at = np.exp(-rate), np.zeros(len(rate)), 0
    for i in range(small):
        while at < edges[i]:
            total = total + term
            at += 1
            term = term * rate / at
        below[:, i] = total
    below[:, small:-1] = _below(rate[:, None], edges[None, small:])
    below[:, -1] = 1.0
    return np.maximum(np.diff(below, axis=1), 0.0)


def _below(rate: F64, edge: F64) -> F64:
    """P(count < edge) for a Poisson count, edge over 10: Wilson and Hilferty's cube root."""
    root = np.cbrt(rate / edge)
    return _normal((1 - 1 / (9 * edge) - root) * 3 * np.sqrt(edge))


def _normal(z: F64) -> F64:
    """The normal distribution, to 2e-7 (Abramowitz and Stegun 7.1.26)."""
    x = np.abs(z) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    tail = series * np.exp(-x * x) / 2
    return np.asarray(np.where(z < 0, tail, 1 - tail), np.float64)
