"""The scan with a condition: meshjoin for any question (Polyzotis et al., section 3.3).

Residual   an equality finds pairs, the condition drops some of them
Nested     no equality: every waiting row with every row of the pages read, a tile at a time
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from ..errors import SpecError
from ..kernels.arrays import I32, I64
from ..master import Pages
from ..rows.failures import Failure, attempt
from .base import Parts
from .scan import Scan

TILE_BYTES = 256  # of memory per pair, columns of both sides included


class Residual(Scan, word="residual"):
    def _pairs(self, pages: Pages, valid: I64) -> Iterator[tuple[I32, I64] | Failure]:
        step = self._tile()
        for found in super()._pairs(pages, valid):
            if isinstance(found, Failure):
                yield found
                continue
            slots, loc = found
            for at in range(0, len(slots), step):
                some = slots[at : at + step], pages, loc[at : at + step]
                yield (yield from attempt(partial(self._kept, *some)))

    def _tile(self) -> int:
        """Pairs looked at together, within the memory for output."""
        return max(64, min(1 << 16, self.parts.output.limit // TILE_BYTES))

    def _kept(self, slots: I32, pages: Pages, loc: I64) -> tuple[I32, I64]:
        """The pairs that satisfy the condition."""
        shape, backlog = self.parts.output.shape, self.parts.backlog
        condition = shape.condition
        assert condition is not None
        left = backlog.chunks.gather(backlog.loc[slots], shape.stream_asked)
        right = pages.columns.gather(loc, shape.master_asked)
        keep = condition.mask(
            pa.RecordBatch.from_arrays(left, names=list(condition.stream_columns)),
            pa.RecordBatch.from_arrays(right, names=list(condition.master_columns)),
        )
        return slots[keep], loc[keep]


class Nested(Residual, word="nested"):
    linked = False

    def __init__(self, parts: Parts) -> None:
        if parts.params.release == "match":
            raise SpecError(
                "release='match' needs an equality: a row may satisfy a condition with many rows "
                "of the master; use release='cycle'"
            )
        super().__init__(parts)

    def _pairs(self, pages: Pages, valid: I64) -> Iterator[tuple[I32, I64] | Failure]:
        waiting, step = self.parts.backlog.oldest_first(), self._tile()
        loc = [(np.int64(p) << 32) | np.arange(n) for p, n in enumerate(pages.rows)]
        rows: I64 = np.concatenate(loc) if loc else np.zeros(0, np.int64)
        stale = self.parts.master.stale(pages)
        rows = rows if stale is None else rows[~stale]
        rows = rows[rows >> 32 >= self._first]
        across = max(1, min(len(waiting), step))
        down = max(1, step // across)
        for a in range(0, len(waiting), across):
            some = waiting[a : a + across]
            for b in range(0, len(rows), down):
                part = rows[b : b + down]
                pairs = np.tile(some, len(part)), pages, np.repeat(part, len(some))
                yield (yield from attempt(partial(self._kept, *pairs)))
