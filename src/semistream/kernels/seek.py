"""HYBRIDJOIN's loop for a master in memory or mapped: many iterations in one call, each with its
own index lookup and its own block of pages, so that the interpreter is not what is measured.
"""

from __future__ import annotations

import numpy as np

from .arrays import I32, I64, U8, Mask
from .base import jit, load_i64, prefetch
from .multimap import NONE, TILE, _find, _find_first, _pass_filter


@jit
def pick(
    queue: I32, tickets: I64, ticket: I64, begin: int, end: int, position: float, turn: int
) -> int:
    """The entry of the queue to look up next: the one that waits at `position` (1: the oldest, 0:
    the newest), or the nearest older one, or the nearest newer one. Every eighth turn takes the
    oldest, so that none waits for ever. -1: nobody waits."""
    if begin >= end:
        return -1
    at = begin
    if position < 1.0 and turn % 8 != 0:
        at = begin + np.int64((1.0 - position) * (end - 1 - begin))
    i = at
    while i >= begin:
        if ticket[queue[i]] == tickets[i]:
            return i
        i -= 1
    i = at + 1
    while i < end:
        if ticket[queue[i]] == tickets[i]:
            return i
        i += 1
    return -1


@jit
def run_range(owner: I32, i: int, runs: I64) -> tuple[int, int]:
    """The pages of the run that owns the code of waiting row i (none: no run has rows of it);
    `owner` is empty where there is one run."""
    if len(owner) == 0:
        return 0, runs[1]
    if owner[i] < 0:
        return 0, 0
    return runs[owner[i]], runs[owner[i] + 1]


@jit
def page_range(code: int, first: I64, last: I64, begin: int, end: int) -> tuple[int, int]:
    """Of pages [begin, end), those [low, high) that can hold a code."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if last[middle] < code:
            low = middle + 1
        else:
            high = middle
    until = low
    while until < end and first[until] <= code:
        until += 1
    return low, until


@jit
def block_of(low: int, high: int, begin: int, end: int, block: int, pinned: int) -> tuple[int, int]:
    """The aligned block around [low, high) among a run's pages [begin, end); pinned pages are
    outside the blocks."""
    if low < pinned:
        return low, high
    origin = max(begin, pinned)
    start = origin + (low - origin) // block * block
    return start, max(high, min(start + block, end))


@jit
def mark_blocks(
    codes: I64, owner: I32, runs: I64, first: I64, last: I64, block: int, pinned: int, wanted: Mask
) -> None:
    """wanted[p] = True for every page that one of the codes will have read."""
    for i in range(len(codes)):
        begin, end = run_range(owner, i, runs)
        low, high = page_range(codes[i], first, last, begin, end)
        if low < high:
            low, high = block_of(low, high, begin, end, block, pinned)
            wanted[low:high] = True


@jit
def seek_blocks(
    queue: I32, tickets: I64, begin: int, end: int, position: float, turn: int, most: int,
    codes: I64, ticket: I64, head: I32, after: I32, bits: int, filter_: U8,
    owner: I32, runs: I64, first: I64, last: I64, address: I64, rows: I64, checked: Mask,
    block: int, pinned: int, who: I32, loc: I64, gone: I32, blocks: I64,
) -> tuple[int, int, int, int, int, int]:  # fmt: skip
    """Look up one waiting row after another, until `most` rows are answered, an array is full, or a
    page must be checked first. Answered rows lose their ticket.

    Returns (pairs in who and loc, rows in `gone`, blocks read, where the queue begins now, turn,
    the entry of the queue that stopped it or -1)."""
    k = n = b = 0
    candidate, slot = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    while n < most and b < len(blocks):
        while begin < end and ticket[queue[begin]] != tickets[begin]:
            begin += 1
        i = pick(queue, tickets, ticket, begin, end, position, turn)
        if i < 0:
            break
        code = codes[queue[i]]
        start, stop = run_range(owner, queue[i], runs)
        low, high = page_range(code, first, last, start, stop)
        if low < high:
            low, high = block_of(low, high, start, stop, block, pinned)
            for p in range(low, high):
                if not checked[p]:
                    return k, n, b, begin, turn, i
            blocks[b, 0], blocks[b, 1] = low, high
            fits, k, n = _probe_block(
                low, high, start, stop, codes, ticket, head, after, bits, filter_, owner, runs,
                first, last, address, rows, candidate, slot, who, loc, k, gone, n,
            )  # fmt: skip
            if not fits:
                return k, n, b, begin, turn, i
            b += 1
        n = _let_go(code, codes, ticket, head, after, bits, gone, n)  # no row of the master's
        turn += 1
    return k, n, b, begin, turn, -1


@jit
def _let_go(
    code: int, codes: I64, ticket: I64, head: I32, after: I32, bits: int, gone: I32, n: int
) -> int:
    """All rows of a code that still wait are answered now."""
    waiting = head[_find(code, codes, head, bits)]
    while waiting != NONE:
        if ticket[waiting] >= 0:
            ticket[waiting] = -1
            gone[n] = waiting
            n += 1
        waiting = after[waiting]
    return n


@jit
def _take_back(ticket: I64, gone: I32, begin: int, end: int) -> None:
    """These rows were marked as answered, and are not."""
    for g in range(begin, end):
        ticket[gone[g]] = -2 - ticket[gone[g]]


@jit
def _probe_block(
    low: int, high: int, start: int, stop: int, codes: I64, ticket: I64, head: I32, after: I32,
    bits: int, filter_: U8, owner: I32, runs: I64, first: I64, last: I64, address: I64, rows: I64,
    candidate: I64, slot: I64, who: I32, loc: I64, k: int, gone: I32, n: int,
) -> tuple[bool, int, int]:  # fmt: skip
    """The rows of pages [low, high), of the run [start, stop), against the waiting rows that the
    run owns; groups that go on beyond the block are left for another time. If the pairs do not fit
    nothing has happened."""
    k_before, n_before = k, n
    left = low > start and last[low - 1] == first[low]
    right = high < stop and first[high] == last[high - 1]
    for page in range(low, high):
        at = address[page]
        for line in range(0, 8 * rows[page], 512):
            prefetch(at + line)
        for row in range(0, rows[page], TILE):
            end = min(row + TILE, rows[page])
            m = _pass_filter(at, row, end, 0, bits, filter_, candidate, slot)
            _find_first(at, m, codes, head, after, bits, candidate, slot)
            for c in range(m):
                code = load_i64(at + 8 * candidate[c])
                if (left and code == first[low]) or (right and code == last[high - 1]):
                    continue
                waiting = slot[c]
                if len(owner) and run_range(owner, waiting, runs)[1] != stop:
                    continue  # a newer run has the rows of this code
                while waiting != NONE:
                    if k == len(who):
                        _take_back(ticket, gone, n_before, n)
                        return False, k_before, n_before
                    if ticket[waiting] != -1:
                        if ticket[waiting] >= 0:
                            ticket[waiting] = -2 - ticket[waiting]
                            gone[n] = waiting
                            n += 1
                        who[k] = waiting
                        loc[k] = (np.int64(page) << 32) | candidate[c]
                        k += 1
                    waiting = after[waiting]
    for g in range(n_before, n):
        ticket[gone[g]] = -1
    return True, k, n
