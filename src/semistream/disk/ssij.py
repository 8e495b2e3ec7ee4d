"""ssij's disk phase: rows wait under their page; the pages that most rows wait for are read first,
and pages that serve many rows stay in a cache. (The papers describe it without parameters; the
numbers here are ours.)

    pending    new rows gather until there are PAGES_PENDING of them, or a step is made
    online     sort them, find their pages; a cached page answers its rows now, others wait
    join       when PAGES_FILL of the buffer is full: pages whose rows wait too long first, then
               those with the most waiting rows, until half of the buffer is free; read in file
               order, answer
    cache      a page just read takes room, or the place of a page that served fewer rows; what a
               page served counts half after each join phase

A key with rows on several pages waits until all of them are read. The sizes of cache and buffer
move while it runs only where `adapt` asks for it. On a mapped master the cache is a set of pages
and holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from ..budget import PAGES_FILL, PAGES_OLD, PAGES_PENDING
from ..kernels.arrays import I32, I64, Mask
from ..master import Pages
from .base import Parts
from .sweep import Sweep


class PagesWanted(Sweep, word="pages"):
    borrows = goes_round = False
    ranges = pools_mapped = True
    fetch_word, pool_knob = "", "front_share"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        pages = len(parts.master.first)
        self._cached = np.zeros(pages, np.bool_)
        self._utility = np.zeros(pages, np.float64)
        self._held: dict[int, Pages] = {}
        self._cache_bytes = 0
        self._pending: list[I32] = []

    def room(self) -> int:
        backlog = self.parts.backlog
        return max(0, int(PAGES_FILL * backlog.capacity) + 1 - len(backlog))

    def admit(self, rows: pa.RecordBatch, codes: I64) -> I32:
        slots = super().admit(rows, codes)
        self._pending.append(slots)
        return slots

    def reset(self) -> None:
        super().reset()
        self._pending = []

    # --- online --------------------------------------------------------------------------------

    def online(self) -> Iterator[pa.RecordBatch]:
        """Answer new rows whose page is cached."""
        if sum(map(len, self._pending)) < PAGES_PENDING or not self._cached.any():
            return
        slots, codes = self._sorted(np.concatenate(self._pending))
        self._pending = []
        low, high = self.parts.master.seek(codes)
        here = high - low == 1
        here[here] = self._cached[low[here]]
        served = np.bincount(low[here], minlength=len(self._utility))
        self._utility += served
        if self._view is not None:
            yield from self._answer(slots[here], codes[here])
            return
        for page in np.flatnonzero(served):
            some = here & (low == page)
            yield from self._one(self._held[int(page)], int(page), slots[some], codes[some])

    def _one(self, pages: Pages, page: int, slots: I32, codes: I64) -> Iterator[pa.RecordBatch]:
        """Rows whose key is on this page alone, or nowhere."""
        zero = np.zeros(len(slots), np.int32)
        at = zero + np.int32(page)
        one = zero + np.int32(1)
        yield from self._block(
            pages, page, page + 1, slots, codes, zero, one, ranges=(at, at, at + one)
        )

    # --- join phase ----------------------------------------------------------------------------

    def step(self) -> Iterator[pa.RecordBatch]:
        backlog = self.parts.backlog
        if len(backlog) == 0:
            return
        self._pending = []
        slots, codes = self._sorted(backlog.slots())
        low, high = self.parts.master.seek(codes)
        if len(self.parts.master.runs) > 2:  # in file order: one run after another
            order = np.argsort(low, kind="stable")
            slots, codes, low, high = slots[order], codes[order], low[order], high[order]
        single = (high - low == 1) & (backlog.resume[slots] == 0)
        chosen = self._pages_to_read(slots, low, single)
        mine = np.zeros(len(slots), np.bool_)
        mine[single] = chosen[low[single]]
        if self._view is not None:
            yield from self._answer(slots[mine], codes[mine])
        else:
            yield from self._read(slots[mine], codes[mine], low[mine])
        self._remember(low[mine])
        rest = ~single & self._due(slots, low, high, chosen)
        if rest.any():
            yield from self._answer(slots[rest], codes[rest])
        self._utility /= 2

    def _pages_to_read(self, slots: I32, low: I32, single: Mask) -> Mask:
        """The pages to read now: over-age ones, then by waiting rows, until half of them go."""
        backlog = self.parts.backlog
        waiting = np.bincount(low[single], minlength=len(self._utility))
        oldest = np.full(len(waiting), np.iinfo(np.int64).max)
        np.minimum.at(oldest, low[single], backlog.ticket[slots[single]])
        late = oldest < backlog.arrivals - PAGES_OLD * backlog.capacity
        pages = np.flatnonzero(waiting)
        order = pages[np.lexsort((-waiting[pages], ~late[pages]))]
        freed = np.cumsum(waiting[order])
        most = int(np.searchsorted(freed, -(-len(slots) // 2), "left")) + 1
        chosen = np.zeros(len(waiting), np.bool_)
        chosen[order[: max(most, int(late[pages].sum()))]] = True
        return chosen

    def _due(self, slots: I32, low: I32, high: I32, chosen: Mask) -> Mask:
        """Rows under no page or under several: those nowhere go now, the others with a page of
        theirs."""
        begins = np.zeros(len(low), np.bool_)
        some = low < high
        begins[some] = chosen[low[some]] | chosen[high[some] - 1]
        backlog = self.parts.backlog
        late = backlog.ticket[slots] < backlog.arrivals - backlog.capacity
        return ~some | begins | late | (not chosen.any())

    def _read(self, slots: I32, codes: I64, low: I32) -> Iterator[pa.RecordBatch]:
        """Page by page in file order; slots are in code order, and so are their pages."""
        cuts = np.flatnonzero(np.diff(low)) + 1
        heads = np.concatenate([[0], cuts]) if len(slots) else cuts
        master, ledger = self.parts.master, self.parts.ledger
        for start, some, keys in zip(
            heads, np.split(slots, cuts), np.split(codes, cuts), strict=False
        ):
            page = int(low[start])
            if page in self._held:
                yield from self._one(self._held[page], page, some, keys)
                continue
            number = np.array([page], np.int64)
            ledger.set("read", int(master.page_bytes(number)[0]))
            pages = master.read(number, self.columns)
            ledger.set("read", pages.allocated)
            yield from self._one(pages, page, some, keys)
            self._keep(page, pages, len(some))
            ledger.set("read", 0)

    def _keep(self, page: int, pages: Pages, served: int) -> None:
        """Into the cache, if it served more rows than the pages it would push out."""
        limit, size = self.parts.pool_bytes, pages.allocated
        while self._cache_bytes + size > limit:
            if not self._held:
                return
            worst = min(self._held, key=lambda p: self._utility[p])
            if self._utility[worst] >= served:
                return
            self._push_out(worst)
        self.parts.ledger.set("pool", self._cache_bytes + size)
        self._held[page] = pages
        self._cached[page] = True
        self._cache_bytes += size

    def trim(self, pool_bytes: int) -> None:
        while self._held and self._cache_bytes > pool_bytes:
            self._push_out(min(self._held, key=lambda p: self._utility[p]))
        self.parts.ledger.set("pool", self._cache_bytes)

    def take_over(self, old: Self) -> None:
        self._held, self._cache_bytes = old._held, old._cache_bytes
        self._cached, self._utility = old._cached, old._utility

    def _push_out(self, page: int) -> None:
        self._cache_bytes -= self._held.pop(page).allocated
        self._cached[page] = False

    def _remember(self, low: I32) -> None:
        """What the pages just read served; on a mapped master also which of them are cached."""
        served = np.bincount(low, minlength=len(self._utility))
        read = served > 0
        self._utility[read] = np.maximum(self._utility[read], served[read])
        if self._view is None:
            return
        offered = np.flatnonzero(read | self._cached)
        size = self.parts.master.page_bytes(offered.astype(np.int64))
        order = np.argsort(-self._utility[offered], kind="stable")
        fits = np.cumsum(size[order]) <= self.parts.pool_bytes
        self._cached[:] = False
        self._cached[offered[order[fits]]] = True
