"""sweepjoin's disk phase: ordered sweeps over just the pages that waiting rows need.

    waiting codes ──sort──> index: page range of each ──> needed pages, in file order
                                                             │ adjacent reads merged
    output <── gather rows <── merge search in the pages <───┘

When most pages are needed this is a sequential scan, when few are it is an index join whose reads
are shared and in order. Where the master is mapped, all pages are one block and nothing is copied.
Otherwise blocks are read one after another; a key whose rows go on into the next block remembers
where it stopped (`resume`), so a failed read loses nothing and repeats nothing.

Where pages are read, a step takes the next part of the waiting rows in the order of their keys, and
goes round: the slots of that part are used again before the others' pages come, so that one round
answers nearly two rows per slot. Where new rows always come just ahead, a round would never end: a
row that has waited for long has the next step answer everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..budget import SWEEP_PARTS
from ..front import Groups
from ..kernels import search
from ..kernels.arrays import I32, I64, Mask
from ..master import Pages, page_blocks
from .base import DiskPhase, Parts

LATE = 3  # times the rows that wait: when so many came after one, it is over age. A round has 1.7


class Sweep(DiskPhase, word="sweep"):
    borrows = goes_round = True
    fetch_word = "fetch"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._own_bytes = parts.backlog.limit
        self._borrows = self.borrows and not parts.steady
        parts.front.let_others_wake_it(self._borrows)
        self._view = parts.master.view(self.columns)
        # Where nothing is read, where answers are held until all older rows have theirs, and where
        # rows are shed by step, a step answers everything.
        whole = self._view is not None or parts.in_order or parts.steady
        self._rounds = self.goes_round and not whole
        self._done: int | None = None  # codes up to this one had their turn; None: a round begins
        self._parts_done = self._part_rows = 0  # of this round
        self._overdue = False  # rows were put back that are older than their tickets say
        self._watch()

    def _watch(self) -> None:
        """Parts are answered in the order of keys: only a round shows all of them, and a part
        without the hottest ones would send the front stage to sleep."""
        if self._rounds:
            self.parts.front.watch_at_least(2 * self.parts.backlog.capacity)

    def room(self) -> int:
        """A backlog that is all but full is swept first: many small pieces would cost more."""
        backlog = self.parts.backlog
        return backlog.free_rows if 16 * backlog.free_rows >= backlog.capacity else 0

    def step(self) -> Iterator[pa.RecordBatch]:
        """Answer the next part of what waits, or everything."""
        backlog = self.parts.backlog
        if len(backlog) == 0:
            return
        slots, codes = self._sorted(backlog.slots())
        part, done = slice(0, len(codes)), None
        if self._rounds and not self._all_at_once(slots):
            part, done = self._part(codes)
        yield from self._answer(slots[part], codes[part])
        self._done, self._parts_done = done, 0 if done is None else self._parts_done + 1
        self._overdue = False
        self._settle()

    @property
    def position(self) -> int:
        return self._parts_done

    def reset(self) -> None:
        super().reset()
        self._done, self._parts_done, self._overdue = None, 0, False

    def waited(self, slots: I32) -> I64:
        """Rows that came after each of these, itself included."""
        age: I64 = self.parts.backlog.arrivals - self.parts.backlog.ticket[slots]
        return age

    def state(self) -> dict[str, Any]:
        return {"done": self._done, "overdue": self._overdue}

    def restore(self, state: dict[str, Any], slots: I32, ages: I64) -> None:
        self._done = state.get("done")
        self._overdue = bool(state.get("overdue") or (ages > self.waited(slots)).any())

    def _all_at_once(self, slots: I32) -> bool:
        """Where no more rows come, where one is over age, and where memory is to change hands, for
        which nobody may wait."""
        if self.ending or self._overdue:
            return True
        front, backlog = self.parts.front, self.parts.backlog
        lends = front.wants_to_wake or backlog.limit != self._own_bytes + front.spare
        waited = max(len(slots), SWEEP_PARTS * self._part_rows)
        late = self.waited(slots).max() > LATE * waited
        return bool(late or (self._borrows and lends))

    def _part(self, codes: I64) -> tuple[slice, int | None]:
        """Of sorted codes, those that come next: one in SWEEP_PARTS of the most that waited in this
        round, and whatever else the last page answers. Also the code up to which that goes, None
        where a round ends."""
        master = self.parts.master
        first = len(codes)
        if self._done is not None:
            first = int(np.searchsorted(codes, self._done, "right"))
        if first == len(codes):  # a round begins
            first = self._part_rows = 0
        self._part_rows = max(self._part_rows, -(-len(codes) // SWEEP_PARTS))
        stop = min(len(codes), first + self._part_rows)
        done = int(codes[stop - 1])
        if len(master.runs) <= 2:  # a page of a newer run may span all keys
            low, high = master.seek(codes[stop - 1 : stop])
            done = max(done, int(master.last[high[0] - 1])) if low[0] < high[0] else done
        stop = int(np.searchsorted(codes, done, "right"))
        return slice(first, stop), None if stop == len(codes) else done

    def _settle(self) -> None:
        """If nobody waits now: borrow a sleeping front stage's memory, or give it back."""
        front, backlog = self.parts.front, self.parts.backlog
        if len(backlog) or not self._borrows:
            return
        if front.wants_to_wake:
            backlog.resize(self._own_bytes)
            front.clear()
        elif backlog.limit != self._own_bytes + front.spare:
            backlog.resize(self._own_bytes + front.spare)
        self._watch()

    def make_room(self, rows: int, size: int) -> None:
        """For the rows of a snapshot, which may have been taken while memory was borrowed."""
        if rows > self.parts.backlog.capacity or size > self.parts.backlog.free_bytes:
            self.parts.front.sleep()
            self._settle()

    def _sorted(self, slots: I32) -> tuple[I32, I64]:
        """Slots by code, and their codes."""
        codes = self.parts.backlog.codes[slots]
        order, spare = np.empty(len(codes), np.int32), np.empty(len(codes), np.int64)
        spare_order = np.empty(len(codes), np.int32)
        if search.sort_codes(codes, order, spare, spare_order):
            codes, order = spare, spare_order
        return slots[order], codes

    def _answer(self, slots: I32, codes: I64) -> Iterator[pa.RecordBatch]:
        low, high = self.parts.master.seek(codes)
        begin = low  # where a key's rows begin, whatever some of its waiting rows have met already
        resume = self.parts.backlog.resume[slots]
        if resume.any():  # after a failed read, rows of one key may be at different pages
            low = np.maximum(low, resume)
            order = np.lexsort((low, codes))
            slots, codes = slots[order], codes[order]
            low, high, begin = low[order], high[order], begin[order]
        if self._view is not None:
            wanted = np.zeros(len(self._view.rows), np.bool_)
            search.mark_pages(low, high, wanted)
            self.parts.master.touch(wanted)
            yield from self._block(self._view, 0, len(wanted), slots, codes, low, high)
            return
        some = low < high
        yield from self._absent(slots[~some], codes[~some])
        where = np.flatnonzero(some)
        if len(self.parts.master.runs) > 2:  # in file order: one run after another
            where = where[np.argsort(begin[where], kind="stable")]
        yield from self._blocks(slots[where], codes[where], low[where], high[where], begin[where])

    def _absent(self, slots: I32, codes: I64) -> Iterator[pa.RecordBatch]:
        """The index says that no page can hold these."""
        if len(slots) == 0:
            return
        nothing = np.full(len(codes), -1, np.int64)
        count, uses = np.zeros(len(codes), np.int32), np.ones(len(codes), np.int32)
        backlog = self.parts.backlog
        self.parts.front.offer(Groups(codes, nothing, count, uses), backlog.chunks)
        yield from self.parts.output.unmatched(backlog.chunks, backlog.loc[slots])
        backlog.remove(slots)

    def _blocks(
        self, slots: I32, codes: I64, low: I32, high: I32, begin: I32
    ) -> Iterator[pa.RecordBatch]:
        """Read the needed pages in order, a block at a time; each block answers the rows whose page
        range meets it."""
        master, ledger = self.parts.master, self.parts.ledger
        # After a failed read a row may go on at a later page than another with a larger code.
        rising = bool((np.diff(low) >= 0).all() and (np.diff(high) >= 0).all())
        for numbers in page_blocks(master, low, high, self.parts.read_bytes):
            mine: slice | I64 = slice(
                int(np.searchsorted(high, numbers[0], "right")),
                int(np.searchsorted(low, numbers[-1], "right")),
            )
            if not rising:
                mine = np.flatnonzero((low <= numbers[-1]) & (high > numbers[0]))
            ledger.set("read", int(master.page_bytes(numbers).sum()))
            pages = master.read(numbers, self.columns)
            ledger.set("read", pages.allocated)
            here_low = np.searchsorted(numbers, low[mine], "left").astype(np.int32)
            here_high = np.searchsorted(numbers, high[mine], "left").astype(np.int32)
            yield from self._block(
                pages,
                int(numbers[0]),
                int(numbers[-1]) + 1,
                slots[mine],
                codes[mine],
                here_low,
                here_high,
                ranges=(begin[mine], low[mine], high[mine]),
            )
            del pages
            ledger.set("read", 0)

    def _block(
        self,
        pages: Pages,
        first: int,
        end: int,
        slots: I32,
        codes: I64,
        low: I32,
        high: I32,
        *,
        ranges: tuple[I32, I32, I32] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Answer rows from one block of pages [first, end); `low` and `high` count in the block.
        `ranges` are page numbers where a row's range may be longer than the block: where its key
        begins, where this row goes on, and the end of both."""
        backlog, output = self.parts.backlog, self.parts.output
        start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        first_code, last_code = pages.bounds
        search.match_sorted(
            codes, low, high, first_code, last_code, pages.codes, pages.rows, start, count
        )
        final = whole = None
        if ranges is not None:
            begin, on_from, until = ranges
            final = until <= end
            whole = final & (begin >= first) & (on_from == begin)
        self._teach(pages, codes, start, count, whole)
        matched = backlog.matched[slots]
        yield from output.answer(
            backlog.chunks,
            backlog.loc[slots],
            pages.columns,
            start,
            count,
            matched,
            final=final,
        )
        if final is None or final.all():
            backlog.remove(slots)
            return
        later = slots[~final]
        backlog.matched[later] = matched[~final]
        backlog.resume[later] = end
        backlog.remove(slots[final])

    def _teach(self, pages: Pages, codes: I64, start: I64, count: I32, whole: Mask | None) -> None:
        """Offer the front stage every code that was answered completely by this block."""
        heads = np.empty(len(codes), np.int32)
        heads = heads[: search.code_runs(codes, heads)]
        uses = np.diff(np.append(heads, len(codes))).astype(np.int32)
        if whole is not None and not whole.all():
            keep = whole[heads]
            heads, uses = heads[keep], uses[keep]
        groups = Groups(codes[heads], start[heads], count[heads], uses)
        self.parts.front.offer(groups, pages.columns)
