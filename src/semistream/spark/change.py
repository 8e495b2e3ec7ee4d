"""Changes of a store from Spark: upsert, append and delete, from a DataFrame or from a stream.

Each task looks up what its range of codes has in the version that is changed, and writes a shard of
the new run. The driver joins the shards' indexes and publishes. Others may write meanwhile: where
they changed other keys the run fits their version just as well; where not, the work is done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from ..errors import ConflictError, SemiStreamError, SpecError
from ..master import Store, open_master
from ..master.store import format as fmt
from ..master.store.change import discard, null_keys, publish, publish_change
from ..master.store.expire import writing
from ..master.store.index import claimed
from ..master.store.place import Place, place_at
from ..master.store.write import design
from .frames import needs_writer, query_of
from .run import Written, fitting, write_run
from .schema import stream_schema

ATTEMPTS = 5
MERGE_BYTES = 1 << 30  # the most that the driver merges by itself; beyond it, Store.compact
WriterBatch = tuple[str, int]


def upsert_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    writer_batch: WriterBatch | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Replace all rows of the keys in `df` by its rows; keys that are new are added.

    Where a key is in `df` more than once, all its rows are kept. With `key`, a store that does not
    exist is made; one that exists must have this key. `writer_batch=(name, number)` makes it happen
    once: where this or a later batch of that writer is in the store already, nothing is changed.
    Returns the store at the new version.
    """
    place = place_at(path, storage_options)
    return _change(df, place, "upsert", key, writer_batch, partitions)


def append_to_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    writer_batch: WriterBatch | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Add the rows of `df` to those that their keys have; see `upsert_store`."""
    place = place_at(path, storage_options)
    return _change(df, place, "append", None, writer_batch, partitions)


def delete_from_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    writer_batch: WriterBatch | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Remove all rows of the keys in `df`; other columns of `df` do not matter. Keys that are not
    there, and NULLs, change nothing; see `upsert_store`."""
    place = place_at(path, storage_options)
    return _change(df, place, "delete", None, writer_batch, partitions)


_KINDS: dict[str, Callable[..., Store]] = {
    "upsert": upsert_store,
    "append": append_to_store,
    "delete": delete_from_store,
}


def upsert_into(
    path: str | os.PathLike[str], kind: str = "upsert", writer: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: every micro-batch changes the store, once, however often it is replayed.
    `kind` may also be "append" or "delete"; options are those of `upsert_store`. The store
    remembers micro-batches by the query's id, or by the name `writer`, which Spark Connect needs;
    two queries, or two checkpoints, with one name would take each other's work for done."""
    if kind not in _KINDS:
        raise SpecError(f"kind={kind!r}: choose one of {list(_KINDS)}")

    if writer is None:
        needs_writer("upsert_into(path)")

    def write(df: DataFrame, batch: int) -> None:
        name = writer or query_of(df, "upsert_into(path)")
        try:
            _KINDS[kind](df, path, writer_batch=(name, batch), **options).close()
        except SemiStreamError as error:  # the query's error shows the whole stack of this thread
            raise error.with_traceback(None) from None

    return write


def _change(
    df: DataFrame,
    place: Place,
    kind: str,
    key: str | Sequence[str] | None,
    writer_batch: WriterBatch | None,
    partitions: int | None,
) -> Store:
    if df.isStreaming:
        raise SpecError(f"a stream cannot {kind} by itself; use foreachBatch(upsert_into(path))")
    for attempt in range(ATTEMPTS):
        try:
            if key is not None and not fmt.versions(place):
                return _create(df, place, key, writer_batch, partitions)
            return _change_once(df, place, kind, key, writer_batch, partitions)
        except ConflictError:
            if attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _create(
    df: DataFrame,
    place: Place,
    key: str | Sequence[str],
    writer_batch: WriterBatch | None,
    partitions: int | None,
) -> Store:
    plan = design(stream_schema(df), key)
    with place.new_store(), writing(place, new=True):
        written = write_run(df, place, plan, partitions=partitions)
        if written.nulls:
            raise null_keys(plan.key, written.nulls)
        writers = {} if writer_batch is None else dict([writer_batch])
        publish(place, replace(plan.manifest([written.run]), writers=writers), [written.run])
    return Store.open(place)


def _change_once(
    df: DataFrame,
    place: Place,
    kind: str,
    key: str | Sequence[str] | None,
    writer_batch: WriterBatch | None,
    partitions: int | None,
) -> Store:
    store = Store.open(place)
    if key is not None:
        open_master(store, key)  # which must be the store's
    if _done(store, writer_batch):
        return store
    rows = fitting(df, store.design, kind)
    with writing(place):
        try:
            written = write_run(rows, place, store.design, kind, store.locator(), partitions)
        except Exception as error:
            if store.version in fmt.versions(place):
                raise
            # It was replaced and expired while tasks had yet to open it.
            raise fmt.conflict(place, store.version + 1) from error
        if kind == "upsert" and written.nulls:
            raise null_keys(store.design.key, written.nulls)
        return _publish(store, kind, written, writer_batch)


def _done(store: Store, writer_batch: WriterBatch | None) -> bool:
    return (
        writer_batch is not None
        and store.manifest.writers.get(writer_batch[0], -1) >= (writer_batch[1])
    )


def _publish(store: Store, kind: str, written: Written, writer_batch: WriterBatch | None) -> Store:
    run, place = written.run, store.place
    nothing = not run.claims and not run.rows
    store = _fits(store, run)
    if nothing or _done(store, writer_batch):
        discard(place, run)
        if writer_batch is None or _done(store, writer_batch):
            return store
    rows = store.manifest.rows + written.more + (written.nulls if kind == "append" else 0)
    new = [] if nothing else [run]
    manifest = publish_change(store, new, kind, rows, writer_batch, MERGE_BYTES)
    return Store(place, manifest, store.io)


def _fits(store: Store, run: fmt.Run) -> Store:
    """The newest version, if a run that changes `store` can lie on top of it unchanged: then what
    others did meanwhile concerns other codes."""
    newest = store.newest()
    changed = newest.changed_since(store)
    if changed is None or (
        len(changed) and len(np.intersect1d(changed, claimed(store.place, run)))
    ):
        discard(store.place, run)
        raise fmt.conflict(store.place, store.version + 1)
    return newest
