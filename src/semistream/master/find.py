"""Find the rows of some codes in any master with an index, a block of pages at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..kernels import search
from ..kernels.arrays import I32, I64
from ..rows.chunks import group_rows, one_batch

if TYPE_CHECKING:
    from .base import Master, Pages

BLOCK_BYTES = 32 << 20


def find_rows(
    master: Master, codes: I64, columns: Sequence[str], block_bytes: int = BLOCK_BYTES
) -> tuple[I64, pa.RecordBatch]:
    """All rows of the given codes (sorted, distinct), and the code of each row. Where pages are
    read, `block_bytes` of them at a time."""
    low, high = master.seek(codes)
    some = low < high
    codes, low, high = codes[some], low[some], high[some]
    view = master.view(columns)
    if view is not None:
        wanted = np.zeros(len(view.rows), np.bool_)
        search.mark_pages(low, high, wanted)
        master.touch(wanted)
        found = [_matches(view, codes, low, high)]
    else:
        order = np.argsort(low, kind="stable")  # pages in file order, whichever run they are of
        codes, low, high = codes[order], low[order], high[order]
        found = list(_blocks(master, codes, low, high, columns, block_bytes))
    schema = pa.schema([master.describe().schema.field(name) for name in columns])
    batches = [pa.RecordBatch.from_arrays(arrays, schema=schema) for _, arrays in found]
    rows = one_batch(pa.Table.from_batches(batches, schema))
    return np.concatenate([np.zeros(0, np.int64), *(c for c, _ in found)]), rows


def page_blocks(master: Master, low: I32, high: I32, max_bytes: int) -> Iterator[I64]:
    """The pages of some ranges [low, high), ascending, in blocks of about `max_bytes`."""
    wanted = np.zeros(master.describe().pages, np.bool_)
    search.mark_pages(low, high, wanted)
    numbers = np.flatnonzero(wanted).astype(np.int64)
    ends = np.cumsum(master.page_bytes(numbers))
    at = 0
    while at < len(numbers):
        done = int(ends[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, done + max_bytes, "right")))
        if master.block_pages is not None:
            stop = min(stop, at + master.block_pages)
        yield numbers[at:stop]
        at = stop


def _blocks(
    master: Master, codes: I64, low: I32, high: I32, columns: Sequence[str], block_bytes: int
) -> Iterator[tuple[I64, list[pa.Array]]]:
    for numbers in page_blocks(master, low, high, block_bytes):
        a = int(np.searchsorted(high, numbers[0], "right"))
        b = int(np.searchsorted(low, numbers[-1], "right"))
        here_low = np.searchsorted(numbers, low[a:b], "left").astype(np.int32)
        here_high = np.searchsorted(numbers, high[a:b], "left").astype(np.int32)
        yield _matches(master.read(numbers, columns), codes[a:b], here_low, here_high)


def _matches(pages: Pages, codes: I64, low: I32, high: I32) -> tuple[I64, list[pa.Array]]:
    """The rows of sorted codes within a block, copied out of it."""
    start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
    search.match_sorted(codes, low, high, *pages.bounds, pages.codes, pages.rows, start, count)
    here = count > 0
    loc = group_rows(pages.columns, start[here], count[here])
    return np.repeat(codes[here], count[here]), pages.columns.gather(loc)
