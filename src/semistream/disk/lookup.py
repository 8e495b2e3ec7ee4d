"""inlj's disk phase: one index lookup per row, in arrival order, answered at once.

Rows are not sorted and reads are not shared, as in the textbook: only consecutive rows that ask for
the same page share its read. That is the bound every other disk phase is measured against.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..kernels import search
from .sweep import Sweep

I32 = NDArray[np.int32]


class Lookup(Sweep):
    waits = False

    def step(self) -> Iterator[pa.RecordBatch]:
        backlog = self.parts.backlog
        slots = backlog.slots()
        slots = slots[np.argsort(backlog.loc[slots], kind="stable")]
        codes = backlog.codes[slots]
        low, high = np.empty(len(slots), np.int32), np.empty(len(slots), np.int32)
        master = self.parts.master
        search.page_of_each(codes, master.first, master.last, low, high)
        if self._view is not None:
            yield from self._each_mapped(slots, low, high)
            return
        cuts = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
        for run in np.split(slots, cuts):
            yield from self._answer(*self._sorted(run))

    def _each_mapped(self, slots: I32, low: I32, high: I32) -> Iterator[pa.RecordBatch]:
        view, backlog = self._view, self.parts.backlog
        assert view is not None
        wanted = np.zeros(len(view.rows), np.bool_)
        search.mark_pages(low, high, wanted)
        self.parts.master.touch(wanted)
        codes = backlog.codes[slots]
        start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        search.match_each(codes, low, high, view.codes, view.rows, start, count)
        matched = backlog.matched[slots]
        yield from self.parts.output.answer(
            backlog.chunks,
            backlog.loc[slots],
            view.columns,
            start,
            count,
            matched,
        )
        backlog.remove(slots)
