"""Gather rows from many Arrow chunks into new columns.

A row is a *location*: `chunk << 32 | row`. Buffer `j` of chunk `c` starts at address
`base[c] + offsets[c, j]`; an absent validity buffer has `offsets < 0`.
"""

from __future__ import annotations

import numpy as np

from .arrays import I64, U8, Mask
from .base import (
    copy_bytes,
    jit,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    prefetch,
    same_bytes,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)

ROW = 0xFFFFFFFF
AHEAD = 16  # rows to prefetch ahead
TILE = 64  # rows whose cache misses overlap


@jit
def move(target: int, source: int, width: int) -> None:
    """Copy one fixed-width value."""
    if width == 8:
        store_i64(target, load_i64(source))
    elif width == 4:
        store_u32(target, load_u32(source))
    elif width == 2:
        store_u16(target, load_u16(source))
    elif width == 1:
        store_u8(target, load_u8(source))
    else:
        copy_bytes(target, source, width)


@jit
def move_column(target: int, source: I64, width: int) -> None:
    """Values of one fixed width, from the addresses in `source`, to follow each other."""
    if width == 8:
        for i in range(len(source)):
            store_i64(target + 8 * i, load_i64(source[i]))
    elif width == 4:
        for i in range(len(source)):
            store_u32(target + 4 * i, load_u32(source[i]))
    else:
        for i in range(len(source)):
            move(target + width * i, source[i], width)


@jit
def gather_fixed(
    loc: I64, base: I64, offsets: I64, buffers: I64, widths: I64, targets: I64
) -> None:
    """All fixed-width columns, a tile of rows at a time: the cache misses of a tile overlap. Column
    q is buffer buffers[q], widths[q] bytes wide, and goes to address targets[q]."""
    n, columns = len(loc), len(buffers)
    source = np.empty((columns, TILE), np.int64)
    for begin in range(0, n, TILE):
        m = min(TILE, n - begin)
        for i in range(m):
            at = loc[begin + i]
            c, row = at >> 32, at & ROW
            for q in range(columns):
                source[q, i] = base[c] + offsets[c, buffers[q]] + row * widths[q]
                prefetch(source[q, i])
        for q in range(columns):
            move_column(targets[q] + begin * widths[q], source[q, :m], widths[q])


@jit
def gather_bits(loc: I64, base: I64, offsets: I64, j: int, absent: int, out: U8) -> int:
    """Bits of buffer `j`; `absent` is the value where a chunk has no such buffer. Returns how many
    zeros were written."""
    zeros = 0
    for i in range(len(loc)):
        c, row = loc[i] >> 32, loc[i] & ROW
        value = absent
        if offsets[c, j] >= 0:
            value = (load_u8(base[c] + offsets[c, j] + (row >> 3)) >> (row & 7)) & 1
        if value:
            out[i >> 3] |= 1 << (i & 7)
        else:
            zeros += 1
    return zeros


@jit
def var_spans(
    loc: I64, base: I64, offsets: I64, j: int, width: int, address: I64, ends: I64
) -> None:
    """Where each value of a string or binary column is, and the bytes of the first i of them in
    ends[i]. Buffer j holds offsets of `width` bytes, j + 1 the data."""
    total, n = 0, len(loc)
    ends[0] = 0
    for i in range(n):
        at = loc[min(i + AHEAD, n - 1)]
        prefetch(base[at >> 32] + offsets[at >> 32, j] + (at & ROW) * width)
        at = loc[i]
        c = at >> 32
        here = base[c] + offsets[c, j] + (at & ROW) * width
        if width == 4:
            start, end = np.int64(load_i32(here)), np.int64(load_i32(here + 4))
        else:
            start, end = load_i64(here), load_i64(here + 8)
        address[i] = base[c] + offsets[c, j + 1] + start
        total += end - start
        ends[i + 1] = total


@jit
def fixed_spans(
    loc: I64, base: I64, offsets: I64, j: int, width: int, address: I64, ends: I64
) -> None:
    ends[0] = 0
    for i in range(len(loc)):
        c = loc[i] >> 32
        address[i] = base[c] + offsets[c, j] + (loc[i] & ROW) * width
        ends[i + 1] = ends[i] + width


@jit
def copy_spans(address: I64, ends: I64, out: U8) -> None:
    target, n = out.ctypes.data, len(address)
    for i in range(n):
        prefetch(address[min(i + AHEAD, n - 1)])
        copy_bytes(target + ends[i], address[i], ends[i + 1] - ends[i])


@jit
def same_spans(a: I64, a_ends: I64, b: I64, b_ends: I64, same: Mask) -> None:
    """same[i] &= the two values have equal bytes."""
    n = len(a)
    for i in range(n):
        k = min(i + AHEAD, n - 1)
        prefetch(a[k])
        prefetch(b[k])
        if same[i]:
            length = a_ends[i + 1] - a_ends[i]
            same[i] = length == b_ends[i + 1] - b_ends[i] and same_bytes(a[i], b[i], length)
