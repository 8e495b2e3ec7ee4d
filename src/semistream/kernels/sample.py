"""Two samples of a stream: some of its keys with all their rows, and some of its rows.

A key is counted if its mixed code is at most a limit. The table is open addressing with linear
probing; a count of 0 is an empty slot.
"""

from __future__ import annotations

import numpy as np

from .arrays import F64, I64
from .base import jit
from .table import MIX

MIX_AGAIN = np.uint64(0xC4CEB9FE1A85EC53)


@jit
def mixed(code: int) -> np.uint64:
    """Spread over all 64 bits, so that neither runs nor strides of codes show."""
    x = np.uint64(code)
    x = (x ^ (x >> np.uint64(32))) * MIX
    return (x ^ (x >> np.uint64(29))) * MIX_AGAIN


@jit
def count(codes: I64, begin: int, limit: np.uint64, used: I64, keys: I64, counts: I64) -> int:
    """Count codes from number `begin` on. Stops before a new key would fill more than three
    quarters of the table, and returns where; used[0] is how many keys there are."""
    size = len(keys)
    most = size - size // 4
    for i in range(begin, len(codes)):
        x = mixed(codes[i])
        if x > limit:
            continue
        # The limit leaves the high bits alike: the low ones say where it goes.
        s = np.int64(x % np.uint64(size))
        while counts[s] > 0 and keys[s] != codes[i]:
            s = s + 1 if s + 1 < size else 0
        if counts[s] == 0:
            if used[0] == most:
                return i
            used[0] += 1
            keys[s] = codes[i]
        counts[s] += 1
    return len(codes)


@jit
def thin(limit: np.uint64, used: I64, keys: I64, counts: I64, spare: I64) -> None:
    """Keep the keys up to a lower limit only. `spare` has twice the room of `keys`."""
    size, kept = len(keys), 0
    for s in range(size):
        if counts[s] > 0 and mixed(keys[s]) <= limit:
            spare[2 * kept], spare[2 * kept + 1] = keys[s], counts[s]
            kept += 1
        counts[s] = 0
    for i in range(kept):
        s = np.int64(mixed(spare[2 * i]) % np.uint64(size))
        while counts[s] > 0:
            s = s + 1 if s + 1 < size else 0
        keys[s], counts[s] = spare[2 * i], spare[2 * i + 1]
    used[0] = kept


@jit
def _chance(state: F64) -> float:
    """A number between 0 and 1, neither included; state[2] counts how many there were."""
    state[2] += 1
    return (np.float64(mixed(np.int64(state[2])) >> np.uint64(12)) + 0.5) / 4503599627370496.0


@jit
def sample(codes: I64, before: int, state: F64, out: I64) -> None:
    """Keep every code of a stream with the same chance, `before` of them having come already.

    Li's algorithm L: once `out` is full, it costs nothing per code that is not kept. state[0] is
    the number of the next code to be kept, state[1] the largest of `len(out)` random keys.
    """
    size, end = len(out), before + len(codes)
    at = before
    while at < end and at < size:
        out[at] = codes[at - before]
        at += 1
        if at == size:
            state[1] = np.exp(np.log(_chance(state)) / size)
            state[0] = at + np.floor(np.log(_chance(state)) / np.log1p(-state[1]))
    while end >= size and state[0] < end:
        out[np.int64(_chance(state) * size)] = codes[np.int64(state[0]) - before]
        state[1] *= np.exp(np.log(_chance(state)) / size)
        state[0] += 1 + np.floor(np.log(_chance(state)) / np.log1p(-state[1]))


@jit
def places(step: int, salt: int, out: I64) -> None:
    """A place at random in each stride: evenly spaced ones would see only some of a pattern."""
    for i in range(len(out)):
        out[i] = i * step + np.int64(mixed(salt + i) % np.uint64(step))
