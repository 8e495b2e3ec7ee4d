"""meshjoin's disk phase: an endless cyclic scan of the master against a window of stream rows.

The paper's loop (Polyzotis et al., figure 4), in our words:

    read the next b pages of the master            cursor moves on, wraps at the end
    if the window is full, drop the oldest w rows  they have met every page
    put w new rows into the window (hash H, queue Q)
    join the pages with the window

Corrected: a row leaves after it has met as many pages as the master has, counted since it came in,
never because it is among the oldest w. So the number of pages need not be a multiple of b, b may
change in mid-cycle, and short streams, short reads and an empty master are no special cases. Rows
leave by identity: newer rows of the same key stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..kernels import multimap
from ..master import Pages
from .base import DiskPhase, Parts

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


class Scan(DiskPhase):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        info = parts.master.describe()
        self._pages = info.pages
        self._cursor = 0  # next page
        self._seen = 0  # pages read since the beginning
        self._queue: deque[tuple[I32, int]] = deque()  # (slots, pages seen at admission)
        per_cycle = max(1, -(-info.bytes // max(1, parts.read_bytes)))
        self._per_step = -(-parts.backlog.capacity // per_cycle)
        self._admitted = 0
        self._who: I32 = np.empty(parts.backlog.capacity, np.int32)
        self._loc: I64 = np.empty(parts.backlog.capacity, np.int64)

    def room(self) -> int:
        """Rows come in evenly over a cycle, so that slots come free evenly ever after."""
        return min(self.parts.backlog.free_rows, self._per_step - self._admitted)

    def admit(self, rows: pa.RecordBatch, codes: I64) -> I32:
        slots = super().admit(rows, codes)
        self._queue.append((slots, self._seen))
        self._admitted += len(slots)
        return slots

    def step(self) -> Iterator[pa.RecordBatch]:
        """Read one buffer of the master, join it with the window, let finished rows go."""
        self._admitted = 0
        if len(self.parts.backlog) and self._pages:
            ledger = self.parts.ledger
            pages = self.parts.master.scan(self._cursor, self.parts.read_bytes, self.columns)
            ledger.set("read", pages.allocated)
            self._cursor = (self._cursor + len(pages.rows)) % self._pages
            self._seen += len(pages.rows)
            yield from self._probe(pages)
            del pages
            ledger.set("read", 0)
        yield from self._expire()

    def _probe(self, pages: Pages) -> Iterator[pa.RecordBatch]:
        """The pages against the window."""
        backlog, links = self.parts.backlog, self.parts.backlog.links
        assert links is not None
        masks = [None if v is None else v.view(np.uint8) for v in pages.valid]
        valid = np.array([0 if m is None else m.ctypes.data for m in masks], np.int64)
        page = row = 0
        while page < len(pages.rows):
            k, page, row = multimap.probe_pages(
                pages.codes,
                pages.rows,
                valid,
                page,
                row,
                backlog.codes,
                links.head,
                links.after,
                links.bits,
                links.filter,
                self._who,
                self._loc,
            )
            if k:
                slots = self._who[:k]
                yield from self.parts.output.pairs(
                    backlog.chunks,
                    backlog.loc[slots],
                    slots,
                    pages.columns,
                    self._loc[:k],
                    backlog.matched,
                )

    def _expire(self) -> Iterator[pa.RecordBatch]:
        """Rows that have met the whole master leave; those without a match are reported now."""
        backlog = self.parts.backlog
        while self._queue and self._seen - self._queue[0][1] >= self._pages:
            slots, _ = self._queue[0]
            matched = backlog.matched[slots]
            yield from self.parts.output.leave(backlog.chunks, backlog.loc[slots], matched)
            self._queue.popleft()
            backlog.remove(slots)

    def reset(self) -> None:
        super().reset()
        self._queue.clear()
        self._admitted = 0

    def ages(self, slots: I32) -> I64:
        age = np.zeros(self.parts.backlog.capacity, np.int64)
        for some, stamp in self._queue:
            age[some] = self._seen - stamp
        return age[slots]

    def state(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def restore(self, state: dict[str, Any], slots: I32, ages: I64) -> None:
        """Rows go on from the page where they were, having met `ages` pages."""
        self._cursor = state["cursor"] % max(1, self._pages)
        self._seen = int(ages.max(initial=0))
        self._queue.clear()
        self._admitted = 0
        for age in np.unique(ages)[::-1]:
            self._queue.append((slots[ages == age], self._seen - int(age)))
