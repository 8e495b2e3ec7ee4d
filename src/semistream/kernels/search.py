"""Sort waiting codes and find them in sorted pages."""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, Mask
from .base import jit, load_i64, prefetch

AHEAD = 16
SIGN = np.uint64(1) << np.uint64(63)


@jit
def _digit_counts(codes: I64) -> I64:
    counts = np.zeros((8, 256), dtype=np.int64)
    for i in range(len(codes)):
        x = np.uint64(codes[i]) ^ SIGN
        for d in range(8):
            counts[d, (x >> np.uint64(8 * d)) & np.uint64(255)] += 1
    return counts


@jit
def sort_codes(codes: I64, order: I32, spare: I64, spare_order: I32) -> bool:
    """Sort `codes` in place (signed order) and write the permutation to `order`: radix sort by
    bytes, skipping bytes that are the same everywhere. Returns True if the result is in the
    spare arrays instead."""
    n = len(codes)
    counts = _digit_counts(codes)
    for i in range(n):
        order[i] = i
    swapped = False
    for d in range(8):
        top = 0
        for v in range(256):
            top = max(top, counts[d, v])
        if top == n:
            continue
        total = 0
        for v in range(256):
            count = counts[d, v]
            counts[d, v] = total
            total += count
        shift = np.uint64(8 * d)
        for i in range(n):
            v = ((np.uint64(codes[i]) ^ SIGN) >> shift) & np.uint64(255)
            at = counts[d, v]
            counts[d, v] = at + 1
            spare[at] = codes[i]
            spare_order[at] = order[i]
        codes, spare = spare, codes
        order, spare_order = spare_order, order
        swapped = not swapped
    return swapped


@jit
def page_ranges(codes: I64, first: I64, last: I64, low: I32, high: I32) -> None:
    """For sorted codes: the pages [low, high) that can hold each one. Merge with galloping, since
    neighbours in `codes` are neighbours in the index."""
    pages = len(first)
    p = 0
    for i in range(len(codes)):
        code = codes[i]
        if i > 0 and code == codes[i - 1]:
            low[i], high[i] = low[i - 1], high[i - 1]
            continue
        step = 1
        while p + step < pages and last[p + step] < code:
            p += step
            step <<= 1
        while step > 0:
            if p + step <= pages and p + step - 1 < pages and last[p + step - 1] < code:
                p += step
            step >>= 1
        q = p
        while q < pages and first[q] <= code:
            q += 1
        low[i], high[i] = p, q


@jit
def _lower_bound(address: int, low: int, high: int, code: int) -> int:
    while low < high:
        middle = (low + high) >> 1
        if load_i64(address + 8 * middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _guess(code: int, first: int, last: int, rows: int) -> int:
    """Where a code would be if a page's codes were evenly spread: for hashes and dense keys they
    nearly are, and a page is not touched before the guess."""
    span = np.float64(last) - np.float64(first)
    if rows <= 1 or span <= 0 or code <= first:
        return 0
    share = (np.float64(code) - np.float64(first)) / span
    return min(rows - 1, np.int64(share * (rows - 1)))


@jit
def _search(address: int, rows: int, guess: int, code: int) -> int:
    """Lower bound of `code` in a sorted page, galloping away from the guess."""
    step = 1
    if guess < rows and load_i64(address + 8 * guess) < code:
        low = guess + 1
        while low + step < rows and load_i64(address + 8 * (low + step)) < code:
            low += step
            step <<= 1
        return _lower_bound(address, low, min(low + step + 1, rows), code)
    high = guess
    while high - step >= 0 and load_i64(address + 8 * (high - step)) >= code:
        high -= step
        step <<= 1
    return _lower_bound(address, max(0, high - step), high, code)


@jit
def match_sorted(
    codes: I64,
    low: I32,
    high: I32,
    first: I64,
    last: I64,
    address: I64,
    rows: I64,
    start: I64,
    count: I32,
) -> None:
    """Find each of the sorted `codes` in sorted pages [low, high); `address` and `rows` give the
    code column of every page. Writes the first match's location (-1: none) and the number of
    matching rows, which may run on over several pages."""
    for i in range(len(codes)):
        code = codes[i]
        if i > 0 and code == codes[i - 1] and low[i] == low[i - 1]:
            start[i], count[i] = start[i - 1], count[i - 1]
            continue
        start[i], count[i] = -1, 0
        p = np.int64(low[i])
        if p >= high[i]:
            continue
        ahead = min(i + AHEAD, len(codes) - 1)
        if low[ahead] < high[ahead]:
            q = np.int64(low[ahead])
            prefetch(address[q] + 8 * _guess(codes[ahead], first[q], last[q], rows[q]))
        page = p
        row = _search(address[page], rows[page], _guess(code, first[p], last[p], rows[p]), code)
        p, r, found = page, row, 0
        while p < high[i]:
            while r < rows[p] and load_i64(address[p] + 8 * r) == code:
                r += 1
                found += 1
            if r < rows[p]:
                break
            p, r = p + 1, 0
        if found:
            if row == rows[page]:
                page, row = _skip_empty(page + 1, rows), 0
            start[i], count[i] = (page << 32) | row, found


@jit
def _skip_empty(page: int, rows: I64) -> int:
    while rows[page] == 0:
        page += 1
    return page


@jit
def match_each(
    codes: I64, low: I32, high: I32, address: I64, rows: I64, start: I64, count: I32
) -> None:
    """As `match_sorted`, for codes in any order: one binary search per row."""
    for i in range(len(codes)):
        start[i], count[i] = -1, 0
        p = np.int64(low[i])
        if p >= high[i]:
            continue
        r = _lower_bound(address[p], 0, rows[p], codes[i])
        page, row, found = p, r, 0
        while p < high[i]:
            while r < rows[p] and load_i64(address[p] + 8 * r) == codes[i]:
                r += 1
                found += 1
            if r < rows[p]:
                break
            p, r = p + 1, 0
        if found:
            if row == rows[page]:
                page, row = _skip_empty(page + 1, rows), 0
            start[i], count[i] = (page << 32) | row, found


@jit
def page_of_each(codes: I64, first: I64, last: I64, low: I32, high: I32) -> None:
    """As `page_ranges`, for codes in any order."""
    for i in range(len(codes)):
        a, b = 0, len(last)
        while a < b:
            middle = (a + b) >> 1
            if last[middle] < codes[i]:
                a = middle + 1
            else:
                b = middle
        low[i] = a
        while a < len(first) and first[a] <= codes[i]:
            a += 1
        high[i] = a


@jit
def expand(
    start: I64, count: I32, rows: I64, row: int, skip: int, who: I32, loc: I64
) -> tuple[int, int, int]:
    """One entry per (waiting row, matching master row): who[k] is the waiting row, loc[k] the
    master row. `rows` tells where a run of equal keys goes on to the next page. Begins at match
    `skip` of waiting row `row` and stops when `who` is full; returns (entries, row, skip) to go on
    from."""
    k = 0
    while row < len(start):
        if count[row] > skip:
            p, r = start[row] >> 32, (start[row] & 0xFFFFFFFF) + skip
            while r >= rows[p]:
                r -= rows[p]
                p += 1
            while skip < count[row]:
                if k == len(who):
                    return k, row, skip
                while r == rows[p]:
                    p, r = p + 1, 0
                who[k] = row
                loc[k] = (p << 32) | r
                k, r, skip = k + 1, r + 1, skip + 1
        row, skip = row + 1, 0
    return k, row, 0


@jit
def mark_pages(low: I32, high: I32, wanted: Mask) -> int:
    """wanted[p] = True for every page some row needs; returns how many."""
    for i in range(len(low)):
        for p in range(low[i], high[i]):
            wanted[p] = True
    total = 0
    for p in range(len(wanted)):
        total += wanted[p]
    return total


@jit
def code_runs(codes: I64, heads: I32) -> int:
    """Sorted codes: the index where each distinct code begins; returns how many there are."""
    n = 0
    for i in range(len(codes)):
        if i == 0 or codes[i] != codes[i - 1]:
            heads[n] = i
            n += 1
    return n
