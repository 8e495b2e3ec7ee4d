"""What a disk phase tells the front stage: key groups, complete or not at all.

A group is all master rows of a code. Pages in code order show a whole group at once. In any other
order only a whole cycle of the scan does, so a `Collector` gathers the rows of some candidates for
one cycle. (The papers cache single tuples, which answers a duplicate key with some of its rows.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..budget import Ledger
from ..front import Front, Groups, new_rows
from ..kernels import multimap
from ..kernels.arrays import I32, I64
from ..master import Master, Pages
from ..rows.chunks import Chunks
from ..rows.failures import RECOVERABLE
from .backlog import Links

CANDIDATE_BYTES = 8 + 4 + 8 + 9 * 4  # code, uses, links and their table


def groups_of(codes: I64, loc: I64) -> Groups:
    """Pairs (code of a waiting row, location of a master row) in page order, as key groups."""
    change = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    heads = np.concatenate([[0], change]) if len(codes) else change
    pairs = np.diff(np.append(heads, len(codes)))
    other_row = np.ones(len(loc), np.int64)
    other_row[1:] = loc[1:] != loc[:-1]
    count = np.add.reduceat(other_row, heads) if len(heads) else pairs
    uses = (pairs // np.maximum(1, count)).astype(np.int32)
    return Groups(codes[heads], loc[heads], count.astype(np.int32), uses)


def shows_groups(master: Master) -> bool:
    """Whether some pages read by a scan show all rows of the keys in them, but at their ends."""
    info = master.describe()
    return info.unique or (info.indexed and master.ranges and master.block_pages is None)


class Collector:
    """Key groups from pages in any order: candidates of one cycle, complete after the next."""

    def __init__(
        self, front: Front, schema: pa.Schema, cycle: int, limit: int, ledger: Ledger
    ) -> None:
        self._front, self._schema, self._cycle = front, schema, cycle
        self._limit, self._ledger = limit // 2, ledger  # they are copied once more in the end
        self._most = max(1, self._limit // (4 * CANDIDATE_BYTES))
        self._codes: I64 = np.zeros(0, np.int64)
        self._wanted: list[tuple[I64, I32]] = []  # (codes, uses): candidates for the next cycle
        self._begin(0)

    def _begin(self, seen: int) -> None:
        """Collect the most wanted candidates for one cycle from here on."""
        self._codes, self._uses = self._best()
        self._wanted = []
        self._links = Links(max(1, len(self._codes)), self._codes)
        self._links.add(np.arange(len(self._codes), dtype=np.int32))
        self._rows = new_rows(self._schema)
        self._who: list[I32] = []
        self._where: list[I64] = []
        self._bytes = len(self._codes) * CANDIDATE_BYTES
        self._begun = seen
        self._ledger.set("collect", self._bytes)

    def _best(self) -> tuple[I64, I32]:
        """The candidates most asked for."""
        if not self._wanted:
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        codes, which = np.unique(np.concatenate([c for c, _ in self._wanted]), return_inverse=True)
        uses = np.bincount(which, weights=np.concatenate([u for _, u in self._wanted]))
        best = np.argsort(-uses, kind="stable")[: self._most]
        return codes[best], np.minimum(uses[best], 1 << 30).astype(np.int32)

    def begun(self, seen: int) -> int:
        """How many pages were read when collecting began; `seen` if nothing is collected."""
        return self._begun if len(self._codes) else seen

    def want(self, codes: I64, uses: I32) -> None:
        """These codes were asked for."""
        self._wanted.append((codes, uses))
        if sum(len(c) for c, _ in self._wanted) > 4 * self._most:
            self._wanted = [self._best()]

    def see(self, pages: Pages, valid: I64, seen: int, first: int = 0) -> None:
        """The scan has met these pages from the `first` on, `seen` in all. If they cannot be kept
        it begins anew: whoever scans is in the middle of an answer."""
        try:
            self._see(pages, valid, seen, first)
        except RECOVERABLE:
            self.reset()

    def _see(self, pages: Pages, valid: I64, seen: int, first: int) -> None:
        if len(self._codes) == 0:
            if self._wanted:
                self._begin(seen)
            return
        page, row = first, 0
        while page < len(pages.rows) and self._bytes <= self._limit:
            who, loc = np.empty(4096, np.int32), np.empty(4096, np.int64)
            k, page, row = multimap.probe_pages(
                pages.codes, pages.rows, valid, page, row, self._codes, self._links.head,
                self._links.after, self._links.bits, self._links.filter, who, loc,
            )  # fmt: skip
            if k:
                self._keep(who[:k], pages.columns, loc[:k])
        if self._bytes > self._limit:
            self._most = max(1, self._most // 2)
            self._begin(seen)
        elif seen - self._begun >= self._cycle:
            self._finish(seen)

    def _keep(self, who: I32, pages: Chunks, loc: I64) -> None:
        _, where, size = self._rows.add(None, pages, loc)
        self._who.append(who.copy())
        self._where.append(where)
        self._bytes += size + 16 * len(who)
        if self._bytes <= self._limit:
            self._ledger.set("collect", self._bytes)

    def _finish(self, seen: int) -> None:
        """One whole cycle has passed: every group is complete, one without rows does not exist."""
        who = np.concatenate([np.zeros(0, np.int32), *self._who])
        where = np.concatenate([np.zeros(0, np.int64), *self._where])
        order = np.argsort(who, kind="stable")
        count = np.bincount(who, minlength=len(self._codes)).astype(np.int32)
        self._ledger.set("collect", 2 * self._bytes)
        rows = self._rows.gather(where[order])
        chunk = Chunks.of(pa.RecordBatch.from_arrays(rows, schema=self._schema))
        start = np.where(count > 0, np.cumsum(count) - count, -1).astype(np.int64)
        self._front.offer(Groups(self._codes, start, count, self._uses), chunk)
        self._begin(seen)

    def reset(self) -> None:
        """Begin anew: the scan may go on from any other page."""
        self._wanted = []
        self._begin(0)
