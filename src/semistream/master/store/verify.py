"""Check a store: every byte against its checksum, and that rows lie where readers look for them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import DamagedError
from ...keys import codes_of
from ..base import Pages
from .index import one_chunk
from .place import DATA
from .read import StorePages
from .write import Progress, frame_crc

I64 = NDArray[np.int64]


def verify(store: StorePages, progress: Progress | None = None) -> int:
    """Returns the number of pages; raises DamagedError at the first fault."""
    index, done = store.index, 0
    shards = [shard for run in store.manifest.runs for shard in run.shards]
    for i, (shard, file) in enumerate(zip(shards, store.files, strict=True)):
        mine = np.flatnonzero(index.shard == i)
        order = mine[np.argsort(index.offset[mine])]
        if frame_crc(file, index.offset[order], index.length[order]) != shard.frame_crc:
            raise DamagedError(f"{file.path} is damaged outside its pages; rebuild the store")
    visible = 0
    for run, (begin, end) in enumerate(zip(index.runs, index.runs[1:], strict=False)):
        codes: list[I64] = []
        for page in range(begin, end):
            visible += _check_page(store, page, codes)
            done += 1
            if progress is not None:
                progress(done)
        if run:
            _check_claims(store, run, np.concatenate([np.zeros(0, np.int64), *codes]))
    for page in range(index.keyed, len(index.rows)):
        visible += len(store.table(store.read(np.array([page], np.int64), store.manifest.key)))
        done += 1
        if progress is not None:
            progress(done)
    if visible != store.manifest.rows:
        raise DamagedError(
            f"{store.place}: version {store.manifest.version} says it has {store.manifest.rows} "
            f"rows, but {visible} can be seen; rebuild the store"
        )
    return done


def _check_page(store: StorePages, page: int, before: list[I64]) -> int:
    """Codes in order and where the index says; returns how many rows can be seen."""
    pages: Pages = store.read(np.array([page], np.int64), store.manifest.key)
    rows = pages.columns.gather(np.arange(int(pages.rows[0]), dtype=np.int64))
    codes = codes_of(rows)
    in_order = bool((codes[1:] >= codes[:-1]).all())
    in_order &= not before or before[-1][-1] <= codes[0]
    kept = codes[0] == store.index.first[page] and codes[-1] == store.index.last[page]
    if not (in_order and kept):
        raise DamagedError(f"{store.place}: page {page} is not in code order; rebuild the store")
    before.append(np.array(codes))
    stale = store.stale(pages)
    return len(codes) if stale is None else int((~stale).sum())


def _check_claims(store: StorePages, run: int, codes: I64) -> None:
    """A change must claim all codes it has rows of, with their number, in order."""
    assert store.index.claims is not None
    table: pa.Table = store.index.claims.tables[run - 1]
    claimed = np.asarray(one_chunk(table["code"]))
    rows = np.asarray(one_chunk(table["rows"]))
    distinct, count = np.unique(codes, return_counts=True)
    has = rows > 0
    sound = bool((claimed[1:] > claimed[:-1]).all())
    sound = sound and np.array_equal(claimed[has], distinct)
    if not (sound and np.array_equal(rows[has], count)):
        name = store.manifest.runs[run].id
        raise DamagedError(
            f"{store.place}/{DATA}/{name}.claims does not fit the run's pages; rebuild the store"
        )
