"""The disk phase of meshjoin, rmeshjoin and cmeshjoin: an endless cyclic scan of the master against
a window of stream rows.

The paper's loop (Polyzotis et al., figure 4; CMESHJOIN, algorithm 1, puts a cache before it), in
our words:

    read the next b pages of the master            cursor moves on, wraps at the end
    if the window is full, drop the oldest w rows  they have met every page
    put w new rows into the window (hash H, queue Q)
    join the pages with the window

Corrected: a row leaves after it has met as many pages as the master has, counted since it came in,
never because it is among the oldest w (CMESHJOIN's line 22, which lacks "if Q is full", would even
let it go after one read). So the number of pages need not be a multiple of b, b may change in
mid-cycle, and short streams, short reads and an empty master are no special cases. Rows leave by
identity: newer rows of the same key stay.

meshjoin ties its buffer to the master: k equal reads bring it in, and a k-th of the window comes in
per read. rmeshjoin (reconstructed from its abstract) unties them: the buffer follows from the
memory and the device alone, and the last read of a cycle is short (see `read_size`).

Ours: release="match" lets a row go when it matches, where the master's key is unique.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa

from ..errors import MasterError
from ..kernels import multimap
from ..kernels.arrays import I32, I64
from ..master import Pages
from ..rows.failures import Failure
from .base import DiskPhase, Parts
from .groups import Collector, groups_of, shows_groups


class Scan(DiskPhase, word="scan"):
    linked = scans = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        info = parts.master.describe()
        self._pages = info.pages
        self._cursor = 0  # next page
        self._seen = 0  # pages read since the beginning
        self._queue: deque[tuple[I32, I64, int]] = deque()  # slots, tickets, pages seen before
        per_cycle = max(1, -(-info.bytes // max(1, parts.read_bytes)))
        self._early = parts.params.release == "match"
        if self._early and not info.unique:
            raise MasterError(
                f"release='match' needs a master with a unique key, which {info.name} is not known "
                "to have; use release='cycle'"
            )
        self._per_step = -(-(1 + self._early) * parts.backlog.capacity // per_cycle)
        self._admitted = 0
        self._first = 0  # of the pages just read, the first that is not met yet
        self._meets = False  # some of them are being met
        self._asked = 1  # rows asked for last
        self._misses = 1.0  # share of such rows that missed
        self._who: I32 = np.empty(parts.backlog.capacity, np.int32)
        self._loc: I64 = np.empty(parts.backlog.capacity, np.int64)
        # Rows are answered in the order of pages: only a whole cycle shows all keys, and a part of
        # it without the hottest ones would send the front stage to sleep.
        parts.front.watch_at_least(parts.backlog.capacity)
        self._collector: Collector | None = None
        if parts.front.learns and not shows_groups(parts.master):
            schema, limit = parts.front.rows.schema, parts.collect_bytes
            self._collector = Collector(parts.front, schema, self._pages, limit, parts.ledger)

    @property
    def position(self) -> int:
        return self._cursor

    def room(self) -> int:
        """Rows come in evenly over a cycle, so that slots come free evenly ever after. As many are
        examined as lets that many miss, at most eight times as many: hits must not starve the
        waiting rows."""
        front, most = self.parts.front, self._per_step
        guess = front.learns and not front.asleep  # who knows how many rows of a piece will miss?
        most -= most // 16 if guess else 0  # so keep some slots free
        missing = most - self._admitted
        if missing > 0 and guess:
            missing = int(missing / max(0.125, self._misses)) + 1
        self._asked = max(1, min(self.parts.backlog.free_rows, missing))
        return min(self.parts.backlog.free_rows, missing)

    def admit(self, rows: pa.RecordBatch, codes: I64) -> I32:
        slots = super().admit(rows, codes)
        self._queue.append((slots, self.parts.backlog.ticket[slots], self._seen))
        self._admitted += len(slots)
        self._misses = 0.9 * self._misses + 0.1 * len(slots) / self._asked
        return slots

    def step(self) -> Iterator[pa.RecordBatch]:
        """Read one buffer of the master, join it with the window, let finished rows go."""
        self._admitted = 0
        if len(self.parts.backlog) and self._pages:
            ledger = self.parts.ledger
            pages = self.parts.master.scan(self._cursor, self.parts.read_bytes, self.columns)
            ledger.set("read", pages.allocated)
            yield from self._meet(pages)
            del pages
            ledger.set("read", 0)
        yield from self._expire()

    def _meet(self, pages: Pages) -> Iterator[pa.RecordBatch]:
        """The window meets these pages. Reads need not begin at the same pages in every cycle:
        where the oldest row's cycle ends within a read, that row leaves before the rest is met, so
        that no row meets a page twice."""
        self._first, self._meets = 0, True
        while self._first < len(pages.rows) and self._queue:
            begun = self._queue[0][2]
            if self._collector is not None:
                begun = min(begun, self._collector.begun(self._seen))
            some = pages.head(self._first + max(1, begun + self._pages - self._seen))
            met = len(some.rows) - self._first
            self._cursor = (self._cursor + met) % self._pages
            self._seen += met
            yield from self._probe(some)
            yield from self._expire()
            self._first += met
        self._meets = False

    def _probe(self, pages: Pages) -> Iterator[pa.RecordBatch]:
        """The pages against the window."""
        backlog = self.parts.backlog
        masks = [None if v is None else v.view(np.uint8) for v in pages.valid]
        valid = np.array([0 if m is None else m.ctypes.data for m in masks], np.int64)
        for found in self._pairs(pages, valid):
            if isinstance(found, Failure):
                yield found
                continue
            slots, loc = found
            if len(slots) == 0:
                continue
            yield from self.parts.output.pairs(
                backlog.chunks,
                backlog.loc[slots],
                slots,
                pages.columns,
                loc,
                backlog.matched,
            )
            if self._early:
                yield from self._leave(np.unique(slots[backlog.matched[slots]]))
        if self._collector is not None:
            self._collector.see(pages, valid, self._seen, self._first)

    def _pairs(self, pages: Pages, valid: I64) -> Iterator[tuple[I32, I64] | Failure]:
        """(waiting row, master row) with equal codes, in page order."""
        backlog, links = self.parts.backlog, self.parts.backlog.links
        assert links is not None
        page, row = self._first, 0
        while page < len(pages.rows):
            went_on = page > 0 or row > 0
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
            slots, loc = self._live(self._who[:k], pages, self._loc[:k])
            if len(slots):
                yield slots, loc
                self._teach(pages, backlog.codes[slots], loc, went_on, page < len(pages.rows))

    def _teach(self, pages: Pages, codes: I64, loc: I64, went_on: bool, goes_on: bool) -> None:
        """Tell the front stage of the groups just met. A group at an end of this read may have rows
        beyond it, also where the room for pairs ended in its midst."""
        if not self.parts.front.learns:
            return
        found = groups_of(codes, loc)
        if self._collector is not None:
            self._collector.want(found.codes, found.uses.astype(np.int32, copy=False))
            return
        if not self.parts.master.describe().unique:
            first, last = pages.bounds
            edges = [int(first[0]), int(last[-1])]
            edges += [int(found.codes[0])] if went_on else []
            edges += [int(found.codes[-1])] if goes_on else []
            found = found.part(~np.isin(found.codes, edges))
        self.parts.front.offer(found, pages.columns)

    def _expire(self) -> Iterator[pa.RecordBatch]:
        """Rows that have met the whole master leave; those without a match are reported now."""
        while self._queue and self._seen - self._queue[0][2] >= self._pages:
            slots, tickets, _ = self._queue[0]
            slots = slots[self.parts.backlog.ticket[slots] == tickets]
            if len(slots):
                yield from self._leave(slots)
            self._queue.popleft()

    def reset(self) -> None:
        super().reset()
        self._queue.clear()
        self._admitted = 0
        if self._meets and self._collector is not None:  # it has not seen all of these pages
            self._collector.reset()
        self._meets = False

    def waited(self, slots: I32) -> I64:
        age = np.zeros(self.parts.backlog.capacity, np.int64)
        for some, tickets, stamp in self._queue:
            here = some[self.parts.backlog.ticket[some] == tickets]
            age[here] = self._seen - stamp
        return age[slots]

    def take_over(self, old: Self) -> None:
        self._asked, self._misses = old._asked, old._misses

    def state(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def restore(self, state: dict[str, Any], slots: I32, ages: I64) -> None:
        """Rows go on from the page where they were, having met `ages` pages."""
        self._cursor = state["cursor"] % max(1, self._pages)
        self._seen = int(ages.max(initial=0))
        self._queue.clear()
        self._admitted = 0
        if self._collector is not None:
            self._collector.reset()
        for age in np.unique(ages)[::-1]:
            some = slots[ages == age]
            self._queue.append((some, self.parts.backlog.ticket[some], self._seen - int(age)))
