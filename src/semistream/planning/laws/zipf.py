"""Sums over a Zipf law in closed form: a table of 10^11 rows costs no more than one of a hundred.

The key of popularity rank ``r`` (1 is the most popular) is drawn with a probability in proportion
to ``r ** -skew``. Skew 0 is the uniform stream. A master of ``rows`` keys has that many ranks.

A sum over ranks is an exact head of a few dozen terms and an integral for the rest. Each function
takes Python numbers or NumPy arrays (of shapes that broadcast) and costs tens of microseconds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...kernels.arrays import F64
from .numbers import Numbers, as_floats, like, require_at_least, require_skew

HEAD = 32
"""Ranks that are added one by one before a sum becomes an integral."""

NODES = 64
"""Points at which that integral is taken, spread evenly over the logarithm of the rank."""


def harmonic(n: Numbers, skew: float) -> Numbers:
    """The sum of ``x ** -skew`` for x from 1 to ``n``; a fractional ``n`` interpolates.

    Exact to 32, then Euler and Maclaurin's formula: relative error below 1e-9 for ``n`` to 1e11.
    """
    require_skew(skew)
    return like(n, _harmonic(as_floats(n), skew))


def share(top: Numbers, rows: float, skew: float) -> Numbers:
    """The part of the stream that asks for the ``top`` most popular of ``rows`` keys."""
    require_skew(skew)
    require_at_least("rows", rows, 1)
    kept = np.clip(as_floats(top), 0, rows)
    return like(top, _harmonic(kept, skew) / _whole(rows, skew))


def top_for(share: Numbers, rows: float, skew: float) -> Numbers:
    """How many of the most popular keys draw the given ``share`` of the stream."""
    require_skew(skew)
    require_at_least("rows", rows, 1)
    wanted = np.clip(as_floats(share), 0, 1) * _whole(rows, skew)
    _, sums = _head(skew)
    few = np.interp(wanted, sums, np.arange(HEAD + 1))
    if rows <= HEAD:
        return like(share, np.minimum(few, rows))
    many = _power_integral_inverse(np.maximum(wanted - sums[-1], 0), skew)
    many = np.clip(many, HEAD, rows)
    for _ in range(2):  # Newton's method: the first guess is already good to a few parts in 10^4
        many = many + (wanted - _harmonic(many, skew)) * many**skew
        many = np.clip(many, HEAD, rows)
    return like(share, np.where(wanted <= sums[-1], few, many))


def expected_distinct(draws: Numbers, rows: float, skew: float, skip: float | F64 = 0.0) -> Numbers:
    """How many different keys ``draws`` independent draws ask for, on average.

    The ``skip`` most popular keys are answered elsewhere: every draw falls on one of the others.
    To vary ``skip`` give ``draws`` as an array too.
    """
    require_skew(skew)
    require_at_least("rows", rows, 1)
    drawn = as_floats(draws)
    skipped = np.clip(np.floor(as_floats(skip)), 0, rows)
    ranks, weights = _ranks_from(skipped, rows)  # once, if many draws skip the same keys
    mass = _tail(skipped, rows, skew)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = np.minimum(ranks**-skew / mass, 1.0)
    found = np.sum(weights * seen(drawn[..., None], chance), axis=-1)
    return like(draws, np.where(skipped >= rows, 0.0, found))


def seen(draws: F64, chance: F64) -> F64:
    """The chance that ``draws`` draws hit something of the given chance at least once.

    Less than one draw is one draw that is sometimes made.
    """
    with np.errstate(divide="ignore"):
        missed = np.maximum(draws, 1.0) * np.log1p(-chance)
    return np.where(draws < 1, np.maximum(draws, 0.0) * chance, -np.expm1(missed))


def same_key(rows: float, skew: float, skip: float = 0.0) -> float:
    """The chance that two draws are of one key, none being of the ``skip`` most popular."""
    require_skew(skew)
    if skip >= rows:
        return 1.0
    begin = as_floats(skip)
    mass = _tail(begin, rows, skew)
    return min(1.0, float(_tail(begin, rows, 2 * skew) / mass**2))


def mean_rank(rows: float, skew: float, skip: float = 0.0) -> float:
    """The mean popularity rank of a draw, none being of the ``skip`` most popular keys."""
    require_skew(skew)
    ranks, weights = _ranks_from(np.floor(as_floats(min(skip, rows - 1))), rows)
    chance = weights * ranks**-skew
    return float(np.sum(chance * ranks) / np.sum(chance))


def page_shares(rows: float, pages: float, skew: float, skip: float = 0.0) -> tuple[F64, F64]:
    """Pages of a master in popularity order as (how many such pages, share of the draws of each).

    A hundred groups stand for any number of pages: the first alone, the others log-spaced. The
    ``skip`` most popular rows are answered elsewhere; the shares of the rest add up to 1.
    """
    require_skew(skew)
    per_page = rows / pages
    if skip >= rows:
        return np.zeros(1), np.zeros(1)
    first = np.floor(skip / per_page)
    numbers, counts = _ranks_from(np.asarray(first), pages)
    ends = np.minimum(numbers * per_page, rows)
    begins = np.maximum(ends - per_page, skip)
    mass = _mass_between(begins, ends, skew) / _tail(as_floats(skip), rows, skew)
    return counts, mass


def untouched(chosen: Numbers, slots: float, watched: float) -> Numbers:
    """The chance that of ``slots`` none of the ``chosen``, drawn at random, is one of ``watched``.

    Exact (Yao's formula) for whole numbers; ``chosen`` and ``watched`` may be fractional averages.
    """
    taken = np.clip(as_floats(chosen), 0, slots)
    if watched <= 0:
        return like(chosen, np.ones_like(taken))
    places, weights = _places(min(watched, slots))
    left = np.maximum(slots - taken[..., None] - places, 0)
    with np.errstate(divide="ignore"):
        logs = np.log(left / (slots - places))
    # A place of no weight says nothing, not even that its logarithm is infinite.
    logs = np.where(weights > 0, weights * logs, 0.0)
    return like(chosen, np.exp(np.sum(logs, axis=-1)))


def expected_pages(
    draws: Numbers,
    rows: float,
    pages: float,
    skew: float,
    ordered: bool = False,
    skip: float | F64 = 0.0,
) -> Numbers:
    """How many different pages ``draws`` draws ask for, on average.

    ``ordered``: the master lies in the order of popularity, so a page is a run of ranks. Otherwise
    ranks lie anywhere: the different keys drawn are a random choice of the rows.
    """
    require_at_least("pages", pages, 1)
    if not ordered:
        distinct = as_floats(expected_distinct(draws, rows, skew, skip))
        touched = pages * (1.0 - as_floats(untouched(distinct, rows, rows / pages)))
        return like(draws, touched)
    require_at_least("rows", rows, 1)
    drawn, skipped = np.broadcast_arrays(as_floats(draws), as_floats(skip))
    touched = np.empty(drawn.shape)
    for one in np.unique(skipped):
        counts, mass = page_shares(rows, pages, skew, float(one))
        at = skipped == one
        touched[at] = np.sum(counts * seen(drawn[at][..., None], np.minimum(mass, 1.0)), axis=-1)
    return like(draws, touched)


def expected_reads(pages_needed: Numbers, pages: float, gap: float) -> tuple[Numbers, Numbers]:
    """(separate reads, pages read) when a random choice of the pages is needed.

    Needed pages are read in file order; up to ``gap`` pages that nobody needs are read along where
    that joins two reads. Exact for whole numbers.
    """
    require_at_least("pages", pages, 1)
    needed = np.clip(as_floats(pages_needed), 0, pages)
    pairs = np.maximum(needed - 1, 0)
    apart = as_floats(untouched(needed, pages, gap + 1))
    reads = np.minimum(needed, 1) + pairs * apart
    # The lengths of the gaps that are read: sum of P(gap > j) for j < gap, less gap * P(gap > gap).
    shorter = as_floats(untouched(needed, pages, gap)) * np.maximum(pages - gap - needed, 0)
    between = np.maximum((pages - needed - shorter) / (needed + 1) - gap * apart, 0)
    return like(pages_needed, reads), like(pages_needed, needed + pairs * between)


# --- sums -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _head(skew: float) -> tuple[F64, F64]:
    """The first terms and their running sums, from 0."""
    terms = np.arange(1, HEAD + 1, dtype=np.float64) ** -skew
    return terms, np.concatenate([np.zeros(1), np.cumsum(terms)])


@lru_cache(maxsize=256)
def _whole(rows: float, skew: float) -> float:
    """The sum over all ranks, which every share is a part of."""
    return float(_harmonic(as_floats(rows), skew))


def _harmonic(n: F64, skew: float) -> F64:
    _, sums = _head(skew)
    few = np.interp(n, np.arange(HEAD + 1), sums)
    if np.all(n <= HEAD):
        return np.asarray(few)
    large = np.maximum(n, HEAD)
    return np.where(n <= HEAD, few, sums[-1] + _sum_between(as_floats(HEAD), large, skew))


def _sum_between(low: F64, high: F64, skew: float) -> F64:
    """Euler and Maclaurin: the sum of ``x ** -skew`` for x from ``low + 1`` to ``high``."""
    ends = (high**-skew - low**-skew) / 2
    first = skew / 12 * (low ** (-skew - 1) - high ** (-skew - 1))
    third = skew * (skew + 1) * (skew + 2) / 720 * (low ** (-skew - 3) - high ** (-skew - 3))
    return _power_integral(low, high, skew) + ends + first - third


def _power_integral(low: F64, high: F64, skew: float) -> F64:
    """The integral of ``x ** -skew``, without the cancellation near skew 1."""
    logs = np.log(high / low)
    steep = (1 - skew) * logs
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(np.abs(steep) < 1e-12, 1.0, np.expm1(steep) / steep)
    return low ** (1 - skew) * logs * ratio


def _power_integral_inverse(area: F64, skew: float) -> F64:
    """The rank to which the terms after ``HEAD`` add up to ``area``, by the midpoint rule."""
    low = HEAD + 0.5
    scaled = area / low ** (1 - skew)
    if abs(1 - skew) < 1e-12:
        return as_floats(low * np.exp(np.minimum(scaled, 700.0)) - 0.5)
    with np.errstate(divide="ignore"):  # more than an endless table has: infinitely far
        logs = np.log1p(np.maximum((1 - skew) * scaled, -1.0)) / (1 - skew)
    return as_floats(low * np.exp(np.minimum(logs, 700.0)) - 0.5)


def _tail(skip: F64, rows: float, skew: float) -> F64:
    """The sum of ``x ** -skew`` for x from ``skip + 1`` to ``rows``, exact also far out."""
    return _mass_between(skip, as_floats(rows), skew)


def _mass_between(low: F64, high: F64, skew: float) -> F64:
    """Differences of sums: subtracted near the top, integrated beyond, where they would cancel."""
    begin = np.maximum(low, HEAD)
    far = _sum_between(begin, np.maximum(high, begin), skew)
    near = _harmonic(np.minimum(high, HEAD), skew) - _harmonic(np.minimum(low, HEAD), skew)
    return near + far


# --- points and weights -----------------------------------------------------------------------


@lru_cache(maxsize=8)
def _legendre(count: int) -> tuple[F64, F64]:
    """Gauss and Legendre's points and weights on 0..1."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return (points + 1) / 2, weights / 2


def _ranks_from(skip: F64, rows: float) -> tuple[F64, F64]:
    """Points and weights that stand for the ranks ``skip + 1`` to ``rows``, on a new last axis."""
    begin = skip[..., None]
    head = begin + np.arange(1, HEAD + 1)
    weights = np.clip(rows - head + 1, 0, 1)
    low = np.minimum(begin + HEAD + 0.5, rows + 0.5)
    span = np.log((rows + 0.5) / low)
    points, steps = _legendre(NODES)
    tail = low * np.exp(span * points)
    ranks = np.concatenate([np.minimum(head, max(rows, 1)), tail], axis=-1)
    return ranks, np.concatenate([weights, span * steps * tail], axis=-1)


def _places(watched: float) -> tuple[F64, F64]:
    """Points and weights that stand for the places 0 to ``watched - 1``."""
    if watched <= 16:
        places = np.arange(np.ceil(watched), dtype=np.float64)
        return places, np.clip(watched - places, 0, 1)
    points, steps = _legendre(16)
    return watched * points - 0.5, watched * steps
