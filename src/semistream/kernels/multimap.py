"""H_S: waiting stream rows by code. Each distinct code owns a slot with the first and last of its
rows; rows of a code are linked in both directions, so removing any row is O(1) and a hot key
with 10^5 waiting rows costs no more than 10^5 different keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import jit, load_i64, load_u8
from .table import slot_of

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
NONE = -1


@jit
def _find(code: int, codes: I64, head: I32, bits: int) -> int:
    """The slot of `code`, or the empty slot where it would go."""
    mask = (1 << bits) - 1
    s = slot_of(code, bits)
    while head[s] != NONE and codes[head[s]] != code:
        s = (s + 1) & mask
    return s


@jit
def add_rows(
    rows: I32, codes: I64, head: I32, tail: I32, bits: int, after: I32, before: I32, filter_: U8
) -> None:
    """Link rows (ids into `codes`) at the end of their code's list."""
    for k in range(len(rows)):
        row = rows[k]
        s = _find(codes[row], codes, head, bits)
        after[row] = NONE
        if head[s] == NONE:
            head[s] = row
            before[row] = NONE
        else:
            before[row] = tail[s]
            after[tail[s]] = row
        tail[s] = row
        filter_[slot_of(codes[row], bits + 3) >> 3] |= np.uint8(1) << np.uint8(
            slot_of(codes[row], bits + 3) & 7
        )


@jit
def _close_gap(hole: int, codes: I64, head: I32, tail: I32, bits: int) -> None:
    """Backward-shift deletion: no tombstones, so probes never slow down."""
    mask = (1 << bits) - 1
    s = (hole + 1) & mask
    while head[s] != NONE:
        home = slot_of(codes[head[s]], bits)
        if ((s - home) & mask) >= ((s - hole) & mask):
            head[hole], tail[hole] = head[s], tail[s]
            hole = s
        s = (s + 1) & mask
    head[hole] = NONE


@jit
def remove_rows(
    rows: I32, codes: I64, head: I32, tail: I32, bits: int, after: I32, before: I32
) -> None:
    """Unlink rows by identity; other rows of the same code stay."""
    for k in range(len(rows)):
        row = rows[k]
        p, n = before[row], after[row]
        if p != NONE and n != NONE:
            after[p] = n
            before[n] = p
            continue
        s = _find(codes[row], codes, head, bits)
        if p == NONE and n == NONE:
            _close_gap(s, codes, head, tail, bits)
        elif p == NONE:
            head[s] = n
            before[n] = NONE
        else:
            tail[s] = p
            after[p] = NONE


@jit
def rebuild_filter(codes: I64, head: I32, bits: int, filter_: U8) -> None:
    filter_[:] = 0
    for s in range(len(head)):
        if head[s] != NONE:
            f = slot_of(codes[head[s]], bits + 3)
            filter_[f >> 3] |= np.uint8(1) << np.uint8(f & 7)


@jit
def probe_pages(
    address: I64,
    rows: I64,
    valid: I64,
    page: int,
    row: int,
    codes: I64,
    head: I32,
    after: I32,
    bits: int,
    filter_: U8,
    who: I32,
    loc: I64,
) -> tuple[int, int, int]:
    """Probe master rows, from `row` of `page` on, against the waiting rows; stop when `who` is
    full. The bit filter stays in the CPU cache and answers for most rows, which match nothing.
    valid[p] is the address of a byte per row, 0 where a NULL key makes it unusable (or 0: all
    usable). Returns (pairs written, page, row) to go on from. `who` must have room for all
    waiting rows of one code."""
    k = 0
    while page < len(rows):
        at, usable = address[page], valid[page]
        for r in range(row, rows[page]):
            if usable != 0 and load_u8(usable + r) == 0:
                continue
            code = load_i64(at + 8 * r)
            f = slot_of(code, bits + 3)
            if not (filter_[f >> 3] >> np.uint8(f & 7)) & 1:
                continue
            waiting = head[_find(code, codes, head, bits)]
            mark = k
            while waiting != NONE:
                if k == len(who):
                    return mark, page, r
                who[k] = waiting
                loc[k] = (np.int64(page) << 32) | r
                k += 1
                waiting = after[waiting]
        page, row = page + 1, 0
    return k, page, 0
