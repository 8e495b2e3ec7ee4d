"""The front stage's table: code -> key group, open addressing with linear probing.

A slot is (code, location of the group's first row, rows of the group << 32 | how often it was asked
for), side by side so that a probe costs one cache miss; location -1 is an empty slot. The number of
slots is free: it follows from the memory and not from a power of two.
"""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, U8, U16, U32, Mask
from .base import jit, prefetch

MIX = np.uint64(0x9E3779B97F4A7C15)
MOST_USES = 0xFFFFFFFF
MOST_KEPT = 64
TAG_BITS, TAGS, MOST_SEEN = 10, (1 << 10) - 1, 63  # of a code that is not cached
TILE = 256  # codes looked up side by side, so that their cache misses overlap


@jit
def slot_of(code: int, bits: int) -> int:
    x = np.uint64(code)
    x = (x ^ (x >> np.uint64(32))) * MIX
    return np.int64(x >> np.uint64(64 - bits))


@jit
def _home(code: int, size: int) -> int:
    return (slot_of(code, 32) * size) >> 32


@jit
def _find(code: int, slots: I64, s: int) -> int:
    """The slot of `code`, or the empty slot where it would go; `s` is its home."""
    while slots[s, 1] >= 0 and slots[s, 0] != code:
        s += 1
        if s == len(slots):
            s = 0
    return s


@jit
def put(codes: I64, start: I64, counts: I32, uses: U32, slots: I64) -> int:
    """Insert groups, or move them where they are there already; returns how many were new."""
    new = 0
    for i in range(len(codes)):
        s = _find(codes[i], slots, _home(codes[i], len(slots)))
        used = np.int64(uses[i])
        if slots[s, 1] < 0:
            new += 1
        else:
            used = slots[s, 2] & MOST_USES
        slots[s, 0] = codes[i]
        slots[s, 1] = start[i]
        slots[s, 2] = (np.int64(counts[i]) << 32) | used
    return new


@jit
def drop(codes: I64, slots: I64) -> int:
    """Backward-shift deletion: no tombstones, so probes never slow down. Returns how many of the
    codes were there."""
    size, found = len(slots), 0
    for i in range(len(codes)):
        hole = _find(codes[i], slots, _home(codes[i], size))
        if slots[hole, 1] < 0:
            continue
        found += 1
        s = (hole + 1) % size
        while slots[s, 1] >= 0:
            home = _home(slots[s, 0], size)
            if (s - home + size) % size >= (s - hole + size) % size:
                for word in range(3):
                    slots[hole, word] = slots[s, word]
                hole = s
            s = (s + 1) % size
        slots[hole, 1] = -1
    return found


@jit
def probe(codes: I64, slots: I64, start: I64, counts: I32) -> int:
    """start[i] = location of the first row of the code's group, or -1; counts[i] = its rows.
    Raises the group's frequency. Returns the hits."""
    hits, n, home = 0, len(codes), np.empty(TILE, np.int64)
    for begin in range(0, n, TILE):
        m = min(TILE, n - begin)
        for i in range(m):
            home[i] = _home(codes[begin + i], len(slots))
            prefetch(slots.ctypes.data + 24 * home[i])
        for i in range(m):
            s = _find(codes[begin + i], slots, home[i])
            at, count = slots[s, 1], 0
            if at >= 0:
                count = slots[s, 2] >> 32
                slots[s, 2] += (slots[s, 2] & MOST_USES) < MOST_USES
                hits += 1
            start[begin + i] = at
            counts[begin + i] = count
    return hits


@jit
def in_chunks(slots: I64, chosen: Mask, out: I64) -> int:
    """Slots whose group lives in a chosen chunk; returns how many."""
    n = 0
    for s in range(len(slots)):
        at = slots[s, 1]
        if at >= 0 and chosen[at >> 32]:
            out[n] = s
            n += 1
    return n


@jit
def uses_by_chunk(slots: I64, counts: I32) -> None:
    """counts[chunk, uses] = groups; the last column has those that were asked for more often."""
    most = counts.shape[1] - 1
    for s in range(len(slots)):
        if slots[s, 1] >= 0:
            counts[slots[s, 1] >> 32, min(most, slots[s, 2] & MOST_USES)] += 1


@jit
def absent_probe(codes: I64, start: I64, known: I64, used: U8, bits: int, absent: Mask) -> int:
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
def absent_forget(codes: I64, known: I64, used: U8, bits: int) -> None:
    for i in range(len(codes)):
        s = slot_of(codes[i], bits)
        if known[s] == codes[i]:
            used[s] = 0


@jit
def _tag(code: int) -> int:
    """Ten bits that tell codes of one place from each other, other bits than those of the place."""
    x = np.uint64(code)
    x = (x ^ (x >> np.uint64(32))) * MIX
    x = (x ^ (x >> np.uint64(29))) * MIX
    return np.int64((x >> np.uint64(40)) & np.uint64(TAGS))


@jit
def ghost_add(codes: I64, amounts: I32, ghosts: U16, bits: int, estimate: I32) -> int:
    """Count sightings of codes that are not cached; estimate[i] = the count after adding. A place
    is two words of count and tag, the code seen last first; a word without a count is free. A third
    code takes the place of one that was seen no more often than itself, and otherwise wears the
    older one down. Returns how many codes were not remembered before."""
    new = 0
    for i in range(len(codes)):
        s, tag = slot_of(codes[i], bits), _tag(codes[i])
        a, b = np.int64(ghosts[s, 0]), np.int64(ghosts[s, 1])
        before, other = np.int64(0), a
        if a > TAGS and (a & TAGS) == tag:
            before, other = a >> TAG_BITS, b
        elif b > TAGS and (b & TAGS) == tag:
            before = b >> TAG_BITS
        else:
            new += 1
            if (b >> TAG_BITS) > amounts[i]:
                if (a >> TAG_BITS) > amounts[i]:
                    ghosts[s, 1] = b - (1 << TAG_BITS)
                    estimate[i] = amounts[i]
                    continue
                other = b
        estimate[i] = before + amounts[i]
        ghosts[s, 0] = (np.int64(min(MOST_SEEN, estimate[i])) << TAG_BITS) | tag
        ghosts[s, 1] = other
    return new


@jit
def ghost_put(codes: I64, values: U32, ghosts: U16, bits: int) -> None:
    """Remember the frequency of groups that leave the cache."""
    for i in range(len(codes)):
        count = np.int64(min(MOST_SEEN, values[i]))
        if count == 0:
            continue
        s, tag = slot_of(codes[i], bits), _tag(codes[i])
        a, b = np.int64(ghosts[s, 0]), np.int64(ghosts[s, 1])
        fresh = (count << TAG_BITS) | tag
        if (a & TAGS) == tag:  # from before it came into the cache
            ghosts[s, 0] = fresh
        elif (b & TAGS) == tag or (b >> TAG_BITS) <= count:
            ghosts[s, 0], ghosts[s, 1] = fresh, a
        elif (a >> TAG_BITS) <= count:
            ghosts[s, 0] = fresh


@jit
def halve_ghosts(ghosts: U16) -> None:
    for s in range(len(ghosts)):
        for way in range(2):
            word = np.int64(ghosts[s, way])
            ghosts[s, way] = ((word >> TAG_BITS) >> 1 << TAG_BITS) | (word & TAGS)


@jit
def halve(slots: I64) -> None:
    """Halve all frequencies, large ones to MOST_KEPT: else what was very hot once would stay for as
    many rounds as that number has bits."""
    for s in range(len(slots)):
        word = slots[s, 2]
        slots[s, 2] = ((word >> 32) << 32) | min(MOST_KEPT, (word & MOST_USES) >> 1)
