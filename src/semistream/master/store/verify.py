"""Check a store: every byte against its checksum, and that rows lie where readers look for them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...errors import DamagedError, DuplicateKeyError
from ...kernels.arrays import I64
from ...rows.keys import codes_of
from ...rows.layout import layouts
from ...safety import UNREADABLE
from ..base import Pages
from ..storage import DATA
from .bounds import unsound
from .duplicates import Duplicates
from .index import one_chunk
from .read import StorePages
from .write import Progress, buffer_offsets, frame_crc


def load_codes(address: int, count: int) -> I64:
    """The codes as a page has them."""
    return np.frombuffer(pa.foreign_buffer(address, 8 * count), np.int64)


def verify(store: StorePages, progress: Progress | None = None) -> int:
    """Returns the number of pages; raises DamagedError at the first fault."""
    index, done = store.index, 0
    shards = [shard for run in store.manifest.runs for shard in run.shards]
    for i, (shard, file) in enumerate(zip(shards, store.files, strict=True)):
        mine = np.flatnonzero(index.shard == i)
        order = mine[np.argsort(index.offset[mine])]
        offset, length = index.offset[order], index.length[order]
        if (offset[:-1] + length[:-1] != offset[1:]).any():
            raise unsound(str(file.path), "its pages do not follow each other")
        if frame_crc(file, offset, length) != shard.frame_crc:
            raise unsound(str(file.path), "its bytes outside of pages have a wrong checksum")
    visible = 0
    for run, (begin, end) in enumerate(zip(index.runs, index.runs[1:], strict=False)):
        codes: list[I64] = []
        doubles = Duplicates(store.design) if store.manifest.unique else None
        for page in range(begin, end):
            visible += _check_page(store, page, codes, doubles)
            done += 1
            if progress is not None:
                progress(done)
        _check_unique(store, doubles)
        if run:
            _check_claims(store, run, np.concatenate([np.zeros(0, np.int64), *codes]))
    for page in range(index.keyed, len(index.rows)):
        pages = store.read(np.array([page], np.int64), store.manifest.key)
        _check_buffers(store, page, pages.keep)
        visible += len(store.table(pages))
        done += 1
        if progress is not None:
            progress(done)
    if visible != store.manifest.rows:
        raise DamagedError(
            f"{store.place}: version {store.manifest.version} says it has {store.manifest.rows} "
            f"rows, but {visible} can be seen; rebuild the store"
        )
    return done


def _check_page(store: StorePages, page: int, before: list[I64], doubles: Duplicates | None) -> int:
    """Codes in order and where the index says; returns how many rows can be seen."""
    pages: Pages = store.read(np.array([page], np.int64), store.manifest.key)
    _check_buffers(store, page, pages.keep)
    rows = pages.columns.gather(np.arange(int(pages.rows[0]), dtype=np.int64))
    codes = codes_of(rows)
    in_order = bool((codes[1:] >= codes[:-1]).all())
    in_order &= not before or before[-1][-1] <= codes[0]
    kept = codes[0] == store.index.first[page] and codes[-1] == store.index.last[page]
    kept &= np.array_equal(codes, load_codes(int(pages.codes[0]), len(codes)))
    if not (in_order and kept):
        raise store.damaged(page, "its codes are not those of its keys, in order")
    before.append(np.array(codes))
    stale = store.stale(pages)
    seen = np.ones(len(codes), np.bool_) if stale is None else ~stale
    if doubles is not None and seen.any():
        keys = pa.RecordBatch.from_arrays(rows, schema=pages.columns.schema)
        doubles.seen(codes[seen], keys.filter(pa.array(seen)))
    return int(seen.sum())


def _check_unique(store: StorePages, doubles: Duplicates | None) -> None:
    """A key's rows are all in one run, so it is enough to look at each run by itself."""
    try:
        if doubles is not None:
            doubles.check()
    except DuplicateKeyError as error:
        raise DamagedError(
            f"{store.place} promises one row per key, but {error.count} keys have more, such as "
            f"{error.key}; rebuild the store"
        ) from error


def _check_buffers(store: StorePages, page: int, message: pa.Buffer) -> None:
    """Values lie where the page itself says, and not only somewhere within it."""
    stored = store.design.stored
    said, size = store.index.buffers[page], message.size
    try:
        found = np.array(buffer_offsets(message, stored, layouts(stored)), np.int64)
    except UNREADABLE as error:
        raise store.damaged(page, str(error)) from error
    if not np.array_equal(np.where((said < 0) | (said > size), -1, said), found):
        raise store.damaged(page, "its values are not where the index says")


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
