"""Runs of a store become one.

Small runs would pile up. A run is therefore merged with older ones that are not more than twice
its size, so that n changes leave about log2(n) runs, each row having been copied as often. A
compaction merges all of them into a new base.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...kernels.arrays import I64
from ...rows.chunks import Chunks, one_batch
from ...rows.keys import codes_of
from . import format as fmt
from .read import StorePages
from .run import NOTHING, RunWriter
from .write import Progress

MERGE_BYTES = 32 << 20


def merge_from(runs: list[fmt.Run], merge_bytes: float) -> int:
    """The first of the newest runs that become one."""
    first = len(runs) - 1
    size, left = _size(runs[first]), merge_bytes - runs[first].page_bytes
    while first > 1 and _size(runs[first - 1]) <= 2 * size:
        left -= runs[first - 1].page_bytes
        if left < 0:
            break
        first -= 1
        size += _size(runs[first])
    return first


def _size(run: fmt.Run) -> int:
    return max(run.rows, run.claims)


def merge(
    store: StorePages,
    manifest: fmt.Manifest,
    first: int,
    progress: Progress | None = None,
) -> fmt.Run:
    """Write the runs from `first` on as one; from 0 on, as a new base."""
    io = "pread" if store.place.remote else "map"
    whole = StorePages(store.place, manifest, io, like=store)
    writer = RunWriter(store.place, store.design, "merged" if first else "base")
    done = 0
    try:
        for codes, rows in _live(whole, first):
            writer.add(codes, rows)
            done += len(rows)
            if progress is not None:
                progress(done)
        for rows in _null_keys_of(whole, first):
            writer.add_null_keys(rows)
        if first and whole.index.claims is not None:
            writer.claim(_gone(whole, first))
        return writer.close()
    except BaseException:
        writer.abort()
        raise
    finally:
        whole.close()


def _gone(whole: StorePages, first: int) -> I64:
    """Codes that the newest of these runs to claim them leaves without rows."""
    assert whole.index.claims is not None
    runs = range(first, len(whole.manifest.runs))
    codes = np.unique(np.concatenate([whole.index.claims.codes(run) for run in runs]))
    gone: I64 = codes[whole.index.claims.owners(codes) < 0]
    return gone


def _live(whole: StorePages, first: int) -> Iterator[tuple[I64, pa.RecordBatch]]:
    """Rows of the runs from `first` on that no newer run replaced, in code order, by code ranges
    of about MERGE_BYTES."""
    index = whole.index
    begin = int(index.runs[first])
    firsts, lengths = index.first[begin : index.keyed], index.length[begin : index.keyed]
    order = np.argsort(firsts, kind="stable")
    steps = np.diff(np.cumsum(lengths[order]) // MERGE_BYTES, prepend=0) > 0
    cuts = np.unique(firsts[order][steps])
    low = np.iinfo(np.int64).min
    for high in [*cuts, None]:
        codes, batches = [], []
        for run in range(first, len(index.runs) - 1):
            some, rows = _range(whole, run, int(low), None if high is None else int(high))
            codes.append(some)
            batches.append(rows)
        every = np.concatenate([NOTHING, *codes])
        if len(every):
            order = np.argsort(every, kind="stable")
            together = one_batch(pa.Table.from_batches([b for b in batches if len(b)]))
            arrays = Chunks.of(together).gather(order)
            rows = pa.RecordBatch.from_arrays(arrays, schema=together.schema)
            yield every[order], rows
        low = high if high is not None else low


def _range(whole: StorePages, run: int, low: int, high: int | None) -> tuple[I64, pa.RecordBatch]:
    """Live rows of a run with low <= code < high."""
    begin, end = int(whole.index.runs[run]), int(whole.index.runs[run + 1])
    a = begin + int(np.searchsorted(whole.index.last[begin:end], low, "left"))
    b = end
    if high is not None:
        b = begin + int(np.searchsorted(whole.index.first[begin:end], high, "left"))
    if a >= b:
        return NOTHING, no_rows(whole)
    pages = whole.read(np.arange(a, b, dtype=np.int64), whole.design.schema.names)
    batch = one_batch(whole.table(pages))
    codes = codes_of([batch.column(name) for name in whole.design.key])
    keep = codes >= low
    if high is not None:
        keep &= codes < high
    return codes[keep], batch.filter(pa.array(keep))


def _null_keys_of(whole: StorePages, first: int) -> Iterator[pa.RecordBatch]:
    """Rows without a key; those of older runs stay where they are."""
    nulls = [run.null_pages for run in whole.manifest.runs]
    begin = whole.index.keyed + sum(nulls[:first])
    for page in range(begin, whole.index.keyed + sum(nulls)):
        pages = whole.read(np.array([page], np.int64), whole.design.schema.names)
        yield from whole.table(pages).to_batches()


def no_rows(store: StorePages) -> pa.RecordBatch:
    """A batch without rows, in the store's columns."""
    schema = store.design.schema
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
