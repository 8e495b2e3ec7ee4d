"""Gather rows from many Arrow chunks into one new column.

A row is a *location*: `chunk << 32 | row`, or -1 for "no row" (a NULL in the output). Buffer `j`
of chunk `c` starts at address `base[c] + offsets[c, j]`; an absent validity buffer is `offsets < 0`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import copy_bytes, jit, load_i32, load_i64, load_u8, load_u16, load_u32, same_bytes

I64 = NDArray[np.int64]
ROW = 0xFFFFFFFF


@jit
def gather_8(loc: I64, base: I64, offsets: I64, j: int, out: I64) -> None:
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            out[i] = load_i64(base[c] + offsets[c, j] + (at & ROW) * 8)
        else:
            out[i] = 0


@jit
def gather_4(loc: I64, base: I64, offsets: I64, j: int, out: NDArray[np.uint32]) -> None:
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            out[i] = load_u32(base[c] + offsets[c, j] + (at & ROW) * 4)
        else:
            out[i] = 0


@jit
def gather_2(loc: I64, base: I64, offsets: I64, j: int, out: NDArray[np.uint16]) -> None:
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            out[i] = load_u16(base[c] + offsets[c, j] + (at & ROW) * 2)
        else:
            out[i] = 0


@jit
def gather_1(loc: I64, base: I64, offsets: I64, j: int, out: NDArray[np.uint8]) -> None:
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            out[i] = load_u8(base[c] + offsets[c, j] + (at & ROW))
        else:
            out[i] = 0


@jit
def gather_wide(
    loc: I64, base: I64, offsets: I64, j: int, width: int, out: NDArray[np.uint8]
) -> None:
    """Fixed width of any size: decimals, fixed-size binary."""
    target = out.ctypes.data
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            copy_bytes(target + i * width, base[c] + offsets[c, j] + (at & ROW) * width, width)
        else:
            out[i * width : (i + 1) * width] = 0


@jit
def gather_bits(
    loc: I64, base: I64, offsets: I64, j: int, bit: I64, absent: int, out: NDArray[np.uint8]
) -> int:
    """Bits of buffer `j`, starting at bit `bit[c]`; `absent` is the value where a chunk has no
    such buffer. "No row" gives 0. Returns how many zeros were written."""
    zeros = 0
    for i in range(len(loc)):
        at = loc[i]
        value = 0
        if at >= 0:
            c = at >> 32
            if offsets[c, j] < 0:
                value = absent
            else:
                position = bit[c] + (at & ROW)
                byte = load_u8(base[c] + offsets[c, j] + (position >> 3))
                value = (byte >> (position & 7)) & 1
        if value:
            out[i >> 3] |= 1 << (i & 7)
        else:
            zeros += 1
    return zeros


@jit
def var_ends_32(loc: I64, base: I64, offsets: I64, j: int, ends: I64) -> None:
    """ends[0] = 0, ends[i + 1] = bytes of the first i + 1 values (32-bit offsets in buffer j)."""
    total = 0
    ends[0] = 0
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            a = base[c] + offsets[c, j] + (at & ROW) * 4
            total += load_i32(a + 4) - load_i32(a)
        ends[i + 1] = total


@jit
def var_ends_64(loc: I64, base: I64, offsets: I64, j: int, ends: I64) -> None:
    total = 0
    ends[0] = 0
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            a = base[c] + offsets[c, j] + (at & ROW) * 8
            total += load_i64(a + 8) - load_i64(a)
        ends[i + 1] = total


@jit
def var_copy(
    loc: I64, base: I64, offsets: I64, j: int, wide: bool, ends: I64, out: NDArray[np.uint8]
) -> None:
    """Copy the values; buffer j holds the offsets and j + 1 the bytes."""
    target = out.ctypes.data
    for i in range(len(loc)):
        at = loc[i]
        if at >= 0:
            c = at >> 32
            if wide:
                start = load_i64(base[c] + offsets[c, j] + (at & ROW) * 8)
            else:
                start = np.int64(load_i32(base[c] + offsets[c, j] + (at & ROW) * 4))
            copy_bytes(
                target + ends[i], base[c] + offsets[c, j + 1] + start, ends[i + 1] - ends[i]
            )


@jit
def equal_fixed(
    left: I64,
    left_base: I64,
    left_offsets: I64,
    left_j: int,
    right: I64,
    right_base: I64,
    right_offsets: I64,
    right_j: int,
    width: int,
    same: NDArray[np.bool_],
) -> None:
    """same[i] &= the two values have equal bytes (keys: locations are never -1, values not NULL)."""
    for i in range(len(left)):
        if same[i]:
            a, b = left[i], right[i]
            x = left_base[a >> 32] + left_offsets[a >> 32, left_j] + (a & ROW) * width
            y = right_base[b >> 32] + right_offsets[b >> 32, right_j] + (b & ROW) * width
            same[i] = same_bytes(x, y, width)


@jit
def equal_var(
    left: I64,
    left_base: I64,
    left_offsets: I64,
    left_j: int,
    right: I64,
    right_base: I64,
    right_offsets: I64,
    right_j: int,
    wide: bool,
    same: NDArray[np.bool_],
) -> None:
    for i in range(len(left)):
        if same[i]:
            a, b = left[i], right[i]
            x = left_base[a >> 32] + left_offsets[a >> 32, left_j]
            y = right_base[b >> 32] + right_offsets[b >> 32, right_j]
            if wide:
                p, p_end = load_i64(x + (a & ROW) * 8), load_i64(x + (a & ROW) * 8 + 8)
                q, q_end = load_i64(y + (b & ROW) * 8), load_i64(y + (b & ROW) * 8 + 8)
            else:
                p = np.int64(load_i32(x + (a & ROW) * 4))
                p_end = np.int64(load_i32(x + (a & ROW) * 4 + 4))
                q = np.int64(load_i32(y + (b & ROW) * 4))
                q_end = np.int64(load_i32(y + (b & ROW) * 4 + 4))
            same[i] = p_end - p == q_end - q and same_bytes(
                left_base[a >> 32] + left_offsets[a >> 32, left_j + 1] + p,
                right_base[b >> 32] + right_offsets[b >> 32, right_j + 1] + q,
                p_end - p,
            )


@jit
def equal_bits(
    left: I64,
    left_base: I64,
    left_offsets: I64,
    left_j: int,
    left_bit: I64,
    right: I64,
    right_base: I64,
    right_offsets: I64,
    right_j: int,
    right_bit: I64,
    same: NDArray[np.bool_],
) -> None:
    for i in range(len(left)):
        if same[i]:
            a, b = left[i], right[i]
            p = left_bit[a >> 32] + (a & ROW)
            q = right_bit[b >> 32] + (b & ROW)
            x = load_u8(left_base[a >> 32] + left_offsets[a >> 32, left_j] + (p >> 3))
            y = load_u8(right_base[b >> 32] + right_offsets[b >> 32, right_j] + (q >> 3))
            same[i] = ((x >> (p & 7)) & 1) == ((y >> (q & 7)) & 1)
