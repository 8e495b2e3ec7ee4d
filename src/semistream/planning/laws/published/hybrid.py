"""HYBRIDJOIN's and X-HYBRIDJOIN's published cost equations, as printed.

The paper's costs are nanoseconds, its sizes bytes and tuples. k pages are swappable (read per
iteration, d_S tuples), l pages are pinned (d_N tuples), alpha is the hash table's part of the rest.
Eq. 9 predicts far too little on a skewed stream; `renewal` has a law
that holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import SpecError
from .. import zipf
from ..numbers import require_at_least


@dataclass(frozen=True)
class HybridCosts:
    """The cost symbols of the HYBRIDJOIN paper, in nanoseconds per tuple."""

    c_h: float  # looking up one tuple of R in the hash table
    c_o: float  # making one tuple of the output
    c_e: float  # removing one tuple of S from the hash table and the queue
    c_s: float  # reading one tuple of S into the stream buffer
    c_a: float  # appending one tuple of S to the hash table and the queue

    @property
    def per_tuple(self) -> float:
        return self.c_o + self.c_e + self.c_s + self.c_a


@dataclass(frozen=True)
class HybridMemory:
    """Bytes of each part."""

    disk_buffer: float
    hash_table: float
    queue: float

    @property
    def total(self) -> float:
        return self.disk_buffer + self.hash_table + self.queue


def memory_of_equal_parts(memory: float, v_p: float, alpha: float) -> HybridMemory:
    """M divided, one swappable and one pinned page. HYBRIDJOIN paper, eq. 1 (the sum is M)."""
    return memory_of_parts(memory, v_p, alpha, k=1, l_pages=1)


def loop_cost_of_equal_parts(costs: HybridCosts, c_io: float, d_t: float, w: float) -> float:
    """c_loop in seconds, both parts of d_T tuples. HYBRIDJOIN paper, eq. 2.

    ``c_io`` is the cost of reading one page, in nanoseconds.
    """
    return loop_cost(costs, c_io, d_t, d_t, w)


def memory_of_parts(
    memory: float, v_p: float, alpha: float, k: float, l_pages: float
) -> HybridMemory:
    """M divided, k swappable and l pinned pages. HYBRIDJOIN paper, eq. 4 (the sum is M)."""
    rest = memory - (k + l_pages) * v_p
    if rest < 0:
        raise SpecError(
            f"{k:g} swappable and {l_pages:g} pinned pages of {v_p:g} bytes exceed a memory of "
            f"{memory:g} bytes; give more memory or fewer pages"
        )
    return HybridMemory((k + l_pages) * v_p, alpha * rest, (1 - alpha) * rest)


def loop_cost(costs: HybridCosts, c_io: float, d_n: float, d_s: float, w: float) -> float:
    """c_loop in seconds, d_N tuples pinned and d_S swapped. HYBRIDJOIN paper, eq. 5.

    ``c_io`` is the cost of reading the k swappable pages, in nanoseconds. The rate, eqs. 3 and 6,
    is `semistream.planning.laws.published.mesh.service_rate`.
    """
    return 1e-9 * (c_io + (d_n + d_s) * costs.c_h + w * costs.per_tuple)


def partition_probability(m: float, d_n: float, d_s: float, r_t: float) -> float:
    """p_m, the part of the waiting Zipf-1 tuples that the m-th partition matches (before eq. 7)."""
    low, high = d_n + (m - 1) * d_s, min(d_n + m * d_s, r_t)
    among = zipf.harmonic(r_t, 1.0) - zipf.harmonic(d_n, 1.0)
    return (zipf.harmonic(high, 1.0) - zipf.harmonic(low, 1.0)) / among


def old_match_probability(d_n: float, d_s: float, r_t: float) -> float:
    """p_old, the mean of p_m over the n partitions: 1/n. HYBRIDJOIN paper, eq. 7."""
    return 1 / _partitions(d_n, d_s, r_t)


def new_match_probability(d_n: float, d_s: float, r_t: float) -> float:
    """p_new, of tuples that have just come: p_N + p_S/n. HYBRIDJOIN paper, eq. 8."""
    p_n = zipf.share(d_n, r_t, 1.0)
    return p_n + (1 - p_n) / _partitions(d_n, d_s, r_t)


def tuples_per_iteration(h_s: float, d_n: float, d_s: float, r_t: float) -> float:
    """w, stream tuples answered per iteration, as printed. HYBRIDJOIN paper, eq. 9.

    It takes the variance n p (1 - p) for the mean n p, and averages partitions as if each were
    read equally often.
    """
    p_old = old_match_probability(d_n, d_s, r_t)
    p_new = new_match_probability(d_n, d_s, r_t)
    old, new = p_old * (1 - p_old), p_new * (1 - p_new)
    return h_s * old / (1 + old - new)


def _partitions(d_n: float, d_s: float, r_t: float) -> float:
    require_at_least("d_S", d_s, 1)
    require_at_least("R_t", r_t, d_n + 1)
    return (r_t - d_n) / d_s
