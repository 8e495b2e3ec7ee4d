"""Small simulators in NumPy that the cost model is compared with. Each is seeded."""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy as np

from semistream.kernels.arrays import F64, I64


def zipf_chances(rows: int, skew: float, skip: int = 0) -> F64:
    """The chance of each rank, from the most popular; the first ``skip`` have none."""
    chances = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    chances[:skip] = 0.0
    return chances / chances.sum()


class Draws:
    """Independent draws of ranks (from 0) of a Zipf law."""

    def __init__(self, rows: int, skew: float, seed: int, skip: int = 0) -> None:
        self.rows, self.random = rows, np.random.default_rng(seed)
        self._sums = np.cumsum(zipf_chances(rows, skew, skip))

    def take(self, count: int) -> I64:
        found = np.searchsorted(self._sums, self.random.random(count) * self._sums[-1], "right")
        return np.minimum(found, self.rows - 1)

    def pages_asked_for(self, count: int, per_page: int, ordered: bool) -> int:
        """Different pages of ``count`` draws; of the placing of ranks only those drawn matter."""
        places = np.unique(self.take(count))
        if not ordered:
            places = self.random.choice(self.rows, len(places), replace=False, shuffle=False)
        return len(np.unique(places // per_page))


def page_of_rank(rows: int, pages: int, ordered: bool, random: np.random.Generator) -> I64:
    """The page on which each rank lies; every page has the same number of rows."""
    places = np.arange(rows) if ordered else random.permutation(rows)
    return places * pages // rows


def merged_reads(needed: int, pages: int, gap: int, random: np.random.Generator) -> tuple[int, int]:
    """(reads, pages read) of a random choice of pages, gaps of up to ``gap`` pages read along."""
    return sweep(random.choice(pages, needed, replace=False), gap)


def sweep(pages: I64, gap: int) -> tuple[int, int]:
    """(reads, pages read) of one sweep for rows on these pages."""
    chosen = np.unique(pages)
    between = np.diff(chosen) - 1
    joined = between <= gap
    return 1 + int(np.sum(~joined)), len(chosen) + int(np.sum(between[joined]))


class Rolled:
    """sweepjoin in parts: slots are filled, then the rows next in order of their page leave."""

    def __init__(self, draws: Draws, page: I64, slots: int, parts: int, gap: int = 0) -> None:
        self._draws, self._page, self._slots, self._gap = draws, page, slots, gap
        self._size = slots // parts
        self._waiting = np.sort(page[draws.take(slots)])
        self._done = -1

    def step(self) -> tuple[int, int, int, bool]:
        """(reads, pages, rows, whether a round ends here)"""
        first = int(np.searchsorted(self._waiting, self._done, "right")) % len(self._waiting)
        stop = min(len(self._waiting), first + self._size)
        stop = int(np.searchsorted(self._waiting, self._waiting[stop - 1], "right"))
        part, rest = self._waiting[first:stop], np.delete(self._waiting, slice(first, stop))
        ends, self._done = stop == len(self._waiting), int(part[-1])
        new = self._page[self._draws.take(self._slots - len(rest))]
        self._waiting = np.sort(np.concatenate([rest, new]))
        return *sweep(part, self._gap), len(part), ends

    def per_row(self, warm: int, counted: int) -> tuple[float, float]:
        """(reads, pages), over so many rounds."""
        rounds = reads = pages = rows = 0
        while rounds < warm + counted:
            asked, brought, left, ends = self.step()
            if rounds >= warm:
                reads, pages, rows = reads + asked, pages + brought, rows + left
            rounds += ends
        return reads / rows, pages / rows


class Hybrid:
    """Hybridjoin's disk phase with all its slots full, the oldest row looked up.

    A block is waited for from its first row on, so the oldest row's block is the first in a queue
    of blocks.
    """

    def __init__(self, draws: Draws, page: I64, waiting: int) -> None:
        self._draws, self._page = draws, page
        self._count = np.zeros(int(page.max()) + 1, np.int64)
        self._queue: deque[int] = deque()
        self._admit(waiting)

    def _admit(self, rows: int) -> None:
        blocks = self._page[self._draws.take(rows)]
        distinct, first, uses = np.unique(blocks, return_index=True, return_counts=True)
        new = self._count[distinct] == 0
        self._queue.extend(distinct[new][np.argsort(first[new])].tolist())
        self._count[distinct] += uses

    def read(self) -> int:
        """Read the oldest row's block; how many rows it answered."""
        block = self._queue.popleft()
        answered = int(self._count[block])
        self._count[block] = 0
        self._admit(answered)
        return answered

    def rows_per_read(self, warm: int, reads: int) -> float:
        for _ in range(warm):
            self.read()
        return sum(self.read() for _ in range(reads)) / reads


def pool_miss_rate(draws: Draws, page: I64, pool: int, warm: int, rows: int) -> float:
    """Lookups whose page is not in a pool of the pages last used."""
    used: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for number, wanted in enumerate(page[draws.take(warm + rows)].tolist()):
        if wanted in used:
            used.move_to_end(wanted)
            continue
        missed += number >= warm
        used[wanted] = None
        if len(used) > pool:
            used.popitem(last=False)
    return missed / rows


class Planned:
    """Ssij: rows wait under their page, half of them are answered when 70 % of the slots are used.

    The rules of the disk phase with pages in place of rows: who waits is a count per page.
    """

    def __init__(self, draws: Draws, page: I64, slots: int, pool: int, pending: int = 4096) -> None:
        pages = int(page.max()) + 1
        self._draws, self._page, self._slots, self._pool = draws, page, slots, pool
        self._pending_rows = pending
        self._waiting = np.zeros(pages, np.int64)
        self._oldest = np.full(pages, np.iinfo(np.int64).max)
        self._utility = np.zeros(pages)
        self._cached = np.zeros(pages, np.bool_)
        self.arrivals = self.pages_read = self.waited = 0

    def phase(self) -> None:
        """Take rows in until 70 % of the slots are used, then read pages until half are free."""
        filled = int(0.7 * self._slots) + 1
        while (free := filled - int(self._waiting.sum())) > 0:
            self._take(min(free, self._pending_rows))
        self._join()

    def _take(self, rows: int) -> None:
        asked = np.bincount(self._page[self._draws.take(rows)], minlength=len(self._waiting))
        if rows == self._pending_rows:  # enough to look at: cached pages answer theirs
            served = np.where(self._cached, asked + self._waiting, 0)
            self._utility += served
            self._waiting[self._cached] = 0
            asked = np.where(self._cached, 0, asked)
            self._oldest[self._cached] = np.iinfo(np.int64).max
        self._oldest = np.where((self._waiting == 0) & (asked > 0), self.arrivals, self._oldest)
        self._waiting += asked
        self.arrivals += rows

    def _join(self) -> None:
        total = int(self._waiting.sum())
        late = self._oldest < self.arrivals - 8 * self._slots
        pages = np.flatnonzero(self._waiting)
        order = pages[np.lexsort((-self._waiting[pages], ~late[pages]))]
        freed = np.cumsum(self._waiting[order])
        most = int(np.searchsorted(freed, -(-total // 2), "left")) + 1
        chosen = order[: max(most, int(late[pages].sum()))]
        for page in np.sort(chosen[~self._cached[chosen]]).tolist():
            self.pages_read += 1
            self._keep(page, int(self._waiting[page]))
        self._utility[chosen] = np.maximum(self._utility[chosen], self._waiting[chosen])
        self._waiting[chosen] = 0
        self._oldest[chosen] = np.iinfo(np.int64).max
        self._utility /= 2

    def _keep(self, page: int, served: int) -> None:
        if self._pool == 0:
            return
        if self._cached.sum() >= self._pool:
            held = np.flatnonzero(self._cached)
            worst = held[np.argmin(self._utility[held])]
            if self._utility[worst] >= served:
                return
            self._cached[worst] = False
        self._cached[page] = True

    def pages_per_row(self, warm: int, phases: int) -> float:
        for _ in range(warm):
            self.phase()
        rows, pages = self.arrivals, self.pages_read
        for _ in range(phases):
            self.phase()
        return (self.pages_read - pages) / (self.arrivals - rows)
