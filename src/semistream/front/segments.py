"""Where a front stage keeps its key groups: rows in chunks, and a table that finds them.

    new groups ──> young chunks ──full──> a sealed segment ──> ... at most SEGMENTS of them
                        │
                        └── all segments there: young groups compete with those segments that
                            have most of the least frequent groups, and take the place of these

A chunk never changes: groups that stay are copied into a new one, in bulk and rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..budget import RECORD_BYTES, SEGMENTS
from ..kernels.arrays import F64, I32, I64
from ..rows.chunks import Chunks, group_rows
from ..rows.records import Records
from .table import Groups, GroupTable

POOREST = 2  # segments that young groups compete with
LEVELS = 64  # frequencies that are told apart when these are chosen
YOUNG_CHUNKS = 32
LOAD = 0.75  # of the table, when full


class Segments:
    """Room for `groups` groups, and for their rows what `limit` bytes leave beside the table.

    `resized` is called whenever `nbytes` has changed, with what is needed beside it for a moment;
    `evicted` with the groups that have to leave.
    """

    def __init__(
        self,
        schema: pa.Schema,
        groups: int,
        limit: int,
        resized: Callable[..., None],
        evicted: Callable[[Groups], None],
    ) -> None:
        self._resized, self._evicted = resized, evicted
        self.table = GroupTable(int(groups / LOAD))
        self.rows = new_rows(schema)
        self.segment_groups = groups // (SEGMENTS + 2)
        self.segment_bytes = max(0, limit - self.table.nbytes) // (SEGMENTS + 2)
        self.cutoff = 0  # how often the most frequent group that had to leave was asked for
        self._sizes: list[int] = []  # bytes per chunk; 0: free
        self._young: list[int] = []
        self._young_groups = 0
        self._sealed: dict[int, int] = {}  # chunk -> groups that it was made of; oldest first

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + sum(self._sizes)

    @property
    def full(self) -> bool:
        return len(self._sealed) >= SEGMENTS

    @property
    def lasting(self) -> int:
        """Groups that the sealed segments have room for."""
        return len(self._sealed) * self.segment_groups

    def halve(self) -> None:
        """Halve all frequencies."""
        self.cutoff //= 2
        self.table.halve()

    def admit(self, groups: Groups, pages: Chunks) -> None:
        """Copy groups into young chunks, most frequent first; a full young generation competes
        with the segments."""
        if self.segment_bytes == 0:
            return
        loc = group_rows(pages, groups.start, groups.count)
        rows = np.concatenate([[0], np.cumsum(groups.count, dtype=np.int64)])
        size = pages.widths(loc)[rows] + RECORD_BYTES * rows  # of the first i groups
        at = 0
        while at < len(groups.codes):
            room = self.segment_bytes - sum(self._sizes[c] for c in self._young)
            fit = int(np.searchsorted(size, size[at] + room, "right")) - 1
            fit = min(fit, at + self.segment_groups - self._young_groups)
            if fit > at and len(self._young) < YOUNG_CHUNKS:
                self._store(groups.part(slice(at, fit)), pages, loc[rows[at] : rows[fit]])
                at = fit
            elif self._young:
                self._consolidate()
                if self.full:
                    end = int(np.searchsorted(-groups.uses, -self.cutoff, "left"))
                    groups = groups.part(slice(0, end))
            else:
                at += 1  # wider than a segment: never cached

    def _store(self, groups: Groups, pages: Chunks, loc: I64) -> None:
        chunk, where = self._new_chunk(pages, loc)
        self._young.append(chunk)
        self._young_groups += len(groups.codes)
        self.table.put(replace(groups, start=_heads(where, groups.count)))

    def _new_chunk(self, source: Chunks | Records, loc: I64) -> tuple[int, I64]:
        """Copy rows into a chunk of their own; returns its number and where each row is."""
        free = self._sizes.index(0) if 0 in self._sizes else None
        chunk, where, size = self.rows.add(free, source, loc)
        if free is None:
            self._sizes.append(0)
        self._sizes[chunk] = max(1, size)  # without rows it is still in use
        self._resized()
        return chunk, where

    def _consolidate(self) -> None:
        """Young chunks become a segment; with all segments there, they compete with some."""
        if self.full:
            self._compete()
        else:
            self._evict(self._segment_of(self._in_chunks(self._young)))
        for chunk in self._young:
            self._free(chunk)
        self._young, self._young_groups = [], 0

    def _compete(self) -> None:
        """As many groups stay as a few segments have room for: the most frequent of these and of
        the young ones. Young groups take the places that come free, or were, one segment being made
        anew at a time."""
        old = self._poorest()
        found = self._in_chunks([*self._young, *old])
        sizes = self._sizes_of(found)
        room = int(np.searchsorted(sizes, len(old) * self.segment_bytes, "right"))
        keep = np.arange(len(found.codes)) < min(room, len(old) * self.segment_groups)
        young = np.isin(found.start >> 32, self._young)
        self._evict(found.part(young & ~keep))
        new = found.part(young & keep)
        for chunk in old:
            if len(new.codes) == 0:
                break  # nobody needs the other places: who lost there stays, for now
            here = found.start >> 32 == chunk
            self._evict(found.part(here & ~keep))
            rest = self._segment_of(found.part(here & keep).and_these(new))
            lost = rest.start >> 32 == chunk  # wider than they were thought to be
            self._evict(rest.part(lost))
            new = rest.part(~lost)
            del self._sealed[chunk]
            self._free(chunk)
        self._evict(new)
        if not keep.all():
            self.cutoff = int(found.uses[~keep][0])

    def _poorest(self) -> list[int]:
        """The segments with most groups that are among the least frequent of all, as many as are
        young; free places count too."""
        sealed = list(self._sealed)
        counts = self.table.uses_by_chunk(len(self._sizes), LEVELS)[sealed]
        upto = np.cumsum(counts.sum(axis=0))
        cut = int(np.searchsorted(upto, self._young_groups, "left"))
        poor = counts[:, :cut].sum(axis=1)
        if cut < LEVELS:
            before = int(upto[cut - 1]) if cut else 0
            part = (self._young_groups - before) / max(1, int(upto[cut]) - before)
            poor = poor + part * counts[:, cut]
        poor = poor + self._free_places(counts.sum(axis=1))
        return [sealed[i] for i in np.argsort(-poor, kind="stable")[:POOREST]]

    def _free_places(self, live: I64) -> F64:
        """For how many groups of the usual size each sealed segment has room, by those it has."""
        size = np.array([self._sizes[chunk] for chunk in self._sealed], np.float64)
        used = size * live / np.maximum(1, list(self._sealed.values()))
        usual = max(1.0, float(used.sum()) / max(1, int(live.sum())))
        free = np.minimum(self.segment_groups - live, (self.segment_bytes - used) / usual)
        return np.maximum(0.0, free)

    def _in_chunks(self, chunks: list[int]) -> Groups:
        """The groups of some chunks, most frequent first."""
        chosen = np.zeros(len(self._sizes), np.bool_)
        chosen[chunks] = True
        return self.table.in_chunks(chosen)

    def _sizes_of(self, groups: Groups) -> I64:
        """Bytes of the first group, of the first two, and so on."""
        loc = group_rows(self.rows, groups.start, groups.count)
        sizes: I64 = self.rows.widths(loc)[np.cumsum(groups.count)]
        return sizes

    def _segment_of(self, groups: Groups) -> Groups:
        """A new segment of the first of some groups; returns those for which it has no room."""
        most = int(np.searchsorted(self._sizes_of(groups), self.segment_bytes, "right"))
        kept = groups.part(slice(min(most, self.segment_groups)))
        loc = group_rows(self.rows, kept.start, kept.count)
        segment, where = self._new_chunk(self.rows, loc)
        self.table.put(replace(kept, start=_heads(where, kept.count)))
        self._sealed[segment] = len(kept.codes)
        return groups.part(slice(len(kept.codes), None))

    def _evict(self, groups: Groups) -> None:
        """These leave; who owns the segments may remember how frequent they were."""
        if len(groups.codes) == 0:
            return
        self.cutoff = int(groups.uses[0])
        self._evicted(groups)
        self.table.drop(groups.codes)

    # --- another size --------------------------------------------------------------------------

    def most_bytes(self, groups: int, limit: int) -> int:
        """What `fit` holds at most in between: the old and the new table, rows, two segments."""
        rows = min(sum(self._sizes), max(0, limit - groups * GroupTable.SLOT_BYTES))
        seen = max(sum(self._sizes) + 2 * self.segment_bytes, rows + limit // 8)
        table = int(groups / LOAD) * GroupTable.SLOT_BYTES
        return self.table.nbytes + max(seen, rows + table)

    def fit(self, groups: int, limit: int) -> None:
        """Go on with room for `groups` groups in `limit` bytes, keeping the groups most asked for.
        In between there are the larger of both sizes, two segments and the new table at most."""
        slots = int(groups / LOAD)
        self.segment_groups = groups // (SEGMENTS + 2)
        self.segment_bytes = max(0, limit - slots * GroupTable.SLOT_BYTES) // (SEGMENTS + 2)
        least, share = self._least_frequent()
        old = [*self._sealed, *self._young]
        self._sealed, self._young, self._young_groups = {}, [], 0
        rest, needed = self._chosen([], least, share), set[int]()
        for i, chunk in enumerate(old):
            rest = rest.and_these(self._chosen([chunk], least, share))
            rest = self._seal(rest, last=i + 1 == len(old))
            before, needed = needed | {chunk}, set(np.unique(rest.start >> 32).tolist())
            for done in before - needed:
                self._free(done)
        self._resized(slots * GroupTable.SLOT_BYTES)
        self.table = self.table.copy(slots)
        self._resized()

    def _least_frequent(self) -> tuple[int, float]:
        """How often a group must have been asked for to find room, and the share of those asked for
        just so often that do."""
        uses, held = self.table.uses(), sum(self._sizes)
        part = min(1.0, (SEGMENTS - 0.5) * self.segment_bytes / max(1, held))
        keep = min(int(part * len(uses)), int((SEGMENTS - 0.5) * self.segment_groups))
        if keep >= len(uses):
            return 0, 1.0
        if keep == 0:
            return 1 << 32, 0.0
        least = int(np.partition(uses, len(uses) - keep)[len(uses) - keep])
        return least, (keep - int((uses > least).sum())) / int((uses == least).sum())

    def _chosen(self, chunks: list[int], least: int, share: float) -> Groups:
        """The groups of some chunks that stay; the others leave."""
        found = self._in_chunks(chunks)
        above, from_least = (int((found.uses > u).sum()) for u in (least, least - 1))
        keep = above + round(share * (from_least - above))
        self._evict(found.part(slice(keep, None)))
        return found.part(slice(keep))

    def _seal(self, groups: Groups, last: bool) -> Groups:
        """Whole segments out of some groups; returns those that are left over, unless these are the
        last ones. Groups for which there is no segment any more leave."""
        while len(groups.codes):
            most = int(np.searchsorted(self._sizes_of(groups), self.segment_bytes, "right"))
            most = min(most, self.segment_groups)
            if most == len(groups.codes) and not last:
                break
            if most == 0 or self.full:
                self._evict(groups.part(slice(max(1, most))))
                groups = groups.part(slice(max(1, most), None))
            else:
                groups = self._segment_of(groups)
        return groups

    def _free(self, chunk: int) -> None:
        self._sizes[chunk] = 0
        self.rows.drop(chunk)
        self._resized()


def _heads(where: I64, count: I32) -> I64:
    """Where each group begins, its rows following one another in `where`."""
    first: I64 = np.cumsum(count, dtype=np.int64) - count
    heads: I64 = where[first]
    return heads


def new_rows(schema: pa.Schema) -> Chunks | Records:
    """Packed records where every column can be packed, else Arrow chunks."""
    return Records(schema) if Records.can_hold(schema) else Chunks(schema)
