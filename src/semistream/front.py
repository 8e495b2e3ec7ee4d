"""Front stages: hot master rows in memory, asked before anything touches the disk.

`KeyGroups` caches whole key groups (all master rows of a code) by how often they are asked for.

    new groups ──> young chunks ──full──> a sealed segment ──> ... at most SEGMENTS of them
                        │
                        └── all segments there: young and the oldest segment compete; the more
                            frequent groups make the new segment, the others leave

Frequencies of cached groups are exact, those of others live in a sketch; both halve together, so
the cache forgets. Codes the master does not have are remembered in a small direct-mapped table.
Deviations from the papers: groups and not tuples (a duplicate key is answered whole or not at all),
and a candidate replaces only what is less frequent than itself.

Where keys hardly ever repeat a cache is only a burden: then it sleeps, lends its memory to the
waiting rows where they can use it, and watches for repetition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import Chunks, group_rows
from .grouptable import Groups, GroupTable
from .kernels import table
from .master import Master
from .memory import Ledger
from .records import Records

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
SEGMENTS = 16
YOUNG_CHUNKS = 32
LOAD = 0.75  # of the table, when full
ENTRY_BYTES = 44  # of the table and the sketch, per group
MOST_GROUP = 4096  # rows of a group that may be cached
ASLEEP, AWAKE = 0.12, 0.2  # share of rows whose key is known: below, above
FELL, NOISE = 0.96, 0.03  # hits below this part of the usual share, less this: hot keys moved
RECORD_BYTES = 24  # what packing adds to a row, at most


@dataclass
class Hits:
    start: I64  # location of the first row of the group; -1: not here
    count: I32
    absent: NDArray[np.bool_] | None  # known not to be in the master


class Front:
    """No front stage: nothing is ever here. Also the interface of the others."""

    complete = False  # True: what is not here is nowhere
    learns = False  # True: it wants to be told what the disk phase finds
    asleep = False  # True: not to be asked now; it watches whether keys repeat
    patient = False  # True: somebody else wakes it, who has borrowed its memory
    wants_to_wake = False
    rows: Chunks | Records  # where the locations in `Hits` point

    @property
    def spare(self) -> int:
        """Bytes of its share that it does not use now."""
        return 0

    @property
    def full(self) -> bool:
        """Whether another group could only come in the place of others."""
        return True

    def hot(self, most: int | None = None) -> tuple[I64, I64] | None:
        """The codes that it has and may be remembered, and how often each was asked for: those
        asked for most, these first."""
        return None

    def sleep(self) -> None:
        """Give all memory back."""

    def probe(self, codes: I64) -> Hits | None:
        return None

    def watch_at_least(self, rows: int) -> None:
        """Whether keys repeat cannot be seen from fewer answered rows than these."""

    def offer(self, codes: I64, uses: I32, start: I64, count: I32, pages: Chunks) -> None:
        """Distinct codes that the disk phase just answered, and how many rows asked for each."""

    def absent(self, codes: I64) -> None:
        """Codes that the master does not have, as a whole answer has shown."""

    def forget(self, codes: I64) -> None:
        """Drop the groups of these codes, and that some of them do not exist: the master's rows of
        these codes may have changed."""

    def follow(self, master: Master) -> None:
        """The join goes on with another version of the master."""

    def renew(self) -> None:
        """Forget what is too old or has changed. It may ask the master, and so may fail."""

    def clear(self) -> None:
        """Forget everything."""


class KeyGroups(Front):
    learns = True

    def __init__(
        self, schema: pa.Schema, limit: int, row_bytes: int, threshold: int, ledger: Ledger
    ) -> None:
        self._schema, self._ledger = schema, ledger
        groups = max(SEGMENTS + 2, limit // (row_bytes + ENTRY_BYTES))
        self._slots = int(groups / LOAD)
        self._segment_groups = groups // (SEGMENTS + 2)
        self._sketch_bits = (4 * groups).bit_length()
        self._absent_bits = max(3, self._sketch_bits - 5)
        self._limit = limit
        self._first_threshold = threshold
        self._least_watched = max(1024, self._segment_groups * SEGMENTS)
        self.clear()

    @staticmethod
    def least(row_bytes: int) -> int:
        """A front stage with less than this is not worth having."""
        return 64 * (row_bytes + ENTRY_BYTES)

    def clear(self) -> None:
        self.asleep = self.wants_to_wake = False
        self._watched = self._repeated = 0  # rows since the last look, and those of known keys
        self._table = GroupTable(self._slots)
        self._sketch = np.zeros(1 << self._sketch_bits, np.uint8)
        self._absent = np.zeros(1 << self._absent_bits, np.int64)
        self._absent_used = np.zeros(1 << self._absent_bits, np.uint8)
        self._fixed = self._table.nbytes + sum(
            a.nbytes for a in (self._sketch, self._absent, self._absent_used)
        )
        self._segment_bytes = max(0, self._limit - self._fixed) // (SEGMENTS + 2)
        self.rows = new_rows(self._schema)
        self._sizes: list[int] = []  # bytes per chunk; 0: free
        self._young: list[int] = []
        self._young_groups = 0
        self._sealed: list[int] = []  # oldest first
        self._probes = self._evicted = self._since = self._sketched = self._cutoff = 0
        self._hits, self._usual = 0, 0.0  # since the last look, and the share of hits by then
        self.threshold = self._first_threshold
        self._account()

    def _account(self) -> None:
        self._ledger.set("front", self._fixed + sum(self._sizes))

    # --- asking --------------------------------------------------------------------------------

    def probe(self, codes: I64) -> Hits | None:
        if self.asleep:
            return None
        n = len(codes)
        start, count, hits = self._table.probe(codes)
        absent = None
        if hits < n:
            mask = np.empty(n, np.bool_)
            known = table.absent_probe(
                codes, start, self._absent, self._absent_used, self._absent_bits, mask
            )
            absent, hits = mask if known else None, hits + known
        self._watched += hits
        self._repeated += hits
        self._probes += n
        self._since += n
        self._hits += hits
        return Hits(start, count, absent)

    # --- learning ------------------------------------------------------------------------------

    def watch_at_least(self, rows: int) -> None:
        self._least_watched = max(self._least_watched, rows)

    def offer(self, codes: I64, uses: I32, start: I64, count: I32, pages: Chunks) -> None:
        self._watch(int(uses.sum()), len(codes))
        if self.asleep:
            return
        missing = count == 0
        if missing.any():
            self.absent(codes[missing])
        estimate = np.empty(len(codes), np.int32)
        table.sketch_add(codes, uses, self._sketch, self._sketch_bits, estimate)
        self._age(len(codes))
        self._move_threshold()
        worth = max(self.threshold, 2 * self._cutoff + 2) if self.full else self.threshold
        wanted = np.flatnonzero((count > 0) & (estimate >= worth) & (count <= MOST_GROUP))
        if len(wanted) and self._segment_bytes > 0:
            wanted = wanted[np.argsort(-estimate[wanted], kind="stable")]
            self._admit(codes[wanted], estimate[wanted], start[wanted], count[wanted], pages)

    def _watch(self, rows: int, distinct: int) -> None:
        """Fall asleep when keys hardly ever repeat, wake up when they do."""
        self._watched += rows
        self._repeated += rows - distinct
        if self._watched < self._least_watched:
            return
        share = self._repeated / self._watched
        self._watched = self._repeated = 0
        if self.asleep and share > AWAKE:
            self.wants_to_wake = True
            if not self.patient:
                self.clear()
        elif not self.asleep and share < ASLEEP:
            self.sleep()

    def sleep(self) -> None:
        """Give all memory back."""
        self.clear()
        self.asleep = True
        self._table, self._fixed = GroupTable(1), 0
        self._sketch = self._absent_used = np.zeros(0, np.uint8)
        self._absent = np.zeros(0, np.int64)
        self._account()

    @property
    def spare(self) -> int:
        """Bytes that may be borrowed while it sleeps."""
        return self._limit if self.asleep else 0

    def absent(self, codes: I64) -> None:
        if self.asleep:
            return
        table.absent_insert(codes, self._absent, self._absent_used, self._absent_bits)

    def forget(self, codes: I64) -> None:
        """Their rows stay in their chunk until it is brought together with others."""
        if self.asleep or len(codes) == 0:
            return
        table.absent_forget(codes, self._absent, self._absent_used, self._absent_bits)
        start, _, _ = self._table.probe(codes)
        here = codes[start >= 0]
        self._table.drop(here)
        back = max(self.threshold, 2 * self._cutoff + 2)  # they come back when they are asked for
        table.sketch_put(here, np.full(len(here), back, np.uint32), self._sketch, self._sketch_bits)

    def _age(self, seen: int) -> None:
        """Halve all counts every 10 x groups probes, or sooner when so many different codes came
        that they would blur the sketch."""
        self._sketched += seen
        if self._probes > 10 * max(1024, self._table.used) or 2 * self._sketched > len(
            self._sketch
        ):
            self._probes = self._sketched = 0
            self._cutoff //= 2
            self._table.halve(self._sketch)

    def _move_threshold(self) -> None:
        """Down while there is room, up when groups replace each other too fast."""
        if self._since < max(1024, self._table.used):
            return
        moved = self._hot_set_moved(self._hits / self._since)
        self._since = self._hits = 0
        if moved or not self.full:
            self.threshold = max(1, self.threshold // 2)
        elif self._evicted > 0.05 * self._table.used:
            self.threshold = min(200, self.threshold + 1)
        elif self._evicted < 0.01 * self._table.used:
            self.threshold = max(1, self.threshold - 1)
        self._evicted = 0

    def _hot_set_moved(self, share: float) -> bool:
        """Hits are fewer than usual: what is cached ages now, again and again until they are back
        or few hits are usual. What is outside does not age meanwhile, so it comes in."""
        moved = share < FELL * self._usual - NOISE
        self._usual += (share - self._usual) * (0.05 if share < self._usual else 0.3)
        if moved:
            self._cutoff //= 2
            self._table.halve(self._sketch[:0])
        return moved

    @property
    def full(self) -> bool:
        return len(self._sealed) >= SEGMENTS

    def hot(self, most: int | None = None) -> tuple[I64, I64] | None:
        return None if self.asleep else self._table.hottest(most)

    def _admit(self, codes: I64, estimate: I32, start: I64, count: I32, pages: Chunks) -> None:
        """Copy groups into young chunks, most frequent first; a full young generation competes
        with the oldest segment."""
        loc = group_rows(pages, start, count)
        rows = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
        size = pages.widths(loc)[rows] + RECORD_BYTES * rows  # of the first i groups
        at = 0
        while at < len(codes):
            room = self._segment_bytes - sum(self._sizes[c] for c in self._young)
            fit = int(np.searchsorted(size, size[at] + room, "right")) - 1
            fit = min(fit, at + self._segment_groups - self._young_groups)
            if fit > at and len(self._young) < YOUNG_CHUNKS:
                part = slice(at, fit)
                self._store(
                    codes[part], count[part], estimate[part], pages, loc[rows[at] : rows[fit]]
                )
                at = fit
            elif self._young:
                self._consolidate()
                if self.full:
                    end = int(np.searchsorted(-estimate, -self._cutoff, "left"))
                    codes, count, estimate = codes[:end], count[:end], estimate[:end]
            else:
                at += 1  # wider than a segment: never cached

    def _store(self, codes: I64, count: I32, uses: I32, pages: Chunks, loc: I64) -> None:
        chunk, where = self._new_chunk(pages, loc)
        self._young.append(chunk)
        self._young_groups += len(codes)
        self._table.put(Groups(codes, _heads(where, count), count, uses.astype(np.uint32)))

    def _new_chunk(self, source: Chunks | Records, loc: I64) -> tuple[int, I64]:
        """Copy rows into a chunk of their own; returns its number and where each row is."""
        free = self._sizes.index(0) if 0 in self._sizes else None
        chunk, where, size = self.rows.add(free, source, loc)
        if free is None:
            self._sizes.append(size)
        else:
            self._sizes[chunk] = size
        self._account()
        return chunk, where

    def _consolidate(self) -> None:
        """Young chunks become a segment; with all segments there, they compete with the oldest."""
        old = list(self._young)
        if self.full and self._sealed:
            old.append(self._sealed.pop(0))
        chosen = np.zeros(len(self._sizes), np.bool_)
        chosen[old] = True
        found = self._table.in_chunks(chosen)
        loc = group_rows(self.rows, found.start, found.count)
        sizes = self.rows.widths(loc)[np.cumsum(found.count)]
        most = int(np.searchsorted(sizes, self._segment_bytes, "right"))
        keep = min(most, self._segment_groups)
        if keep < len(found.codes):
            self._evict(found.part(slice(keep, None)))
        kept = found.part(slice(keep))
        segment, where = self._new_chunk(self.rows, loc[: int(kept.count.sum())])
        kept.start = _heads(where, kept.count)
        self._table.put(kept)
        for chunk in old:
            self._sizes[chunk] = 0
            self.rows.drop(chunk)
        self._young, self._young_groups = [], 0
        self._sealed.append(segment)
        self._account()

    def _evict(self, groups: Groups) -> None:
        """These leave; the sketch remembers how frequent they were."""
        self._evicted += len(groups.codes)
        self._cutoff = int(groups.uses[0])
        table.sketch_put(groups.codes, groups.uses, self._sketch, self._sketch_bits)
        self._table.drop(groups.codes)


def _heads(where: I64, count: I32) -> I64:
    """Where each group begins, its rows following one another in `where`."""
    first: I64 = np.cumsum(count, dtype=np.int64) - count
    heads: I64 = where[first]
    return heads


def new_rows(schema: pa.Schema) -> Chunks | Records:
    """Packed records where every column can be packed, else Arrow chunks."""
    return Records(schema) if Records.can_hold(schema) else Chunks(schema)
