"""Which run of a store owns a code: the newest one that claims it.

Claims are sorted lists of codes, one per run. A filter over all of them lets most codes pass at the
cost of one cache line: one word, two bits.
"""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, U64, Mask
from .base import jit, load_i32, load_i64, prefetch
from .search import _guess, _search
from .table import MIX

GONE = -1  # a newer run says that the code has no rows
AHEAD = 16


@jit
def _mixed(code: int) -> int:
    x = np.uint64(code)
    return (x ^ (x >> np.uint64(32))) * MIX


@jit
def _bits_of(mixed: int) -> int:
    """Two bits of a word. The low bits of a product know only the low bits of the code, which may
    all be zero, so higher ones are mixed in."""
    mixed ^= mixed >> np.uint64(32)
    low = np.uint64(1) << (mixed & np.uint64(63))
    return low | (np.uint64(1) << ((mixed >> np.uint64(6)) & np.uint64(63)))


@jit
def add_to_filter(address: int, count: int, words: U64, bits: int) -> None:
    for i in range(count):
        mixed = _mixed(load_i64(address + 8 * i))
        words[mixed >> np.uint64(64 - bits)] |= _bits_of(mixed)


@jit
def find_owners(
    codes: I64, words: U64, bits: int, address: I64, rows: I64, count: I64, owner: I32
) -> None:
    """owner[i]: the run that has all rows of codes[i] (0: the base), or GONE. Run r + 1 claims
    `count[r]` codes at `address[r]`, each with so many rows at `rows[r]`."""
    shift = np.uint64(64 - bits)
    base = words.ctypes.data
    for i in range(len(codes)):
        ahead = _mixed(codes[min(i + AHEAD, len(codes) - 1)])
        prefetch(base + 8 * np.int64(ahead >> shift))
        owner[i] = 0
        mixed = _mixed(codes[i])
        wanted = _bits_of(mixed)
        if words[mixed >> shift] & wanted != wanted:
            continue
        r = len(count) - 1
        while r >= 0:
            at = _place(codes[i], address[r], count[r])
            if at >= 0:
                owner[i] = r + 1 if load_i32(rows[r] + 4 * at) > 0 else GONE
                break
            r -= 1


@jit
def _place(code: int, address: int, count: int) -> int:
    """Where the code is in a sorted list; -1: nowhere."""
    if count == 0:
        return -1
    first, last = load_i64(address), load_i64(address + 8 * (count - 1))
    if code < first or code > last:
        return -1
    at = _search(address, count, _guess(code, first, last, count), code)
    if at < count and load_i64(address + 8 * at) == code:
        return at
    return -1


@jit
def is_stale(
    address: I64, rows: I64, run: I32, words: U64, bits: int, claimed: I64, claimed_rows: I64,
    claims: I64, stale: Mask,
) -> int:  # fmt: skip
    """stale[k]: another run than its page's own owns the code of row k, counting over all pages.
    run[p] < 0: a page of NULL keys, which nobody claims. Returns how many."""
    k = found = 0
    shift = np.uint64(64 - bits)
    for p in range(len(rows)):
        for i in range(rows[p]):
            stale[k] = False
            if run[p] >= 0:
                code = load_i64(address[p] + 8 * i)
                mixed = _mixed(code)
                wanted = _bits_of(mixed)
                if words[mixed >> shift] & wanted == wanted:
                    r = len(claims) - 1
                    while r >= run[p]:  # claims[r] are those of run r + 1
                        if _place(code, claimed[r], claims[r]) >= 0:
                            stale[k] = True
                            found += 1
                            break
                        r -= 1
            k += 1
    return found
