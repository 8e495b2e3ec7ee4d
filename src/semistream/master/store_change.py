"""Changes of a store: append, upsert, delete, compact. Each publishes a new version.

    append     rows are added to those that their keys have
    upsert     rows replace all that their keys had
    delete     keys lose their rows

A change becomes a run, and a run has all rows of every code that it claims. So a reader asks one
run per code, and writing looks up what is there: an append takes the present rows of its keys
along, and where codes are hashes, any change takes along rows of other keys with the same code.

Small runs would pile up. A run is therefore merged with older ones that are not more than twice
its size, so that n changes leave about log2(n) runs, each row having been copied as often.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import Chunks, one_batch
from ..errors import ConflictError, SpecError, StoreError
from ..keys import codes_of
from . import store_format as fmt
from .base import not_among
from .finding import find_rows
from .place import DATA, Place
from .sorting import Sorter
from .store_read import StorePages
from .store_write import Progress, RunWriter, plain_batch

I64 = NDArray[np.int64]
PIECE_ROWS = 1 << 18
MERGE_BYTES = 32 << 20
OLD_BYTES = 256 << 20
NOTHING = np.zeros(0, np.int64)


def change(
    store: StorePages,
    kind: str,
    batches: Iterable[pa.RecordBatch],
    spill_bytes: int,
    writer_batch: tuple[str, int] | None = None,
    progress: Progress | None = None,
) -> fmt.Manifest | None:
    """Write a run and publish it on top of this version; None: there was nothing to change."""
    check_latest(store)
    schema = store.design.schema
    if kind == "delete":
        schema = pa.schema([schema.field(name) for name in store.design.key])
    sorter = Sorter(schema, store.design.key, spill_bytes, store.place.data)
    writer = RunWriter(store.place, store.design, kind)
    rows = store.manifest.rows
    try:
        for batch in batches:
            sorter.add(plain_batch(batch, schema))
        if kind == "upsert" and sorter.null_rows:
            raise _null_keys(store, sum(map(len, sorter.null_rows)))
        done = 0
        for codes, piece in sorter.pieces(PIECE_ROWS):
            for part in _by_old_bytes(store, codes):
                rows += _PIECES[kind](store, writer, codes[part], piece[part])
            done += len(codes)
            if progress is not None:
                progress(done)
        for piece in sorter.null_rows if kind == "append" else []:
            writer.add_null_keys(piece)
            rows += len(piece)
        run = writer.close()
    except BaseException:
        writer.abort()
        raise
    finally:
        sorter.close()
    nothing = not run.claims and not run.rows
    if nothing:
        discard(store.place, run)
    if nothing and writer_batch is None:
        return None
    return _publish_change(store, [] if nothing else [run], kind, rows, writer_batch)


def _by_old_bytes(store: StorePages, codes: I64) -> Iterator[slice]:
    """Cut a piece where it would bring more than OLD_BYTES of pages along, between codes."""
    heads = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1)) if len(codes) else NOTHING
    low, high = store.seek(codes[heads])
    size = np.zeros(len(heads), np.int64)
    ends = np.concatenate([[0], np.cumsum(store.index.length)])
    run = np.searchsorted(store.runs, low, "right")
    for mine in [np.flatnonzero(run == r) for r in np.unique(run)]:  # a page counts once
        before = np.concatenate([[0], np.maximum.accumulate(high[mine])[:-1]])
        size[mine] = np.maximum(0, ends[high[mine]] - ends[np.maximum(low[mine], before)])
    cut = np.flatnonzero(np.diff(np.cumsum(size) // OLD_BYTES, prepend=0))
    for a, b in pairwise([0, *heads[cut], len(codes)]):
        if b > a:
            yield slice(int(a), int(b))


def _null_keys(store: StorePages, count: int) -> SpecError:
    return SpecError(
        f"{count} rows have a NULL in the key {list(store.design.key)}: a row without a key cannot "
        "be replaced later; drop these rows, or append them"
    )


# --- what a piece of a change means: how many rows there are more (or fewer) ---------------------


def _append(store: StorePages, writer: RunWriter, codes: I64, rows: pa.RecordBatch) -> int:
    distinct = np.unique(codes)
    old_codes, old = find_rows(store, distinct, store.design.schema.names)
    _add_sorted(writer, [old_codes, codes], [old, rows])
    return len(rows)


def _upsert(store: StorePages, writer: RunWriter, codes: I64, rows: pa.RecordBatch) -> int:
    had, other_codes, others = _others(store, codes, rows)
    _add_sorted(writer, [other_codes, codes], [others, rows])
    return len(rows) + len(others) - len(had)


def _delete(store: StorePages, writer: RunWriter, codes: I64, keys: pa.RecordBatch) -> int:
    had, other_codes, others = _others(store, codes, keys)
    if len(had) > len(others):
        _add_sorted(writer, [other_codes], [others])
        writer.claim(np.setdiff1d(had, other_codes))
    return len(others) - len(had)


_PIECES = {"append": _append, "upsert": _upsert, "delete": _delete}


def _others(store: StorePages, codes: I64, keys: pa.RecordBatch) -> tuple[I64, I64, pa.RecordBatch]:
    """The codes of all rows that share one with these keys, and of them the rows of other keys."""
    distinct, key = np.unique(codes), list(store.design.key)
    had, old = find_rows(store, distinct, key)
    if not store.design.natural and len(old):
        stay = not_among(old, [keys.column(name) for name in key])
        if stay.any():
            _, rows = find_rows(store, distinct, store.design.schema.names)
            return had, had[stay], rows.filter(pa.array(stay))
    return had, NOTHING, _empty(store)


def _empty(store: StorePages) -> pa.RecordBatch:
    schema = store.design.schema
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _add_sorted(writer: RunWriter, codes: list[I64], rows: list[pa.RecordBatch]) -> None:
    """Rows from several sources, brought into code order."""
    every = np.concatenate(codes)
    if len(every) == 0:
        return
    order = np.argsort(every, kind="stable")
    sources = [batch for batch in rows if len(batch)]
    chunks = Chunks.of(*sources)
    loc = np.concatenate(
        [(np.int64(c) << 32) | np.arange(len(b), dtype=np.int64) for c, b in enumerate(sources)]
    )
    arrays = chunks.gather(loc[order])
    writer.add(every[order], pa.RecordBatch.from_arrays(arrays, schema=sources[0].schema))


# --- publishing, merging --------------------------------------------------------------------------


def check_latest(store: StorePages) -> None:
    """A change of an old version would be refused in the end: say so at once."""
    if not fmt.versions(store.place):
        raise StoreError(f"{store.place} has been deleted: it has no manifest; make a new store")
    if not is_latest(store):
        raise fmt.conflict(store.place, store.manifest.version + 1)


def is_latest(store: StorePages) -> bool:
    """Whether there is no newer version, and no other store that was built in its place."""
    known, mine = fmt.versions(store.place), store.manifest
    if not known or known[-1] != mine.version:
        return not known
    there = fmt.manifest_if_there(store.place, mine.version)
    return there is not None and there.store == mine.store


def _publish_change(
    store: StorePages,
    new: list[fmt.Run],
    kind: str,
    rows: int,
    writer_batch: tuple[str, int] | None,
) -> fmt.Manifest:
    before = store.manifest
    manifest = replace(
        before,
        version=before.version + 1,
        runs=before.runs + new,
        rows=rows,
        created=int(time.time()),
        operation=kind,
        writers=before.writers | ({} if writer_batch is None else dict([writer_batch])),
    )
    first = _merge_from(manifest.runs)
    if first < len(manifest.runs) - 1:
        merged = merge(store, manifest, first)
        for run in new:
            discard(store.place, run)
        new = [merged]
        manifest = replace(manifest, runs=[*manifest.runs[:first], merged])
    publish(store.place, manifest, new)
    return manifest


def publish(place: Place, manifest: fmt.Manifest, new: list[fmt.Run]) -> None:
    """Publish; where someone else was first, the new runs go."""
    try:
        fmt.publish(place, manifest)
    except ConflictError:
        for run in new:
            discard(place, run)
        raise


def _merge_from(runs: list[fmt.Run]) -> int:
    """The first of the newest runs that become one."""
    first = len(runs) - 1
    size = _size(runs[first])
    while first > 1 and _size(runs[first - 1]) <= 2 * size:
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
    whole = StorePages(store.place, manifest, "pread" if store.place.remote else "map")
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
        return NOTHING, _empty(whole)
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


def compact(store: StorePages, progress: Progress | None = None) -> fmt.Manifest | None:
    """Bring all runs together into a new base; None where there is only a base."""
    check_latest(store)
    if len(store.manifest.runs) == 1:
        return None
    base = merge(store, store.manifest, 0, progress)
    manifest = replace(
        store.manifest,
        version=store.manifest.version + 1,
        runs=[base],
        created=int(time.time()),
        operation="compact",
    )
    publish(store.place, manifest, [base])
    return manifest


def discard(place: Place, run: fmt.Run) -> None:
    """A run that no version will name."""
    for name in run.files:
        place.remove(f"{DATA}/{name}")
