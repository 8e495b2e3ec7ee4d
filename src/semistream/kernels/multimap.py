"""H_S: waiting stream rows by code. Each distinct code owns a slot with the first and last of its
rows; rows of a code are linked in both directions, so removing any row is O(1) and a hot key
with 10^5 waiting rows costs no more than 10^5 different keys.
"""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, U8
from .base import jit, load_i64, load_u8, prefetch
from .table import slot_of

NONE = -1
TILE = 256  # rows looked up side by side, so that their cache misses overlap


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
    k, candidate, slot = 0, np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    while page < len(rows):
        at, usable = address[page], valid[page]
        if page + 1 < len(rows):
            for line in range(0, 8 * rows[page + 1], 64):
                prefetch(address[page + 1] + line)
        while row < rows[page]:
            end = min(row + TILE, rows[page])
            n = _pass_filter(at, row, end, usable, bits, filter_, candidate, slot)
            _find_first(at, n, codes, head, after, bits, candidate, slot)
            for i in range(n):
                waiting, mark = slot[i], k
                while waiting != NONE:
                    if k == len(who):
                        return mark, page, candidate[i]
                    who[k] = waiting
                    loc[k] = (np.int64(page) << 32) | candidate[i]
                    k += 1
                    waiting = after[waiting]
            row = end
        page, row = page + 1, 0
    return k, page, 0


@jit
def _pass_filter(
    at: int, row: int, end: int, usable: int, bits: int, filter_: U8, candidate: I64, slot: I64
) -> int:
    """Rows whose code may be waiting, without a branch, and the slots where to look."""
    n = 0
    for r in range(row, end):
        f = slot_of(load_i64(at + 8 * r), bits + 3)
        candidate[n], slot[n] = r, f >> 3
        n += (filter_[f >> 3] >> np.uint8(f & 7)) & 1
    if usable == 0:
        return n
    kept = 0
    for i in range(n):
        candidate[kept], slot[kept] = candidate[i], slot[i]
        kept += load_u8(usable + candidate[i]) != 0
    return kept


@jit
def _find_first(
    at: int, n: int, codes: I64, head: I32, after: I32, bits: int, candidate: I64, slot: I64
) -> None:
    """Turn each slot into the first row waiting for its candidate's code, or NONE."""
    for i in range(n):
        prefetch(head.ctypes.data + 4 * slot[i])
    for i in range(n):
        first = np.int64(head[slot[i]])
        if first != NONE:
            prefetch(codes.ctypes.data + 8 * first)
            prefetch(after.ctypes.data + 4 * first)
    for i in range(n):
        slot[i] = head[_find(load_i64(at + 8 * candidate[i]), codes, head, bits)]


@jit
def rows_of(code: int, codes: I64, head: I32, after: I32, bits: int, out: I32) -> int:
    """The rows waiting for a code, in the order they came; returns how many."""
    n, waiting = 0, head[_find(code, codes, head, bits)]
    while waiting != NONE:
        out[n] = waiting
        n += 1
        waiting = after[waiting]
    return n
