"""The disk phase of inlj and cinlj: one index lookup per row, in arrival order, answered at once.

Rows are not sorted and reads are not shared, as in the textbook: only consecutive rows that ask for
the same page share its read. That is the bound every other disk phase is measured against. As in
the MESHJOIN paper it may have a pool of pages (Params.page_pool, a share of the budget), the least
recently used going first; a mapped master has the system's page cache for that.

cinlj (CACHEJOIN paper, section 3.3) puts the front stage before it. Its temporary buffer, a ring of
keys that shows which came twice, is what the front stage remembers of keys that are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from ..front import Groups
from ..kernels import search
from ..kernels.arrays import I32, I64
from ..master import Pages
from .base import Parts
from .sweep import Sweep

SAMPLE = 4096


class Lookup(Sweep, word="lookup"):
    borrows = goes_round = False
    answers_at_once = True
    fetch_word, pool_knob = "fetch_now", "page_pool"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._pool: OrderedDict[int, Pages] = OrderedDict()  # by page, least recently used first
        self._pool_bytes = 0

    def room(self) -> int:
        return self.parts.backlog.free_rows

    def step(self) -> Iterator[pa.RecordBatch]:
        slots = self.parts.backlog.oldest_first()
        codes = self.parts.backlog.codes[slots]
        low, high = self.parts.master.seek(codes, in_order=False)
        if self._view is not None:
            yield from self._each_mapped(self._view, slots, low, high)
            return
        cuts = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
        starts = np.concatenate([[0], cuts]) if len(slots) else cuts
        for start, run in zip(starts, np.split(slots, cuts), strict=False):
            yield from self._run(run, int(low[start]), int(high[start]))

    def _each_mapped(
        self, view: Pages, slots: I32, low: I32, high: I32
    ) -> Iterator[pa.RecordBatch]:
        backlog = self.parts.backlog
        wanted = np.zeros(len(view.rows), np.bool_)
        search.mark_pages(low, high, wanted)
        self.parts.master.touch(wanted)
        codes = backlog.codes[slots]
        start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        search.match_each(codes, low, high, view.codes, view.rows, start, count)
        self._tell(codes, start, count, view)
        matched = backlog.matched[slots]
        yield from self.parts.output.answer(
            backlog.chunks,
            backlog.loc[slots],
            view.columns,
            start,
            count,
            matched,
        )
        backlog.remove(slots)

    def _tell(self, codes: I64, start: I64, count: I32, view: Pages) -> None:
        """Offer the front stage what was found; asleep, it only watches a sample for repetition."""
        front = self.parts.front
        if front.learns:
            some = slice(SAMPLE if front.asleep else None)
            distinct, at, uses = np.unique(codes[some], return_index=True, return_counts=True)
            groups = Groups(distinct, start[at], count[at], uses.astype(np.int32))
            front.offer(groups, view.columns)

    def _run(self, slots: I32, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Consecutive rows that ask for the same pages."""
        slots, codes = self._sorted(slots)
        if not self.parts.pool_bytes or high == low or self.parts.backlog.resume[slots].any():
            yield from self._answer(slots, codes)
            return
        here = np.zeros(len(slots), np.int32)
        ranges = (here + np.int32(low), here + np.int32(low), here + np.int32(high))
        for page in range(low, high):
            pages, one = self._pooled(page), here + np.int32(1)
            yield from self._block(pages, page, page + 1, slots, codes, here, one, ranges=ranges)
            del pages  # the pool may have to let it go before the next one is read

    def _pooled(self, page: int) -> Pages:
        if page in self._pool:
            self._pool.move_to_end(page)
            return self._pool[page]
        master, number = self.parts.master, np.array([page], np.int64)
        size = int(master.page_bytes(number)[0]) + 1024
        self.trim(self.parts.pool_bytes - size)
        pages = master.read(number, self.columns)
        self.parts.ledger.set("pool", self._pool_bytes + pages.allocated)
        self._pool[page] = pages
        self._pool_bytes += pages.allocated
        return pages

    def trim(self, pool_bytes: int) -> None:
        while self._pool and self._pool_bytes > pool_bytes:
            _, old = self._pool.popitem(last=False)
            self._pool_bytes -= old.allocated
        self.parts.ledger.set("pool", self._pool_bytes)

    def take_over(self, old: Self) -> None:
        self._pool, self._pool_bytes = old._pool, old._pool_bytes
