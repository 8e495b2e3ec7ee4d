"""What database servers send, to columns.

PostgreSQL: a binary array per column; every element is a length (four bytes, big-endian; -1: NULL)
and its bytes. MySQL and MariaDB: rows of the binary protocol; a bitmap of NULLs, then every value
in its place: of fixed width, behind a length of one to nine bytes, or (times) behind one byte.
"""

from __future__ import annotations

import numpy as np

from .arrays import I64, Mask
from .base import copy_bytes, jit, load_i32, load_u8, load_u16, load_u32, load_u64, store_u8

WIDTH_LENENC, WIDTH_TIME = 0, -1
DAY = 86_400_000_000


@jit
def _length(at: int) -> int:
    """Four bytes, big-endian, signed."""
    value = np.int64(0)
    for i in range(4):
        value = (value << 8) | load_u8(at + i)
    return value - ((value >> 31) << 32)


@jit
def pg_fixed(source: int, n: int, width: int, target: int, valid: Mask) -> int:
    """Elements of a fixed width, brought to our byte order; 0 under a NULL. Returns the NULLs, or
    -1 where an element has another width."""
    nulls = 0
    for i in range(n):
        length = _length(source)
        source += 4
        valid[i] = length >= 0
        if length < 0:
            nulls += 1
            for b in range(width):
                store_u8(target + b, np.uint8(0))
        elif length != width:
            return -1
        else:
            for b in range(width):
                store_u8(target + b, load_u8(source + width - 1 - b))
            source += width
        target += width
    return nulls


@jit
def pg_var(source: int, n: int, ends: I64, target: int, valid: Mask) -> int:
    """Elements of any width, one after the other. Returns the NULLs."""
    nulls, total = 0, 0
    ends[0] = 0
    for i in range(n):
        length = _length(source)
        source += 4
        valid[i] = length >= 0
        if length < 0:
            nulls += 1
        else:
            copy_bytes(target + total, source, length)
            source += length
            total += length
        ends[i + 1] = total
    return nulls


@jit
def pg_pack(data: int, ends: I64, target: int) -> None:
    """The reverse: values that lie one after the other (value i ends at ends[i + 1]) as elements of
    an array, none of them NULL."""
    for i in range(len(ends) - 1):
        length = ends[i + 1] - ends[i]
        for b in range(4):
            store_u8(target + b, np.uint8((length >> (24 - 8 * b)) & 255))
        copy_bytes(target + 4, data + ends[i], length)
        target += 4 + length


@jit
def mysql_packets(source: int, size: int, at: int, starts: I64, n: int) -> tuple[int, int, int]:
    """Walk over whole packets from `at` on, noting where each row begins, `n` of which are noted
    already. Returns (rows, where it stopped, why): 0 more bytes are needed, 1 the end, 2 an error
    packet, 3 a packet that goes on in the next, 4 no more room in `starts`."""
    while at + 5 <= size:
        length = np.int64(load_u8(source + at)) | (np.int64(load_u16(source + at + 1)) << 8)
        first = load_u8(source + at + 4)
        if length == 0xFFFFFF:
            return n, at, 3
        if at + 4 + length > size:
            break
        if first == 0xFE and length < 9:
            return n, at, 1
        if first == 0xFF:
            return n, at, 2
        if n == len(starts):
            return n, at, 4
        starts[n] = at + 4
        n += 1
        at += 4 + length
    return n, at, 0


@jit
def mysql_values(source: int, starts: I64, widths: I64, address: I64, length: I64) -> None:
    """Where each value is: address[column, row], length[column, row]; length -1: NULL."""
    columns = len(widths)
    for r in range(len(starts)):
        nulls = source + starts[r] + 1
        p = nulls + (columns + 9) // 8
        for c in range(columns):
            if (load_u8(nulls + ((c + 2) >> 3)) >> ((c + 2) & 7)) & 1:
                address[c, r], length[c, r] = 0, -1
                continue
            n = widths[c]
            if n == WIDTH_TIME:
                n = np.int64(load_u8(p))
                p += 1
            elif n == WIDTH_LENENC:
                n = np.int64(load_u8(p))
                p += 1
                if n == 0xFC:
                    n = np.int64(load_u16(p))
                    p += 2
                elif n == 0xFD:
                    n = np.int64(load_u16(p)) | (np.int64(load_u8(p + 2)) << 16)
                    p += 3
                elif n == 0xFE:
                    n = np.int64(load_u64(p))
                    p += 8
            address[c, r], length[c, r] = p, n
            p += n


@jit
def fixed_column(address: I64, length: I64, width: int, target: int) -> None:
    """Values of a fixed width side by side; 0 under a NULL."""
    for i in range(len(address)):
        if length[i] < 0:
            for b in range(width):
                store_u8(target + width * i + b, np.uint8(0))
        else:
            copy_bytes(target + width * i, address[i], width)


@jit
def var_column(address: I64, length: I64, ends: I64, target: int) -> None:
    """Values of any width one after the other, as `ends` has them."""
    for i in range(len(address)):
        if length[i] > 0:
            copy_bytes(target + ends[i], address[i], length[i])


@jit
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date in the Gregorian calendar."""
    y = year - (month <= 2)
    era = y // 400
    year_of_era = y - era * 400
    shifted = month - 3 if month > 2 else month + 9
    day_of_year = (153 * shifted + 2) // 5 + day - 1
    return (
        era * 146097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + (day_of_year - 719468)
    )


@jit
def mysql_moments(address: I64, length: I64, out: I64) -> int:
    """Dates and times of day as microseconds since 1970. Returns a row that is no date (a month or
    a day of 0), or -1."""
    for i in range(len(address)):
        out[i] = 0
        n, p = length[i], address[i]
        if n < 0:
            continue
        if n < 4:
            return i
        month, day = np.int64(load_u8(p + 2)), np.int64(load_u8(p + 3))
        if month == 0 or day == 0:
            return i
        value = _days(np.int64(load_u16(p)), month, day) * DAY
        if n >= 7:
            clock = (np.int64(load_u8(p + 4)) * 60 + load_u8(p + 5)) * 60 + load_u8(p + 6)
            value += clock * 1_000_000
        if n >= 11:
            value += np.int64(load_u32(p + 7))
        out[i] = value
    return -1


@jit
def mysql_spans(address: I64, length: I64, out: I64) -> None:
    """TIME values, which may be negative and longer than a day, as microseconds."""
    for i in range(len(address)):
        out[i] = 0
        n, p = length[i], address[i]
        if n < 8:
            continue
        clock = (np.int64(load_u8(p + 5)) * 60 + load_u8(p + 6)) * 60 + load_u8(p + 7)
        value = np.int64(load_i32(p + 1)) * DAY + clock * 1_000_000
        if n >= 12:
            value += np.int64(load_u32(p + 8))
        out[i] = -value if load_u8(p) else value
