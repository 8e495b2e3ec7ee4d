"""Waiting rows: stream rows that the front stage could not answer.

Every row has a slot; `codes`, `loc`, `matched`, `resume` and `ticket` (the number of its arrival,
-1 for a free slot) are arrays over slots. Rows themselves stay in the chunks they came in and leave
by identity, in any order; a chunk goes when its last row has gone, and rows left over in chunks
that are mostly dead are brought together. Everything is counted in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..budget import CHUNK_BYTES, SMALL_CHUNK, SMALL_CHUNKS, Ledger, slot_bytes, waiting_rows
from ..kernels import multimap
from ..kernels.arrays import I32, I64
from ..rows.chunks import Chunks
from ..rows.failures import RECOVERABLE
from ..rows.layout import row_bytes


class Backlog:
    def __init__(
        self, schema: pa.Schema, limit: int, widest: int, linked: bool, ledger: Ledger
    ) -> None:
        """`limit` bytes in all; a row of `widest` bytes must find room in an empty backlog."""
        self._ledger, self._widest, self._linked = ledger, widest, linked
        self._per_row = slot_bytes(linked)
        self.chunks = Chunks(schema)
        self.arrivals = 0
        self._towards: int | None = None  # a smaller limit to come: no more rows than fit into it
        self.resize(limit)

    def resize(self, limit: int) -> None:
        """Begin anew, empty, with `limit` bytes."""
        self.limit, self._towards = limit, None
        self.capacity = self._rows_in(limit)
        self.chunks = Chunks(self.chunks.schema, self.chunks.layouts)
        self.codes: I64 = np.empty(self.capacity, np.int64)
        self.loc: I64 = np.empty(self.capacity, np.int64)
        self.matched = np.zeros(self.capacity, np.bool_)
        self.resume: I32 = np.zeros(self.capacity, np.int32)
        self.ticket: I64 = np.full(self.capacity, -1, np.int64)
        self._free: I32 = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self._free_count = self.capacity
        self._alive: list[int] = []  # rows still waiting, per chunk
        self._size: list[int] = []  # bytes, per chunk
        self._bytes = 0
        self._dead = 0  # rows that have gone from chunks that have not
        self._dead_before = 0  # after the last packing
        self._small: list[tuple[I32, I64]] = []  # slots and tickets of the last small chunks
        self.links = Links(self.capacity, self.codes) if self._linked else None
        self._account()

    def _rows_in(self, limit: int) -> int:
        row = row_bytes(self.chunks.schema)
        return waiting_rows(limit, self._widest, self._linked, row)

    # --- another limit while rows wait ---------------------------------------------------------

    def shrink_towards(self, limit: int | None) -> None:
        """From now on, take in only what will fit into a smaller limit. None: no longer."""
        self._towards = limit if limit is not None and limit < self.limit else None

    def fits(self, limit: int) -> bool:
        """Whether what waits now could wait within `limit` bytes."""
        capacity = self._rows_in(limit)
        return len(self) <= capacity and capacity * self._per_row + self._bytes <= limit

    def carry(self, limit: int) -> I32:
        """Go on with `limit` bytes, into which all waiting rows fit; returns their new slots, the
        oldest first. One array after another, and the links last: between two steps nobody needs
        the bytes of links and work, so old and new together stay within the larger limit."""
        slots, capacity = self.oldest_first(), self._rows_in(limit)
        count = len(slots)
        self.links, self.limit, self._towards = None, limit, None
        self._small = []  # slots are others now
        self.codes = _carried(self.codes, slots, capacity, 0)
        self.loc = _carried(self.loc, slots, capacity, 0)
        self.ticket = _carried(self.ticket, slots, capacity, -1)
        self.resume = _carried(self.resume, slots, capacity, 0)
        self.matched = _carried(self.matched, slots, capacity, False)
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.capacity, self._free_count = capacity, capacity - count
        kept = np.arange(count, dtype=np.int32)
        if self._linked:
            self.links = Links(capacity, self.codes)
            self.links.add(kept)
        self._account()
        return kept

    def __len__(self) -> int:
        return self.capacity - self._free_count

    @property
    def free_rows(self) -> int:
        if self._towards is None:
            return self._free_count
        return max(0, min(self._free_count, self._rows_in(self._towards) - len(self)))

    @property
    def free_bytes(self) -> int:
        """Bytes of stream data that may still be added."""
        if self._towards is None:
            return self.limit - self.capacity * self._per_row - self._bytes
        return self._towards - self._rows_in(self._towards) * self._per_row - self._bytes

    def _account(self, more: int = 0) -> None:
        """What is held, and `more` that is about to be."""
        self._ledger.set("backlog", self.capacity * self._per_row + self._bytes + more)

    def add(self, rows: pa.RecordBatch, codes: I64) -> I32:
        """Take rows in; they are the backlog's own copy. Returns their slots."""
        n = len(codes)
        chunk = self._new_chunk(rows, n)  # it may be refused, before anything has changed
        slots = self._free[self._free_count - n : self._free_count][::-1].copy()
        self._free_count -= n
        self.codes[slots] = codes
        self.loc[slots] = (np.int64(chunk) << 32) | np.arange(n, dtype=np.int64)
        self.matched[slots] = False
        self.resume[slots] = 0
        self.ticket[slots] = np.arange(self.arrivals, self.arrivals + n)
        self.arrivals += n
        if self.links is not None:
            self.links.add(slots)
        if n < SMALL_CHUNK:
            self._gather_small(slots)
        self._account()
        return slots

    def _gather_small(self, slots: I32) -> None:
        """Small chunks that came one after another become one: each costs CHUNK_BYTES. They stay in
        the order of arrival, so that a scan lets whole chunks go."""
        self._small.append((slots, self.ticket[slots]))
        rows = sum(len(some) for some, _ in self._small)
        if rows < SMALL_CHUNK and len(self._small) < SMALL_CHUNKS:
            return
        here = [some[self.ticket[some] == tickets] for some, tickets in self._small]
        together = np.concatenate(here)
        self._small = []
        if self.chunks.widths(self.loc[together])[-1] > self.free_bytes - CHUNK_BYTES:
            return
        self._bring_together(together)
        if rows < SMALL_CHUNK:
            self._small = [(together, self.ticket[together])]

    def _new_chunk(self, rows: pa.RecordBatch, n: int) -> int:
        size = rows.get_total_buffer_size() + CHUNK_BYTES
        self._account(size)
        self._bytes += size
        if 0 in self._alive:
            chunk = self._alive.index(0)
            self.chunks.put(chunk, rows)
            self._alive[chunk], self._size[chunk] = n, size
            return chunk
        self._alive.append(n)
        self._size.append(size)
        return self.chunks.append(rows)

    def remove(self, slots: I32) -> None:
        """These rows are answered; others with the same key stay."""
        if len(slots) == len(self):
            self.clear()
            return
        if self.links is not None:
            self.links.remove(slots)
        self.ticket[slots] = -1
        gone = np.bincount(self.loc[slots] >> 32, minlength=len(self._alive))
        self._leave_chunks(gone)
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)
        if self._dead > min(1024, self.capacity // 4) + len(self) + self._dead_before:
            self._pack()
        self._account()

    def _leave_chunks(self, gone: I64) -> None:
        """gone[c] rows of chunk c have left it."""
        self._dead += int(gone.sum())
        for chunk in np.flatnonzero(gone):
            self._alive[chunk] -= int(gone[chunk])
            if self._alive[chunk] == 0:
                self._dead -= int(self.chunks.rows[chunk])
                self._drop(int(chunk))

    def _pack(self) -> None:
        """Copy the rows of chunks that are mostly dead into a new one, as many as there is room
        for."""
        slots = self.oldest_first()
        sparse = 2 * np.array(self._alive) < self.chunks.rows
        slots = slots[sparse[self.loc[slots] >> 32]]
        ends = self.chunks.widths(self.loc[slots])
        room = self.free_bytes - 2 * CHUNK_BYTES
        self._bring_together(slots[: max(0, int(np.searchsorted(ends, room, "right")) - 1)])
        self._dead_before = self._dead

    def _bring_together(self, slots: I32) -> None:
        """Copy these rows into a chunk of their own; if that cannot be, they stay where they
        are."""
        if len(slots):
            try:
                rows, old = self.take(slots), self.loc[slots] >> 32
                chunk = self._new_chunk(rows, len(slots))  # both are there for a moment
            except RECOVERABLE:
                return
            self.loc[slots] = (np.int64(chunk) << 32) | np.arange(len(slots), dtype=np.int64)
            self._leave_chunks(np.bincount(old, minlength=len(self._alive)))

    def compact(self, spare: int, worth: int | None = None) -> bool:
        """Give back the bytes of rows that have gone and of small chunks, when bytes and not slots
        are short; the copy may take `spare` bytes beyond the limit. True: it was worth it, that is
        about `worth` bytes or more came of it."""
        size, rows = np.array(self._size, np.float64), np.maximum(1, self.chunks.rows)
        live = np.maximum(0, size - CHUNK_BYTES) * np.array(self._alive) / rows  # about
        gain, room = size - live, self.free_bytes + spare - 2 * CHUNK_BYTES
        order = np.argsort(live / np.maximum(1, gain), kind="stable")
        order = order[(8 if worth else 4) * gain[order] > size[order]]  # others for little
        order = order[np.cumsum(live[order]) <= room]
        if gain[order].sum() < (worth or self.limit // 32) + CHUNK_BYTES:
            return False
        chosen = np.zeros(len(size), np.bool_)
        chosen[order] = True
        slots, before = self.slots(), self._bytes
        slots = slots[chosen[self.loc[slots] >> 32]]
        slots = slots[np.argsort(self.ticket[slots], kind="stable")]
        ends = self.chunks.widths(self.loc[slots])  # rows may differ much from the average
        self._bring_together(slots[: max(0, int(np.searchsorted(ends, room, "right")) - 1)])
        self._account()
        return self._bytes < before

    def _drop(self, chunk: int) -> None:
        self._bytes -= self._size[chunk]
        self._size[chunk] = 0
        self.chunks.keep[chunk] = None

    def clear(self) -> None:
        self.chunks = Chunks(self.chunks.schema, self.chunks.layouts)
        self._alive, self._size, self._bytes = [], [], 0
        self._dead = self._dead_before = 0
        self._small = []
        self._free = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self._free_count = self.capacity
        self.ticket[:] = -1
        if self.links is not None:
            self.links.clear()
        self._account()

    def slots(self) -> I32:
        """Slots in use."""
        return np.flatnonzero(self.ticket >= 0).astype(np.int32)

    def oldest_first(self) -> I32:
        """Slots in use, in the order of arrival."""
        slots = self.slots()
        order: I64 = np.argsort(self.ticket[slots], kind="stable")
        return slots[order]

    def take(self, slots: I32) -> pa.RecordBatch:
        """A copy of waiting rows, for a snapshot."""
        return pa.RecordBatch.from_arrays(
            self.chunks.gather(self.loc[slots]), schema=self.chunks.schema
        )


def _carried(old: NDArray[Any], slots: I32, capacity: int, empty: int) -> NDArray[Any]:
    new = np.full(capacity, empty, old.dtype)
    new[: len(slots)] = old[slots]
    return new


class Links:
    """The rows of each code, linked: O(1) to add, to find and to remove any one of them."""

    def __init__(self, capacity: int, codes: I64) -> None:
        self.bits = max(3, int(2 * capacity - 1).bit_length())
        self._codes = codes
        self.head: I32 = np.full(1 << self.bits, -1, np.int32)
        self.tail: I32 = np.empty(1 << self.bits, np.int32)
        self.after: I32 = np.empty(capacity, np.int32)
        self.before: I32 = np.empty(capacity, np.int32)
        self.filter = np.zeros(1 << self.bits, np.uint8)
        self._removed = 0

    def add(self, slots: I32) -> None:
        multimap.add_rows(
            slots,
            self._codes,
            self.head,
            self.tail,
            self.bits,
            self.after,
            self.before,
            self.filter,
        )

    def remove(self, slots: I32) -> None:
        multimap.remove_rows(
            slots, self._codes, self.head, self.tail, self.bits, self.after, self.before
        )
        self._removed += len(slots)
        if self._removed > len(self.after) // 2:  # bits are only ever set: clear out old ones
            multimap.rebuild_filter(self._codes, self.head, self.bits, self.filter)
            self._removed = 0

    def clear(self) -> None:
        self.head[:] = -1
        self.filter[:] = 0
        self._removed = 0
