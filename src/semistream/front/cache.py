"""The front stage that learns: whole key groups (all master rows of a code), by how often they are
asked for.

Where they are kept, and which of them leave, is in segments.py; here is which of them come in.
Frequencies of cached groups are exact, and halve now and then, so the cache forgets. Of other codes
only the latest are remembered (ghosts.py): one seen again among these is a candidate. Codes the
master does not have are in a small direct-mapped table. Deviations from the papers: groups and not
tuples (a duplicate key is answered whole or not at all), and a candidate replaces only what is less
frequent than itself.

Where keys hardly ever repeat a cache is only a burden: then it sleeps, lends its memory to the
waiting rows where they can use it, and watches for repetition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..budget import ASLEEP, AWAKE, ENTRY_BYTES, LEAST_KEYS, SEGMENTS, Ledger
from ..kernels import table
from ..kernels.arrays import I64
from ..rows.chunks import Chunks
from ..rows.failures import RECOVERABLE
from .base import Front, Hits
from .ghosts import Ghosts
from .segments import Segments
from .table import Groups

MOST_GROUP = 4096  # rows of a group that may be cached
HALVE_EVERY = 30  # frequencies halve every so many rows per cached group
MOST_THRESHOLD = 32
FELL, NOISE = 0.96, 0.03  # hits below this part of the usual share, less this: hot keys moved


class KeyGroups(Front):
    learns = True

    def __init__(
        self, schema: pa.Schema, limit: int, row_bytes: int, threshold: int, ledger: Ledger
    ) -> None:
        self._schema, self._ledger = schema, ledger
        self._row_bytes, self._first_threshold = row_bytes, threshold
        self._cycle = 0  # rows to watch at least, behind a scan
        self._others_wake_it = False
        self._make_room_for(limit)
        self.clear()

    def _make_room_for(self, limit: int) -> None:
        """How much of what `limit` bytes have room for."""
        self._limit = limit
        self._groups = max(SEGMENTS + 2, limit // (self._row_bytes + ENTRY_BYTES))
        self._ghost_bits = self._groups.bit_length()
        self._absent_bits = max(3, self._ghost_bits - 3)

    @property
    def _least_watched(self) -> int:
        """Rows after which it decides whether to sleep."""
        return max(1024, self._groups // (SEGMENTS + 2) * SEGMENTS, self._cycle)

    @staticmethod
    def least(row_bytes: int) -> int:
        """A front stage with less than this is not worth having."""
        return LEAST_KEYS * (row_bytes + ENTRY_BYTES)

    def clear(self) -> None:
        self.asleep = self.wants_to_wake = False
        self._watched = self._repeated = 0  # rows since the last look, and those of known keys
        self._stepped = False  # the disk phase has answered rows since the last ones came
        self._ghosts = Ghosts(self._ghost_bits)
        self._absent = np.zeros(1 << self._absent_bits, np.int64)
        self._absent_used = np.zeros(1 << self._absent_bits, np.uint8)
        self._keep_in(self._groups, self._limit - self._beside())
        self._probes = self._evicted = self._since = 0
        self._hits, self._usual = 0, 0.0  # since the last look, and the share of hits by then
        self.threshold = self._first_threshold
        self._account()

    def _keep_in(self, groups: int, limit: int) -> None:
        """New segments, empty."""
        self._segments = Segments(self._schema, groups, limit, self._account, self._remember)
        self.rows = self._segments.rows

    def _beside(self) -> int:
        """Bytes of what is known of codes that are not cached."""
        return self._ghosts.nbytes + self._absent.nbytes + self._absent_used.nbytes

    def _bytes(self) -> int:
        return self._beside() + self._segments.nbytes

    def _account(self, for_a_moment: int = 0) -> None:
        self._ledger.set("front", 0 if self.asleep else self._bytes() + for_a_moment)

    def resize(self, limit: int) -> None:
        """Where there is no room for the old table beside the new one, it begins anew."""
        self._make_room_for(limit)
        if self.asleep:
            return
        held = self._bytes()
        most = self._segments.most_bytes(self._groups, limit) + self._beside()
        if self._ledger.held - held + most > self._ledger.budget:
            self.clear()
            return
        self._ghosts.resize(self._ghost_bits)
        self._absent = _scaled(self._absent, self._absent_bits)[:, 0].copy()
        self._absent_used = _scaled(self._absent_used, self._absent_bits)[:, 0].copy()
        self._segments.fit(self._groups, limit - self._beside())
        self._since = self._hits = 0
        self._usual = 0.0  # another share of hits will be usual

    def _remember(self, groups: Groups) -> None:
        """These leave; how frequent they were is remembered."""
        self._evicted += len(groups.codes)
        self._ghosts.put(groups.codes, groups.uses.astype(np.uint32, copy=False))

    # --- asking --------------------------------------------------------------------------------

    def probe(self, codes: I64) -> Hits | None:
        self._sleep_or_wake()
        if self.asleep:
            return None
        n = len(codes)
        start, count, hits = self._segments.table.probe(codes)
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
        self._cycle = rows

    def offer(self, groups: Groups, pages: Chunks) -> None:
        """What cannot be kept after all leaves the cache empty: it changes speed only, and whoever
        offers is in the middle of an answer."""
        try:
            self._offer(groups, pages)
        except RECOVERABLE:
            self.clear()

    def _offer(self, groups: Groups, pages: Chunks) -> None:
        codes, count = groups.codes, groups.count
        rows = int(groups.uses.sum())
        self._watched += rows
        self._repeated += rows - len(codes)
        self._stepped = True
        if self.asleep:
            return
        missing = count == 0
        if missing.any():
            self.absent(codes[missing])
        estimate = self._ghosts.add(codes, groups.uses.astype(np.int32, copy=False))
        self._age()
        self._move_threshold()
        worth = self._worth() if self.full else self.threshold
        wanted = np.flatnonzero((count > 0) & (estimate >= worth) & (count <= MOST_GROUP))
        if len(wanted):
            wanted = wanted[np.argsort(-estimate[wanted], kind="stable")]
            # It is here because it was just seen: that once tells nothing of how frequent it is.
            again = np.maximum(1, estimate[wanted] - 1)
            self._segments.admit(replace(groups.part(wanted), uses=again), pages)

    def _worth(self) -> int:
        """How often a code must have been seen to compete for the place of another."""
        return max(2, self.threshold)

    def watch_anew(self) -> None:
        self._watched = self._repeated = 0

    def _sleep_or_wake(self) -> None:
        """Fall asleep when keys hardly ever repeat, wake up when they do. Judged when the first
        rows come after a step: elsewhere there would be hits without the misses that came with
        them, or the other way round."""
        stepped, self._stepped = self._stepped, False
        if not stepped or self._watched < self._least_watched:
            return
        share = self._repeated / self._watched
        self._watched = self._repeated = 0
        if self.asleep and share > AWAKE:
            self.wants_to_wake = True
            if not self._others_wake_it:
                self.clear()
        elif not self.asleep and share < ASLEEP:
            self.sleep()

    def let_others_wake_it(self, others: bool) -> None:
        self._others_wake_it = others

    def sleep(self) -> None:
        """Give all memory back."""
        self.clear()
        self.asleep = True
        self._keep_in(SEGMENTS, 0)
        self._ghosts = Ghosts(0)
        self._absent, self._absent_used = np.zeros(0, np.int64), np.zeros(0, np.uint8)
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
        start, _, _ = self._segments.table.probe(codes)
        here = codes[start >= 0]
        self._segments.table.drop(here)
        back = np.full(len(here), self._worth(), np.uint32)  # they return when they are asked for
        self._ghosts.put(here, back)

    def _age(self) -> None:
        if self._probes > HALVE_EVERY * max(LEAST_KEYS, self._segments.table.used):
            self._probes = 0
            self._segments.halve()

    def _move_threshold(self) -> None:
        """Down while there is room, up when groups replace each other too fast."""
        if self._since < max(1024, self._segments.table.used):
            return
        moved = self._hot_set_moved(self._hits / self._since)
        self._since = self._hits = 0
        if moved or not self.full:
            self.threshold = max(1, self.threshold // 2)
        elif self._evicted > 0.05 * self._segments.table.used:
            self.threshold = min(MOST_THRESHOLD, self.threshold + 1)
        elif self._evicted < 0.01 * self._segments.table.used:
            self.threshold = max(1, self.threshold - 1)
        self._evicted = 0

    def _hot_set_moved(self, share: float) -> bool:
        """Hits are fewer than usual: what is cached ages now, again and again until they are back
        or few hits are usual. What is outside does not age meanwhile, so it comes in."""
        moved = share < FELL * self._usual - NOISE
        self._usual += (share - self._usual) * (0.05 if share < self._usual else 0.3)
        if moved:
            self._segments.halve()
        return moved

    @property
    def full(self) -> bool:
        return self._segments.full

    @property
    def cached(self) -> int:
        return 0 if self.asleep else self._segments.table.used

    def hot(self, most: int | None = None) -> tuple[I64, I64] | None:
        return None if self.asleep else self._segments.table.hottest(most)


def _scaled(places: NDArray[Any], bits: int) -> NDArray[Any]:
    """2 ** bits rows, each with what the places had that are one now."""
    size = 1 << bits
    if len(places) < size:
        places = np.repeat(places, size // len(places))
    return places.reshape(size, -1)
