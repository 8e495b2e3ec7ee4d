"""XXH64, chained over the key columns: hash of column k is the seed of column k + 1.

The published algorithm (any xxHash library gives the same numbers), so a stranger can find a key
in a store without this code.
"""

from __future__ import annotations

import numpy as np

from .arrays import U64
from .base import jit, load_i32, load_i64, load_u8, load_u32, load_u64

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)


@jit
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@jit
def _round(acc: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(acc + word * P2, 31) * P1


@jit
def _stripes(address: int, count: int, seed: np.uint64) -> np.uint64:
    """The part of XXH64 that eats 32 bytes at a time."""
    a, b = seed + P1 + P2, seed + P2
    c, d = seed, seed - P1
    for at in range(address, address + count - 31, 32):
        a = _round(a, load_u64(at))
        b = _round(b, load_u64(at + 8))
        c = _round(c, load_u64(at + 16))
        d = _round(d, load_u64(at + 24))
    h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    for lane in (a, b, c, d):
        h = (h ^ _round(np.uint64(0), lane)) * P1 + P4
    return h


@jit
def xxh64(address: int, count: int, seed: np.uint64) -> np.uint64:
    at, end = address, address + count
    if count >= 32:
        h = _stripes(address, count, seed)
        at += count & ~31
    else:
        h = seed + P5
    h += np.uint64(count)
    while at + 8 <= end:
        h = _rotate(h ^ _round(np.uint64(0), load_u64(at)), 27) * P1 + P4
        at += 8
    if at + 4 <= end:
        h = _rotate(h ^ (np.uint64(load_u32(at)) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        h = _rotate(h ^ (np.uint64(load_u8(at)) * P5), 11) * P1
        at += 1
    h = (h ^ (h >> np.uint64(33))) * P2
    h = (h ^ (h >> np.uint64(29))) * P3
    return h ^ (h >> np.uint64(32))


@jit
def hash_fixed(address: int, width: int, hashes: U64) -> None:
    for i in range(len(hashes)):
        hashes[i] = xxh64(address + i * width, width, hashes[i])


@jit
def hash_var(offsets: int, wide: bool, data: int, hashes: U64) -> None:
    for i in range(len(hashes)):
        if wide:
            start, end = load_i64(offsets + 8 * i), load_i64(offsets + 8 * i + 8)
        else:
            start = np.int64(load_i32(offsets + 4 * i))
            end = np.int64(load_i32(offsets + 4 * i + 4))
        hashes[i] = xxh64(data + start, end - start, hashes[i])
