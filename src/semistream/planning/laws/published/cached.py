"""CMESHJOIN's published cost equations, and the size of the cache that is really best.

The paper maximises the rate by a derivative (eqs. 5 to 7) that goes only through the hit rate of
the cache and forgets that a larger cache leaves less memory for the disk phase. The printed
derivative is positive wherever the rate is, so its only root is a rate of 0, and the printed second
derivative is positive where a maximum needs a negative one. `best_cache` is the corrected one.

Symbols: M memory, h_R tuples in the cache, v_R bytes of one, R_t tuples of R, p_N hit rate.
"""

from __future__ import annotations

import numpy as np

from ....kernels.arrays import F64
from .. import zipf
from ..numbers import Numbers, as_floats, like, require_at_least, require_skew

COUNTER = 8.0
"""Bytes that counting the uses of a cached tuple takes, as published."""

MANY = 1000.0
"""Cached keys beyond which one more or less does not matter."""


# --- as printed -----------------------------------------------------------------------------------


def hit_rate(h_r: Numbers, r_t: float) -> Numbers:
    """p_N, the share of a Zipf-1 stream that the cache answers. CMESHJOIN paper, eq. 1."""
    return zipf.share(h_r, r_t, 1.0)


def hit_rate_slope(h_r: float, r_t: float) -> float:
    """dp_N/dh_R as the difference to the next tuple. CMESHJOIN paper, eq. 2."""
    return hit_rate(h_r + 1, r_t) - hit_rate(h_r, r_t)


def disk_rate(memory: float, h_r: Numbers, r_t: float, v_r: float) -> Numbers:
    """mu_dp, the rate of the disk phase up to a constant factor. CMESHJOIN paper, eq. 3."""
    return (memory - (COUNTER + v_r) * h_r) / (r_t * v_r)


def cached_rate(memory: float, h_r: Numbers, r_t: float, v_r: float) -> Numbers:
    """mu_cm, the rate with the cache before the disk phase. CMESHJOIN paper, eq. 4."""
    return disk_rate(memory, h_r, r_t, v_r) / (1.0 - hit_rate(h_r, r_t))


def slope_by_hit_rate(rate_slope: float, hit_slope: float) -> float:
    """dmu/dh_R = dmu/dp_N x dp_N/dh_R, as printed. CMESHJOIN paper, eq. 5.

    Not the derivative of eq. 4, which depends on h_R also through eq. 3.
    """
    return rate_slope * hit_slope


def printed_slope(memory: float, h_r: float, r_t: float, v_r: float) -> float:
    """dmu_cm/dh_R, as printed. CMESHJOIN paper, eq. 6. Positive for every cache that fits."""
    by_hits = disk_rate(memory, h_r, r_t, v_r) / (1 - hit_rate(h_r, r_t)) ** 2
    return slope_by_hit_rate(by_hits, hit_rate_slope(h_r, r_t))


def printed_curvature(memory: float, h_r: float, r_t: float, v_r: float) -> float:
    """The second derivative of mu_cm, as printed. CMESHJOIN paper, eq. 7. Never negative."""
    by_hits = 2 * disk_rate(memory, h_r, r_t, v_r) / (1 - hit_rate(h_r, r_t)) ** 3
    return by_hits * hit_rate_slope(h_r, r_t) ** 2


# --- corrected --------------------------------------------------------------------------------


def cache_gain(
    memory: float, cached: Numbers, tuple_bytes: float, rows: float, skew: float
) -> Numbers:
    """The rate with ``cached`` keys in memory over the rate with none.

    ``tuple_bytes`` is what one takes with all that belongs to it. The disk phase's rate is taken
    to be in proportion to its memory, as for a cyclic scan.
    """
    require_at_least("memory", memory, 1)
    kept = as_floats(cached)
    left = np.maximum(memory - tuple_bytes * kept, 0) / memory
    missed = 1 - as_floats(zipf.share(kept, rows, skew))
    with np.errstate(divide="ignore", invalid="ignore"):
        # All of R in the cache needs no disk phase: no rate is too high.
        gain = np.where(missed <= 0, np.where(left > 0, np.inf, 0.0), left / missed)
    return like(cached, gain)


def best_cache(memory: float, tuple_bytes: float, rows: float, skew: float) -> float:
    """The number of cached keys of the highest rate, for any Zipf exponent.

    With c = tuple_bytes it maximises (M - c h) / (1 - p(h)). The slope vanishes where
    M/c = h + h^skew (H(R) - H(h)), whose right side only rises with h: there is one root. For skew
    1 that is M/(c h) = 1 + ln(R/h). Without skew no cache pays unless it holds all of R.
    """
    require_skew(skew)
    require_at_least("rows", rows, 1)
    most = min(rows, memory / tuple_bytes)
    if memory >= tuple_bytes * rows:
        return rows
    if most < 1:
        return 0.0
    low, high, wanted = 1.0, most, memory / tuple_bytes
    near = low
    for _ in range(3):  # each time a 63rd of what was left of the logarithm
        grid = np.geomspace(low, high, 64)
        needed = _memory_for(grid, rows, skew)
        near = float(np.interp(wanted, needed, grid))
        at = int(np.clip(np.searchsorted(needed, wanted), 1, len(grid) - 1))
        low, high = float(grid[at - 1]), float(grid[at])
    if near > MANY:
        return near
    # Of a few keys each counts as a whole.
    few = np.clip(np.floor(near) + np.arange(-3, 5), 0, np.floor(most))
    return float(few[np.argmax(cache_gain(memory, few, tuple_bytes, rows, skew))])


def _memory_for(cached: F64, rows: float, skew: float) -> F64:
    """M/c for which so many cached keys are best; the next key's popularity is that half way on."""
    beyond = zipf.harmonic(rows, skew) - zipf.harmonic(cached, skew)
    return np.asarray(cached + (cached + 0.5) ** skew * beyond)


def best_cache_zipf_1(memory: float, tuple_bytes: float, rows: float) -> float:
    """The same for skew 1 by the closed condition M/(c h) = 1 + ln(R/h), by iteration."""
    if memory >= tuple_bytes * rows:
        return rows
    cached = memory / tuple_bytes / 5
    for _ in range(60):
        cached = memory / tuple_bytes / (1 + np.log(rows / cached))
    return float(cached)
