"""The disk phase of hybridjoin, xhybridjoin and chybridjoin: look up one waiting row, read the
block of pages its key lies in, and let that block answer every other row it can.

The papers' loop (HYBRIDJOIN section 3; X-HYBRIDJOIN algorithm 1; CHYBRIDJOIN algorithm 1), in our
words:

    fill free slots of the hash table H and the queue Q with new rows
    (xhybridjoin: the pinned pages against H)
    take the key of the oldest row in Q, find its partition by the index, read it
    each row of the partition against H: matches go to the output, matched rows leave H and Q

Corrected: rows of a key that the master does not have leave too (as published their slots never
come back, and the same oldest key is looked up for ever). Rows leave by identity. A key is answered
only by all its rows: a block ends where its last key ends, and a key that begins before the block
waits for its own. Whatever rows are there are taken; nothing waits for w of them.
Blocks are aligned: one that floats from the oldest key leaves gaps. Ours: one lookup in eight takes
the oldest row whatever `lookup` says, so that no row waits for ever.

Mapped masters run many such iterations in one kernel call (kernels/seek.py), each with its own
lookup and block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from ..kernels import multimap, seek
from ..kernels.arrays import I32, I64, Mask
from ..master import Pages
from .base import Parts
from .groups import groups_of
from .sweep import Sweep

ITERATIONS = 1024  # lookups in one kernel call, at most
NO_OWNERS = np.zeros(0, np.int32)


class Seek(Sweep, word="seek"):
    linked = blocks = ranges = True
    borrows = goes_round = False
    fetch_word = ""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        info, capacity = parts.master.describe(), parts.backlog.capacity
        self._block_pages = max(1, parts.read_bytes // max(1, info.max_page_bytes))
        room = capacity + capacity // 4 + 1  # entries of rows that have gone stay for a while
        self._queue: I32 = np.empty(room, np.int32)
        self._tickets: I64 = np.empty(room, np.int64)
        self._begin = self._end = self._turn = 0
        self._who: I32 = np.empty(capacity, np.int32)
        self._loc: I64 = np.empty(capacity, np.int64)
        self._pinned, self._pinned_pages = parts.pinned, parts.pinned_pages

    def admit(self, rows: pa.RecordBatch, codes: I64) -> I32:
        slots = super().admit(rows, codes)
        self._enqueue(slots)
        return slots

    def _enqueue(self, slots: I32) -> None:
        """To the end of the queue. Entries whose row has gone are dropped when there is no room, or
        at once where a place within the queue is asked for."""
        if self._end + len(slots) > len(self._queue) or self.parts.params.lookup < 1:
            self._drop_gone()
        end = self._end + len(slots)
        self._queue[self._end : end] = slots
        self._tickets[self._end : end] = self.parts.backlog.ticket[slots]
        self._end = end

    def _drop_gone(self) -> None:
        queue = self._queue[self._begin : self._end]
        tickets = self._tickets[self._begin : self._end]
        alive = self.parts.backlog.ticket[queue] == tickets
        self._end, self._begin = int(alive.sum()), 0
        self._queue[: self._end], self._tickets[: self._end] = queue[alive], tickets[alive]

    def reset(self) -> None:
        super().reset()
        self._begin = self._end = 0

    def restore(self, state: dict[str, object], slots: I32, ages: I64) -> None:
        self._enqueue(slots)

    def take_over(self, old: Self) -> None:
        self._turn = old._turn

    # --- one step ------------------------------------------------------------------------------

    def step(self) -> Iterator[pa.RecordBatch]:
        """Iterations until a quarter of the slots is free for new rows; unmapped, one of them."""
        if len(self.parts.backlog) == 0:
            return
        if self._pinned is not None:
            yield from self._ask_pinned(self._pinned)
        if self._view is None:
            yield from self._look_up(self._next())
        else:
            yield from self._many(self._view)

    def _next(self) -> int:
        """The queue's entry to look up now, or -1."""
        self._turn += 1
        return seek.pick(
            self._queue, self._tickets, self.parts.backlog.ticket, self._begin, self._end,
            self.parts.params.lookup, self._turn,
        )  # fmt: skip

    def _many(self, view: Pages) -> Iterator[pa.RecordBatch]:
        backlog, master, links = self.parts.backlog, self.parts.master, self.parts.backlog.links
        assert links is not None
        gone = np.empty(backlog.capacity, np.int32)
        checked = master.checked()
        blocks = np.empty((ITERATIONS, 2), np.int64)
        k, n, b, self._begin, self._turn, stopped = seek.seek_blocks(
            self._queue, self._tickets, self._begin, self._end, self.parts.params.lookup,
            self._turn, max(1, backlog.capacity // 4), backlog.codes, backlog.ticket, links.head,
            links.after, links.bits, links.filter, self._owners(backlog.codes), master.runs,
            master.first, master.last, view.codes, view.rows, checked, self._block_pages,
            self._pinned_pages, self._who, self._loc, gone, blocks,
        )  # fmt: skip
        master.count(blocks[:b])
        slots, loc, gone = self._who[:k], self._loc[:k], gone[:n]
        yield from self._emit(slots, view, loc)
        self._tell(slots, view, loc)
        yield from self._leave(gone)
        if stopped >= 0:
            yield from self._after_stop(stopped, checked)

    def _after_stop(self, stopped: int, checked: Mask) -> Iterator[pa.RecordBatch]:
        """A page was to be checked first, or the pairs of one block do not fit at once."""
        code = int(self.parts.backlog.codes[self._queue[stopped]])
        low, high = self._block_of(code)
        if checked[low:high].all():
            mine = self._waiting_for(code)
            yield from self._answer(mine, np.full(len(mine), code, np.int64))
            return
        wanted = np.zeros(len(checked), np.bool_)
        codes, master = self.parts.backlog.codes[self.parts.backlog.slots()], self.parts.master
        seek.mark_blocks(
            codes, self._owners(codes), master.runs, master.first, master.last, self._block_pages,
            self._pinned_pages, wanted,
        )  # fmt: skip
        self.parts.master.check(wanted)

    def _owners(self, codes: I64) -> I32:
        """The run that has the rows of each code; empty where there is one run."""
        owner = self.parts.master.owners(codes)
        return NO_OWNERS if owner is None else owner

    def _run_of(self, code: int) -> tuple[int, int]:
        """The pages of the run that has the rows of a code."""
        owner = self._owners(np.array([code], np.int64))
        begin, end = seek.run_range(owner, 0, self.parts.master.runs)
        return int(begin), int(end)

    def _block_of(self, code: int) -> tuple[int, int]:
        begin, end = self._run_of(code)
        master = self.parts.master
        low, high = seek.page_range(code, master.first, master.last, begin, end)
        if low == high:
            return low, high
        return seek.block_of(low, high, begin, end, self._block_pages, self._pinned_pages)

    def _look_up(self, entry: int) -> Iterator[pa.RecordBatch]:
        """One iteration, its block read as a whole. Where that is larger than the buffer, or where
        pages overlap and cannot show that a group is whole, only the looked up key is answered."""
        if entry < 0:
            return
        master, backlog = self.parts.master, self.parts.backlog
        code = int(backlog.codes[self._queue[entry]])
        mine = self._waiting_for(code)
        low, high = self._block_of(code)
        numbers = np.arange(low, high, dtype=np.int64)
        size = int(master.page_bytes(numbers).sum())
        alone = master.block_pages is not None or backlog.resume[mine].any()
        if low == high or size > self.parts.read_bytes or alone:
            yield from self._answer(mine, np.full(len(mine), code, np.int64))
            return
        self.parts.ledger.set("read", size)
        pages = master.read(numbers, self.columns)
        self.parts.ledger.set("read", pages.allocated)
        yield from self._probe(pages, low, high, mine)
        del pages
        self.parts.ledger.set("read", 0)

    def _waiting_for(self, code: int) -> I32:
        backlog, links = self.parts.backlog, self.parts.backlog.links
        assert links is not None
        out = np.empty(len(backlog), np.int32)
        n = multimap.rows_of(code, backlog.codes, links.head, links.after, links.bits, out)
        return out[:n]

    def _probe(self, pages: Pages, low: int, high: int, mine: I32) -> Iterator[pa.RecordBatch]:
        """The block's rows against the waiting rows; all groups but those at a cut edge are whole.
        `mine` are the rows it was read for, which leave in any case."""
        edges = self._cut_edges(low, high)
        gone = [mine]
        for slots, loc, whole in self._pairs(pages):
            keep = ~np.isin(self.parts.backlog.codes[slots], edges)
            slots, loc = slots[keep], loc[keep]
            yield from self._emit(slots, pages, loc)
            if whole:
                self._tell(slots, pages, loc)
            gone.append(np.unique(slots))
        yield from self._leave(np.unique(np.concatenate(gone)))

    def _cut_edges(self, low: int, high: int) -> list[int]:
        """Codes at the block's ends that have rows beyond them."""
        first, last = self.parts.master.first, self.parts.master.last
        runs = self.parts.master.runs
        begin, end = runs[runs <= low].max(), runs[runs >= high].min()
        edges = [int(first[low])] if low > begin and last[low - 1] == first[low] else []
        if high < end and first[high] == last[high - 1]:
            edges.append(int(last[high - 1]))
        return edges

    def _pairs(self, pages: Pages) -> Iterator[tuple[I32, I64, bool]]:
        """(slots, locations, whether these are all pairs of the block)."""
        backlog, links = self.parts.backlog, self.parts.backlog.links
        assert links is not None
        valid = np.zeros(len(pages.rows), np.int64)  # only pages with keys are in the index
        page, row, whole = 0, 0, True
        while page < len(pages.rows):
            k, page, row = multimap.probe_pages(
                pages.codes, pages.rows, valid, page, row, backlog.codes, links.head, links.after,
                links.bits, links.filter, self._who, self._loc,
            )  # fmt: skip
            slots, loc = self._live(self._who[:k], pages, self._loc[:k])
            yield slots, loc, whole and page == len(pages.rows)
            whole = False

    def _ask_pinned(self, pinned: Pages) -> Iterator[pa.RecordBatch]:
        """The published way: the pinned rows against the waiting ones."""
        yield from self._probe(pinned, 0, len(pinned.rows), np.zeros(0, np.int32))

    # --- answers -------------------------------------------------------------------------------

    def _emit(self, slots: I32, pages: Pages, loc: I64) -> Iterator[pa.RecordBatch]:
        backlog = self.parts.backlog
        if len(slots):
            yield from self.parts.output.pairs(
                backlog.chunks, backlog.loc[slots], slots, pages.columns, loc, backlog.matched
            )

    def _tell(self, slots: I32, pages: Pages, loc: I64) -> None:
        if self.parts.front.learns and len(slots):
            found = groups_of(self.parts.backlog.codes[slots], loc)
            self.parts.front.offer(found, pages.columns)
