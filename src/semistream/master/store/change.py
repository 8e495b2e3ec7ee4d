"""Changes of a store: append, upsert, delete, compact, restore. Each publishes a new version.

    append     rows are added to those that their keys have
    upsert     rows replace all that their keys had
    delete     keys lose their rows

A change becomes a run, and a run has all rows of every code that it claims. So a reader asks one
run per code, and writing looks up what is there: an append takes the present rows of its keys
along, and where codes are hashes, any change takes along rows of other keys with the same code.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ...errors import ConflictError, SpecError, StoreError
from ...kernels.arrays import I64
from ...rows.chunks import Chunks
from ...rows.sort import Sorter
from ..base import not_among
from ..find import find_rows
from ..storage import DATA, Place
from . import format as fmt
from .expire import keep_as_told
from .merge import merge, merge_from, no_rows
from .read import StorePages
from .run import NOTHING, PartWriter, RunWriter
from .write import Progress, plain_batch

PIECE_ROWS = 1 << 18
OLD_BYTES = 256 << 20


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
            raise null_keys(store.design.key, sum(map(len, sorter.null_rows)))
        done = 0
        for codes, piece in sorter.pieces(PIECE_ROWS):
            rows += write_piece(store, kind, writer, codes, piece)
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
    return publish_change(store, [] if nothing else [run], kind, rows, writer_batch)


def null_keys(key: Sequence[str], count: int) -> SpecError:
    return SpecError(
        f"{count} rows have a NULL in the key {list(key)}: a row without a key cannot "
        "be replaced later; drop these rows, or append them"
    )


# --- what a piece of a change means ---------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """What a run must have for some codes, and how many rows there are more (or fewer) then."""

    codes: list[I64]
    rows: list[pa.RecordBatch]
    gone: I64  # codes that are left without rows
    more: int


def write_piece(
    store: StorePages, kind: str, writer: PartWriter, codes: I64, rows: pa.RecordBatch
) -> int:
    """Write what becomes of some codes: `rows` are all rows of the change that have them, in code
    order. Returns how many rows the store has more (or fewer). Local writers and tasks of a
    cluster share this."""
    more = 0
    for part in _by_old_bytes(store, codes):
        piece = _PIECES[kind](store, codes[part], rows[part])
        _add_sorted(writer, piece.codes, piece.rows)
        if len(piece.gone):
            writer.claim(piece.gone)
        more += piece.more
    return more


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


def _append(store: StorePages, codes: I64, rows: pa.RecordBatch) -> _Piece:
    old_codes, old = find_rows(store, np.unique(codes), store.design.schema.names)
    return _Piece([old_codes, codes], [old, rows], NOTHING, len(rows))


def _upsert(store: StorePages, codes: I64, rows: pa.RecordBatch) -> _Piece:
    had, other_codes, others = _others(store, codes, rows)
    more = len(rows) + len(others) - len(had)
    return _Piece([other_codes, codes], [others, rows], NOTHING, more)


def _delete(store: StorePages, codes: I64, keys: pa.RecordBatch) -> _Piece:
    had, other_codes, others = _others(store, codes, keys)
    if len(had) == len(others):
        return _Piece([], [], NOTHING, 0)
    gone = np.setdiff1d(had, other_codes)
    return _Piece([other_codes], [others], gone, len(others) - len(had))


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
    return had, NOTHING, no_rows(store)


def _add_sorted(writer: PartWriter, codes: list[I64], rows: list[pa.RecordBatch]) -> None:
    """Rows from several sources, brought into code order."""
    every = np.concatenate([NOTHING, *codes])
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


# --- publishing -----------------------------------------------------------------------------------


def check_latest(store: StorePages) -> None:
    """A change of an old version would be refused in the end: say so at once."""
    newest = fmt.newest_manifest(store.place)
    if newest is None:
        raise StoreError(f"{store.place} has been deleted: it has no manifest; make a new store")
    if newest.id != store.manifest.id:
        raise fmt.conflict(store.place, store.manifest.version + 1)


def is_latest(store: StorePages) -> bool:
    """Whether there is no newer version, nor another one that was put in its place: a store built
    anew, or one that was set back and changed in another way."""
    newest = fmt.newest_manifest(store.place)
    return newest is None or newest.id == store.manifest.id


def publish_change(
    store: StorePages,
    new: list[fmt.Run],
    kind: str,
    rows: int,
    writer_batch: tuple[str, int] | None,
    merge_bytes: float = np.inf,
) -> fmt.Manifest:
    """Publish new runs (one or none) on top of this version, merged with older ones where these
    are small and all of them together have at most `merge_bytes`."""
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
    first = merge_from(manifest.runs, merge_bytes)
    if first < len(manifest.runs) - 1:
        try:
            merged = _merge(store, manifest, first)
        finally:
            for run in new:
                discard(store.place, run)
        new = [merged]
        manifest = replace(manifest, runs=[*manifest.runs[:first], merged])
    return publish(store.place, manifest, new)


def _merge(
    store: StorePages, manifest: fmt.Manifest, first: int, progress: Progress | None = None
) -> fmt.Run:
    """Files that are missing since someone else replaced this version, and it expired at once, are
    a conflict and no damage."""
    try:
        return merge(store, manifest, first, progress)
    except StoreError:
        check_latest(store)
        raise


def publish(place: Place, manifest: fmt.Manifest, new: list[fmt.Run]) -> fmt.Manifest:
    """Publish, and let versions go that the store does not keep; where someone else was first, the
    new runs go. Returns the manifest as it was published. The caller is known as a writer."""
    try:
        published = fmt.publish(place, manifest)
    except ConflictError:
        for run in new:
            discard(place, run)
        raise
    keep_as_told(place, published)
    return published


def compact(store: StorePages, progress: Progress | None = None) -> fmt.Manifest | None:
    """Bring all runs together into a new base; None where there is only a base."""
    check_latest(store)
    before = store.manifest
    if len(before.runs) == 1:
        return None
    base = _merge(store, before, 0, progress)
    manifest = replace(
        before, version=before.version + 1, runs=[base], created=int(time.time()),
        operation="compact",
    )  # fmt: skip
    return publish(store.place, manifest, [base])


def restore(store: StorePages, progress: Progress | None = None) -> fmt.Manifest | None:
    """Publish what an old version holds as the newest one; None where it is that. Its rows are
    written anew, since its own files may expire at any time."""
    before, highest = store.manifest, fmt.highest(store.place)
    if highest == before.version and is_latest(store):
        return None
    base = merge(store, before, 0, progress)
    manifest = replace(
        before, version=highest + 1, runs=[base], created=int(time.time()), operation="restore"
    )
    return publish(store.place, manifest, [base])


def retain(store: StorePages, keep: fmt.Keep | None) -> fmt.Manifest | None:
    """Publish the same rows with another rule about which versions stay; None: it is the rule."""
    check_latest(store)
    if keep == store.manifest.keep:
        keep_as_told(store.place, store.manifest)
        return None
    before, now = store.manifest, int(time.time())
    manifest = replace(
        before, version=before.version + 1, created=now, operation="retain", keep=keep
    )
    return publish(store.place, manifest, [])


def discard(place: Place, run: fmt.Run) -> None:
    """A run that no version will name."""
    for name in run.files:
        place.remove(f"{DATA}/{name}")
