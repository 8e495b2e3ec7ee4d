"""Whether pages can be what their index says, before any kernel takes its numbers for addresses.

A checksum tells bytes that changed by accident. These tests are for bytes that someone chose: a
page within its file, buffers within the page, offsets of strings within their data.
"""

from __future__ import annotations

import numpy as np

from .arrays import I64, Mask
from .base import jit, load_i32, load_i64

BITS, FIXED, VAR = 0, 1, 2  # kinds of columns
SOUND = -1
# What is wrong with an entry of an index, beyond a column: its number counts from 0.
PLACE, ROWS, ORDER = -2, -3, -4
MOST_ROWS = 0xFFFFFFFF  # of a page: a row's number has 32 bits


@jit
def _outside(at: int, size: int, page: int) -> bool:
    """Whether `size` bytes from `at` on are not all within a page."""
    return at < 0 or size < 0 or at > page - size


@jit
def bad_entry(
    first: I64, last: I64, shard: I64, offset: I64, length: I64, rows: I64, buffers: I64,
    keyed: int, unique: bool, sizes: I64, kind: I64, width: I64, buffer: I64, is_key: Mask,
) -> tuple[int, int]:  # fmt: skip
    """The first page that an index describes as it cannot be, and what is wrong: PLACE, ROWS, ORDER
    or the number of a column. (SOUND, 0): none. The first `keyed` pages have keys; `sizes` are
    those of the shards; column c has `kind`, `width` of a value or an offset, and its first
    `buffer`."""
    for p in range(len(rows)):
        n, page = rows[p], length[p]
        if shard[p] < 0 or shard[p] >= len(sizes):
            return p, PLACE
        if page < 1 or _outside(offset[p], page, sizes[shard[p]]):
            return p, PLACE
        if n < 1 or n > page or n > MOST_ROWS:
            return p, ROWS
        if p < keyed:
            if first[p] > last[p] or (p > 0 and last[p - 1] > first[p]):
                return p, ORDER
            if unique and p > 0 and last[p - 1] == first[p]:
                return p, ORDER
        nulls, bits = False, (n + 7) >> 3  # whether its key has any; bytes of a bitmap
        for c in range(len(kind)):
            at, w = buffer[c], width[c]
            valid, values = buffers[p, at], buffers[p, at + 1]
            if valid != -1 and _outside(valid, bits, page):
                return p, c
            # Where the data of strings begins is seen together with their offsets. Values without
            # bytes need not be anywhere. A width is below 2**31, so this cannot overflow.
            need = bits if kind[c] == BITS else (n + 1) * w if kind[c] == VAR else n * w
            if (w or kind[c] == BITS) and _outside(values, need, page):
                return p, c
            nulls |= is_key[c] and valid != -1
        if nulls != (p >= keyed):
            return p, ORDER
    return SOUND, 0


@jit
def bad_page(
    base: I64, length: I64, rows: I64, first: I64, last: I64, searched: Mask, unique: Mask,
    buffers: I64, codes: int, offsets: I64, width: I64,
) -> tuple[int, int]:  # fmt: skip
    """The first of some pages in memory that would lead a kernel astray, and what is wrong: ORDER
    of its codes (buffer number `codes`), or the number of a column among those of strings, whose
    offsets are buffers number `offsets`, `width` bytes each, and whose data is the buffer after.
    A data buffer outside of the page is none: then all strings must be empty. (SOUND, 0): none."""
    for p in range(len(base)):
        if searched[p]:
            at, n = base[p] + buffers[p, codes], rows[p]
            if load_i64(at) != first[p] or load_i64(at + 8 * (n - 1)) != last[p]:
                return p, ORDER
            step = 1 if unique[p] else 0
            if _falls_64(at, n - 1, step):
                return p, ORDER
        for c in range(len(offsets)):
            j = offsets[c]
            at, data = base[p] + buffers[p, j], buffers[p, j + 1]
            most = 0 if _outside(data, 0, length[p]) else length[p] - data
            if width[c] == 4:
                begin, end = np.int64(load_i32(at)), np.int64(load_i32(at + 4 * rows[p]))
                falls = _falls_32(at, rows[p])
            else:
                begin, end = load_i64(at), load_i64(at + 8 * rows[p])
                falls = _falls_64(at, rows[p], 0)
            if begin < 0 or end > most or falls:
                return p, c
    return SOUND, 0


@jit
def _falls_32(at: int, steps: int) -> bool:
    """Whether one of so many numbers is above the one that follows it."""
    falls = np.int64(0)
    for i in range(steps):
        falls |= np.int64(load_i32(at + 4 * i + 4) < load_i32(at + 4 * i))
    return falls != 0


@jit
def _falls_64(at: int, steps: int, least: int) -> bool:
    """The same for longer ones; with `least` 1, also whether it is equal."""
    falls = np.int64(0)
    if least:
        for i in range(steps):
            falls |= np.int64(load_i64(at + 8 * i + 8) <= load_i64(at + 8 * i))
    else:
        for i in range(steps):
            falls |= np.int64(load_i64(at + 8 * i + 8) < load_i64(at + 8 * i))
    return falls != 0
