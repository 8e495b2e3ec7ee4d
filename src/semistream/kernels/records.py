"""Packed rows: all columns of a row side by side, so that a random row costs two or three cache
lines instead of one or two per column.

    | words: u32 | end of each string: u32 ... | validity bytes | fixed values ... | string bytes |

`words` is the length of the record in 8-byte words; string ends count from the first string byte.
A location is `chunk << 32 | word`.
"""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, U8
from .base import copy_bytes, jit, load_u8, load_u32, prefetch, store_u8, store_u32
from .gather import AHEAD, ROW, move

TILE = 256


@jit
def record_words(head: int, ends: I64, words: I64) -> int:
    """words[i] = where record i begins, in words; ends[v, i] are cumulative string bytes.
    Returns the words of all records."""
    total = 0
    for i in range(len(words)):
        size = head
        for v in range(len(ends)):
            size += ends[v, i + 1] - ends[v, i]
        words[i] = total
        total += (size + 7) >> 3
    return total


@jit
def pack_fixed(words: I64, target: int, source: int, width: int, at: int) -> None:
    """Write a gathered column (contiguous at `source`) into the records at byte `at`."""
    for i in range(len(words)):
        move(target + 8 * words[i] + at, source + i * width, width)


@jit
def pack_bits(words: I64, target: int, source: int, at: int, mask: int) -> None:
    """Set `mask` in the byte `at` of the records whose bit is set."""
    for i in range(len(words)):
        if (load_u8(source + (i >> 3)) >> (i & 7)) & 1:
            here = target + 8 * words[i] + at
            store_u8(here, np.uint8(load_u8(here) | mask))


@jit
def pack_strings(words: I64, total: int, target: int, head: int, address: I64, ends: I64) -> None:
    """Write the record lengths, the string ends and the strings."""
    for i in range(len(words)):
        record = target + 8 * words[i]
        following = words[i + 1] if i + 1 < len(words) else total
        store_u32(record, np.uint32(following - words[i]))
        done = 0
        for v in range(len(ends)):
            length = ends[v, i + 1] - ends[v, i]
            copy_bytes(record + head + done, address[v, i], length)
            done += length
            store_u32(record + 4 + 4 * v, np.uint32(done))


@jit
def unpack_fixed(loc: I64, base: I64, places: I64, widths: I64, targets: I64) -> None:
    """Fixed-width columns of many records. Tile by tile: the first column brings the records into
    the CPU cache, the others find them there."""
    record = np.empty(TILE, np.int64)
    for begin in range(0, len(loc), TILE):
        m = min(TILE, len(loc) - begin)
        for i in range(m):
            at = loc[begin + i]
            record[i] = base[at >> 32] + 8 * (at & ROW)
            prefetch(record[i])
            prefetch(record[i] + 64)
        for q in range(len(places)):
            width, place = widths[q], places[q]
            target = targets[q] + begin * width
            for i in range(m):
                move(target + i * width, record[i] + place, width)


@jit
def unpack_bits(loc: I64, base: I64, place: int, mask: int, out: U8) -> int:
    """Bit `mask` of byte `place` of every record; returns how many are zero."""
    zeros = 0
    for i in range(len(loc)):
        at = loc[i]
        if load_u8(base[at >> 32] + 8 * (at & ROW) + place) & mask:
            out[i >> 3] |= 1 << (i & 7)
        else:
            zeros += 1
    return zeros


@jit
def string_spans(loc: I64, base: I64, v: int, head: int, address: I64, ends: I64) -> None:
    """Where string v of every record is, and the bytes of the first i of them in ends[i]."""
    total, n = 0, len(loc)
    ends[0] = 0
    for i in range(n):
        at = loc[min(i + AHEAD, n - 1)]
        prefetch(base[at >> 32] + 8 * (at & ROW))
        at = loc[i]
        record = base[at >> 32] + 8 * (at & ROW)
        start = np.int64(load_u32(record + 4 * v)) if v > 0 else 0
        end = np.int64(load_u32(record + 4 + 4 * v))
        address[i] = record + head + start
        total += end - start
        ends[i + 1] = total


@jit
def value_spans(loc: I64, base: I64, place: int, width: int, address: I64, ends: I64) -> None:
    ends[0] = 0
    for i in range(len(loc)):
        address[i] = base[loc[i] >> 32] + 8 * (loc[i] & ROW) + place
        ends[i + 1] = ends[i] + width


@jit
def expand_records(
    start: I64, count: I32, base: I64, row: int, skip: int, who: I32, loc: I64
) -> tuple[int, int, int]:
    """As `search.expand`: the records of a group follow each other."""
    k = 0
    while row < len(start):
        if count[row] > skip:
            at = start[row]
            for _ in range(skip):
                at += load_u32(base[at >> 32] + 8 * (at & ROW))
            while skip < count[row]:
                if k == len(who):
                    return k, row, skip
                who[k] = row
                loc[k] = at
                at += load_u32(base[at >> 32] + 8 * (at & ROW))
                k, skip = k + 1, skip + 1
        row, skip = row + 1, 0
    return k, row, 0
