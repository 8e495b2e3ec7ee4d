"""The front stage's table: code -> key group, open addressing with linear probing.

A slot is (code, location of the group's first row); location -1 is an empty slot. `count` and
`frequency` run beside it: the rows of the group, and how often it was asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import jit

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
MIX = np.uint64(0x9E3779B97F4A7C15)


@jit
def slot_of(code: int, bits: int) -> int:
    x = np.uint64(code)
    x = (x ^ (x >> np.uint64(32))) * MIX
    return np.int64(x >> np.uint64(64 - bits))


@jit
def _find(code: int, slots: I64, bits: int) -> int:
    """The slot of `code`, or the empty slot where it would go."""
    mask = (1 << bits) - 1
    s = slot_of(code, bits)
    while slots[s, 1] >= 0 and slots[s, 0] != code:
        s = (s + 1) & mask
    return s


@jit
def put(
    codes: I64,
    start: I64,
    counts: I32,
    uses: U32,
    slots: I64,
    bits: int,
    count: I32,
    frequency: U32,
) -> int:
    """Insert groups, or move them where they are there already; returns how many were new."""
    new = 0
    for i in range(len(codes)):
        s = _find(codes[i], slots, bits)
        if slots[s, 1] < 0:
            slots[s, 0] = codes[i]
            frequency[s] = uses[i]
            new += 1
        slots[s, 1] = start[i]
        count[s] = counts[i]
    return new


@jit
def remove(codes: I64, slots: I64, bits: int, count: I32, frequency: U32) -> None:
    """Backward-shift deletion: no tombstones, so probes never slow down."""
    mask = (1 << bits) - 1
    for i in range(len(codes)):
        hole = _find(codes[i], slots, bits)
        if slots[hole, 1] < 0:
            continue
        s = (hole + 1) & mask
        while slots[s, 1] >= 0:
            home = slot_of(slots[s, 0], bits)
            if ((s - home) & mask) >= ((s - hole) & mask):
                slots[hole, 0], slots[hole, 1] = slots[s, 0], slots[s, 1]
                count[hole], frequency[hole] = count[s], frequency[s]
                hole = s
            s = (s + 1) & mask
        slots[hole, 1] = -1


@jit
def probe(
    codes: I64, slots: I64, bits: int, count: I32, frequency: U32, start: I64, counts: I32
) -> int:
    """start[i] = location of the first row of the code's group, or -1; counts[i] = its rows.
    Raises the group's frequency. Returns the hits."""
    hits = 0
    for i in range(len(codes)):
        s = _find(codes[i], slots, bits)
        at = slots[s, 1]
        start[i] = at
        if at >= 0:
            counts[i] = count[s]
            frequency[s] += np.uint32(1)
            hits += 1
        else:
            counts[i] = 0
    return hits


@jit
def in_chunks(slots: I64, chosen: NDArray[np.bool_], out: I64) -> int:
    """Slots whose group lives in a chosen chunk; returns how many."""
    n = 0
    for s in range(len(slots)):
        at = slots[s, 1]
        if at >= 0 and chosen[at >> 32]:
            out[n] = s
            n += 1
    return n


@jit
def absent_probe(
    codes: I64, start: I64, known: I64, used: U8, bits: int, absent: NDArray[np.bool_]
) -> int:
    """absent[i] = the master is known not to have this code. Direct-mapped, so it never grows."""
    total = 0
    for i in range(len(codes)):
        absent[i] = False
        if start[i] < 0:
            s = slot_of(codes[i], bits)
            if used[s] and known[s] == codes[i]:
                absent[i] = True
                total += 1
    return total


@jit
def absent_insert(codes: I64, known: I64, used: U8, bits: int) -> None:
    for i in range(len(codes)):
        s = slot_of(codes[i], bits)
        known[s] = codes[i]
        used[s] = 1


@jit
def sketch_add(codes: I64, amounts: I32, sketch: U8, bits: int, estimate: I32) -> None:
    """Count sightings of codes that are not cached: one saturating byte each, shared by the codes
    that fall on it. estimate[i] = the count after adding."""
    for i in range(len(codes)):
        s = slot_of(codes[i], bits)
        value = min(255, np.int64(sketch[s]) + amounts[i])
        sketch[s] = value
        estimate[i] = value


@jit
def sketch_put(codes: I64, values: U32, sketch: U8, bits: int) -> None:
    """Remember the frequency of groups that leave the cache."""
    for i in range(len(codes)):
        s = slot_of(codes[i], bits)
        sketch[s] = max(sketch[s], min(255, values[i]))


@jit
def halve(sketch: U8, frequency: U32) -> None:
    for i in range(len(sketch)):
        sketch[i] >>= np.uint8(1)
    for i in range(len(frequency)):
        frequency[i] >>= np.uint32(1)
