"""MESHJOIN's published cost equations, and the best disk buffer in closed form.

"MESHJOIN paper": Polyzotis et al., Supporting Streaming Updates in an Active Data Warehouse.
"Default-buffer paper": the study of MESHJOIN's disk buffer that came after it. The two number
their equations differently from the third on.

The symbols are the papers'; docs/model.md joins them to the words used elsewhere. Costs are
seconds, sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ....errors import SpecError
from ..numbers import Numbers, require_at_least


@dataclass(frozen=True)
class MeshSymbols:
    """What the MESHJOIN equations know of the data and the machine."""

    n_r: float  # pages of R
    v_p: float  # bytes of a page
    v_r: float  # bytes of a tuple of R
    v_s: float  # bytes of a tuple of S
    c_io: Callable[[float], float]  # seconds to read b pages
    c_h: float  # seconds to probe the hash table with one tuple of R
    c_o: float  # seconds to make one tuple of the output
    c_e: float  # seconds to expire one tuple of S
    c_s: float  # seconds to take one tuple from the stream buffer
    c_a: float  # seconds to append one tuple of S to the hash table and the queue
    sigma: float = 1.0  # selectivity: output tuples per tuple of R that is probed
    f: float = 4.8  # bytes of the hash table per byte of tuples in it
    pointer: float = 4.0  # bytes of an entry of the queue

    @property
    def per_tuple(self) -> float:
        """Seconds that each tuple of S costs, however many there are."""
        return self.c_e + self.c_s + self.c_a

    def per_read(self, b: float) -> float:
        """Seconds that each read of b pages costs, however many tuples of S wait."""
        return self.c_io(b) + b * self.v_p / self.v_r * (self.c_h + self.sigma * self.c_o)

    def window_bytes(self, b: float) -> float:
        """Bytes per tuple of w: in the stream buffer, and once per iteration of a cycle in Q, H."""
        return self.v_s + self.n_r / b * (self.pointer + self.f * self.v_s)


def memory(symbols: MeshSymbols, w: float, b: float) -> float:
    """M, bytes for reading b pages and taking in w tuples at a time.

    MESHJOIN paper, eq. 1; default-buffer paper, eq. 1.
    """
    return b * symbols.v_p + w * symbols.window_bytes(b)


def loop_cost(symbols: MeshSymbols, w: float, b: float) -> float:
    """c_loop, seconds of one iteration.

    MESHJOIN paper, eq. 2; default-buffer paper, eq. 2.
    """
    return symbols.per_read(b) + w * symbols.per_tuple


def service_rate(w: Numbers, c_loop: Numbers) -> Numbers:
    """mu, stream tuples finished per second.

    MESHJOIN paper, eq. 3; default-buffer paper, eq. 4; HYBRIDJOIN paper, eqs. 3 and 6.
    """
    return w / c_loop


def reads_per_tuple(w: Numbers, b: Numbers) -> Numbers:
    """Pages read per stream tuple, b/w: the first half of eq. 4 of the MESHJOIN paper.

    The paper's text and equation call it IO_s; its table 1 has the two names swapped.
    """
    return b / w


def reads_per_second(b: Numbers, c_loop: Numbers) -> Numbers:
    """Pages read per second, b/c_loop: the second half of eq. 4 of the MESHJOIN paper."""
    return b / c_loop


def keeps_up(rate: float, w: float, c_loop: float) -> bool:
    """Whether the join is as fast as the stream: lambda c_loop <= w. MESHJOIN paper, eq. 5."""
    return rate * c_loop <= w


def least_w(symbols: MeshSymbols, rate: float, b: float) -> float:
    """The fewest tuples per iteration that keep up with a stream of ``rate`` tuples per second.

    MESHJOIN paper, eq. 6, w = lambda c_loop, solved for the w that c_loop contains. There is one
    only while lambda (c_E + c_S + c_A) < 1: each tuple costs that much CPU whatever is shared.
    """
    require_at_least("rate", rate, 0)
    busy = rate * symbols.per_tuple
    if busy >= 1:
        most = 1 / symbols.per_tuple
        raise SpecError(
            f"no memory is enough for {rate:g} rows per second: taking in, appending and expiring "
            f"a row alone allow fewer than {most:g}; lower the rate or divide the stream"
        )
    return rate * symbols.per_read(b) / (1 - busy)


def least_memory(symbols: MeshSymbols, rate: float, b: float) -> float:
    """M for eq. 6's w: the least memory that keeps up, reading b pages at a time."""
    return memory(symbols, least_w(symbols, rate, b), b)


def tuples_for_memory(symbols: MeshSymbols, memory: float, b: float) -> float:
    """w, the tuples per iteration that a memory allows. Default-buffer paper, eq. 3."""
    return max(0.0, memory - b * symbols.v_p) / symbols.window_bytes(b)


def rate_for_buffer(symbols: MeshSymbols, memory: float, b: float) -> float:
    """mu as a function of the disk buffer. Default-buffer paper, eq. 5."""
    w = tuples_for_memory(symbols, memory, b)
    return service_rate(w, loop_cost(symbols, w, b))


# --- the best buffer in closed form (ours) ------------------------------------------------------
# Where reading B bytes takes s + tau B, and reading dominates, the rate is in proportion to
# (M - B) B / (kappa + B), kappa = s/tau being the bytes read in the time of one seek.


def relative_rate(memory: Numbers, buffer: Numbers, kappa: float) -> Numbers:
    """The rate of a cyclic scan up to a factor that depends on neither memory nor buffer."""
    return (memory - buffer) * buffer / (kappa + buffer)


def best_buffer(memory: float, kappa: float) -> float:
    """The buffer of the highest rate, in bytes: sqrt(kappa^2 + kappa M) - kappa.

    It does not depend on the size of R.
    """
    require_at_least("memory", memory, 0)
    require_at_least("kappa", kappa, 0)
    return math.sqrt(kappa * (kappa + memory)) - kappa


def buffer_loss(memory: float, buffer: float, kappa: float) -> float:
    """How much faster the best buffer is than another, as a part of the other's rate."""
    if not 0 < buffer < memory:
        return math.inf
    best = relative_rate(memory, best_buffer(memory, kappa), kappa)
    return best / relative_rate(memory, buffer, kappa) - 1
