"""The disk phase of sweepjoin, inlj and cinlj where the master finds many keys at once, as
databases do: thousands of distinct keys per round trip, all their rows in one block.

    waiting rows ──sort by code──> distinct keys, so many that their rows fit ──> fetch
    output <── gather rows <── search in the block, verify keys by value <────────┘

Each block answers its rows and lets them go before the next one is asked for; when a fetch fails,
the rows it was for still wait. How many keys fit follows from what rows have taken so far; if it
was too many, the master says so before it sends them, and half as many are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..budget import FETCH_COPIES, FETCH_KEYS, show_bytes
from ..errors import BudgetError
from ..kernels import search
from ..kernels.arrays import I32, I64
from ..master import Pages, TooBigError
from ..rows.keys import is_natural, values_of
from .base import Parts
from .sweep import Sweep


class Fetch(Sweep, word="fetch"):
    goes_round = False
    fetch_word = ""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        info = parts.master.describe()
        self._names = info.key
        self._types = [info.schema.field(name).type for name in info.key]
        self._per_key = max(16.0, 1.5 * info.bytes / max(1, info.rows))

    def step(self) -> Iterator[pa.RecordBatch]:
        """Answer everything that waits."""
        backlog = self.parts.backlog
        if len(backlog) == 0:
            return
        slots, codes = self._sorted(backlog.slots())
        heads = np.empty(len(codes), np.int32)
        heads = heads[: search.code_runs(codes, heads)]
        ends = np.append(heads[1:], np.int32(len(codes)))
        at = 0
        while at < len(heads):
            stop = min(len(heads), at + self._room())
            some = slice(int(heads[at]), int(ends[stop - 1]))
            pages = self._bring(slots[some], codes[some], stop - at)
            if pages is None:
                continue
            none, one = np.zeros(some.stop - some.start, np.int32), np.int32(1)
            yield from self._block(pages, 0, 1, slots[some], codes[some], none, none + one)
            del pages
            self.parts.ledger.set("read", 0)
            at = stop
        self._settle()

    def _room(self) -> int:
        """Keys whose rows should fit into one read."""
        return max(1, min(FETCH_KEYS, int(self.parts.read_bytes / FETCH_COPIES / self._per_key)))

    def _bring(self, slots: I32, codes: I64, keys: int) -> Pages | None:
        """The rows of some keys; None: they would be too many, and fewer are to be asked for."""
        ledger = self.parts.ledger
        limit = self.parts.read_bytes // FETCH_COPIES
        if keys == 1:  # nothing to divide: all that is free
            limit = max(limit, (ledger.budget - ledger.held) // (FETCH_COPIES + 1))
        ledger.set("read", min(self.parts.read_bytes, ledger.budget - ledger.held))
        try:
            pages = self.parts.master.fetch(self._keys(slots, codes), self.columns, limit)
        except TooBigError:
            if keys == 1:
                raise self._too_wide(limit) from None
            self._per_key = max(2 * self._per_key, self.parts.read_bytes / FETCH_COPIES / keys * 2)
            return None
        finally:
            ledger.set("read", 0)
        ledger.set("read", pages.allocated)
        seen = max(16.0, pages.allocated / keys)
        self._per_key += (seen - self._per_key) * (1.0 if seen > self._per_key else 0.25)
        return pages

    def _too_wide(self, limit: int) -> BudgetError:
        least = self.parts.ledger.budget + 2 * FETCH_COPIES * limit
        return BudgetError(
            f"the rows of one key of {self.parts.master.describe().name} have more than "
            f"{show_bytes(limit)}, all that is free in a budget of "
            f"{show_bytes(self.parts.ledger.budget)}; give memory={least}",
            least,
        )

    def _keys(self, slots: I32, codes: I64) -> pa.RecordBatch:
        """The distinct keys of some waiting rows, in the master's types."""
        if is_natural(self._types):
            return pa.RecordBatch.from_arrays(
                [values_of(np.unique(codes), self._types[0])], names=list(self._names)
            )
        backlog = self.parts.backlog
        arrays = backlog.chunks.gather(backlog.loc[slots], self.parts.output.shape.keys)
        table = pa.Table.from_arrays(arrays, names=list(self._names))
        distinct = table.group_by(list(self._names)).aggregate([]).select(list(self._names))
        return distinct.combine_chunks().to_batches()[0]


class FetchNow(Fetch, word="fetch_now"):
    """inlj and cinlj: rows are answered in the call that brings them."""

    answers_at_once = True
    borrows = False

    def room(self) -> int:
        return self.parts.backlog.free_rows
