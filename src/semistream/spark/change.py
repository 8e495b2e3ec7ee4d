"""Changes of a store from Spark: upsert, append and delete, from a DataFrame or from a stream.

Each task looks up what its range of codes has in the version that is changed, and writes a shard of
the new run. The driver joins the shards' indexes and publishes. Others may write meanwhile: where
they changed other keys the run fits their version just as well; where not, the work is done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from ..errors import ConflictError, SemiStreamError, SpecError, StoreError
from ..master import Store, open_master
from ..master.storage import Place, place_at
from ..master.store import (
    Run,
    claimed,
    conflict,
    design,
    discard,
    null_keys,
    publish,
    publish_change,
    versions,
    writing,
)
from .build import Written, check_partitions, fitting, write_run
from .columns import Columns
from .frames import attempt_of, change_of, check_frame, is_stream, needs_writer
from .once import Once, check_name

ATTEMPTS = 5
MERGE_BYTES = 1 << 30  # the most that the driver merges by itself; beyond it, Store.compact
KINDS = ("upsert", "append", "delete")
CALL = "upsert_into(path)"
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
    once: where this or a later batch of that writer is in the store already, nothing is changed, so
    every change of a writer needs a number of its own. Returns the store at the new version.
    """
    asked = _Change(place_at(path, storage_options), "upsert", key, partitions)
    return _change(df, asked, writer_batch)


def append_to_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    writer_batch: WriterBatch | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Add the rows of `df` to those that their keys have; see `upsert_store`."""
    asked = _Change(place_at(path, storage_options), "append", None, partitions)
    return _change(df, asked, writer_batch)


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
    asked = _Change(place_at(path, storage_options), "delete", None, partitions)
    return _change(df, asked, writer_batch)


def upsert_into(
    path: str | os.PathLike[str],
    kind: str = "upsert",
    writer: str | None = None,
    *,
    name: str | None = None,
    key: str | Sequence[str] | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: every micro-batch changes the store, once, however often it is replayed.
    `kind` may also be "append" or "delete"; `key`, `partitions` and `storage_options` are those of
    `upsert_store`.

    One function may make several changes of a store. The store remembers each by its `name`, which
    is its kind unless you say otherwise; a second change of one name in a micro-batch is refused.
    And by the query's id, or by the name `writer`, which Spark Connect needs: two queries, or two
    checkpoints, with one writer would take each other's work for done."""
    if kind not in KINDS:
        raise SpecError(f"kind={kind!r}: choose one of {list(KINDS)}")
    if key is not None and kind != "upsert":
        raise SpecError(f'key= is for kind="upsert", which can make a store; "{kind}" needs none')
    check_partitions(partitions)
    check_name(name := kind if name is None else name)
    if writer is None:
        needs_writer(CALL)

    def write(df: DataFrame, batch: int) -> None:
        check_frame(df)
        asked = _Change(place_at(path, storage_options), kind, key, partitions)
        try:
            once = change_of(df, batch, writer, name, CALL, str(asked.place))
            _change_until_done(df, replace(asked, once=once)).close()
        except SemiStreamError as error:  # the query's error shows the whole stack of this thread
            raise error.with_traceback(None) from None

    return write


# --- the change itself ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    place: Place
    kind: str
    key: str | Sequence[str] | None
    partitions: int | None
    once: Once | None = None  # None: it happens as often as it is called

    def done(self, store: Store) -> bool:
        writers = store.manifest.writers
        return self.once is not None and self.once.done(self._identity(store), writers.get)

    def made(self, store: Store) -> Store:
        if self.once is not None:
            self.once.made(self._identity(store))
        return store

    @property
    def mark(self) -> WriterBatch | None:
        return None if self.once is None else (self.once.mark, self.once.number)

    def _identity(self, store: Store) -> str:
        """The store itself, by whatever path; and not a copy of its files."""
        path: str = self.place.locator()["path"]
        return f"{store.manifest.store} {path if self.place.remote else os.path.realpath(path)}"


def _change(df: DataFrame, asked: _Change, writer_batch: WriterBatch | None) -> Store:
    check_frame(df)
    match writer_batch:
        case None:
            return _change_until_done(df, asked)
        case (str(writer), int(number)) if not isinstance(number, bool):
            once = Once(writer, number, asked.kind, str(asked.place), attempt_of(df), None)
            return _change_until_done(df, replace(asked, once=once))
    raise SpecError(f'writer_batch={writer_batch!r}: give a name and a number, ("nightly", 42)')


def _change_until_done(df: DataFrame, asked: _Change) -> Store:
    check_partitions(asked.partitions)
    if is_stream(df):
        raise SpecError(
            f"a stream cannot {asked.kind} by itself; use foreachBatch(upsert_into(path))"
        )
    for attempt in range(ATTEMPTS):
        try:
            there = versions(asked.place)
            return asked.made(_change_once(df, asked) if there else _create(df, asked))
        except ConflictError:
            if attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _create(df: DataFrame, asked: _Change) -> Store:
    place = asked.place
    if asked.key is None:
        raise StoreError(
            f"{place} is not a store: it has no manifest; make one with build_store, or give "
            'upsert_store or upsert_into its key="..."'
        )
    rows = Columns(df)
    plan = design(rows.arrow, asked.key)
    rows.check_keys(plan.key, "DataFrame")
    with place.new_store(), writing(place, new=True):
        written = write_run(rows, place, plan, partitions=asked.partitions)
        if written.nulls:
            raise null_keys(plan.key, written.nulls)
        writers = {} if asked.mark is None else dict([asked.mark])
        publish(place, replace(plan.manifest([written.run]), writers=writers), [written.run])
    return Store.open(place)


def _change_once(df: DataFrame, asked: _Change) -> Store:
    place, kind = asked.place, asked.kind
    store = Store.open(place)
    if asked.key is not None:
        open_master(store, asked.key)  # which must be the store's
    if asked.done(store):
        return store
    rows = fitting(df, store.design, kind)
    with writing(place):
        try:
            written = write_run(rows, place, store.design, kind, store.locator(), asked.partitions)
        except Exception as error:
            if store.version in versions(place):
                raise
            # It was replaced and expired while tasks had yet to open it.
            raise conflict(place, store.version + 1) from error
        if kind == "upsert" and written.nulls:
            raise null_keys(store.design.key, written.nulls)
        return _publish(store, written, asked)


def _publish(store: Store, written: Written, asked: _Change) -> Store:
    run, place, kind = written.run, asked.place, asked.kind
    nothing = not run.claims and not run.rows
    store = _fits(store, run)
    done = asked.done(store)
    if nothing or done:
        discard(place, run)
        if asked.once is None or done:
            return store
    rows = store.manifest.rows + written.more + (written.nulls if kind == "append" else 0)
    new = [] if nothing else [run]
    manifest = publish_change(store, new, kind, rows, asked.mark, MERGE_BYTES)
    return Store(place, manifest, store.io)


def _fits(store: Store, run: Run) -> Store:
    """The newest version, if a run that changes `store` can lie on top of it unchanged: then what
    others did meanwhile concerns other codes."""
    newest = store.newest()
    changed = newest.changed_since(store)
    if changed is None or (
        len(changed) and len(np.intersect1d(changed, claimed(store.place, run)))
    ):
        discard(store.place, run)
        raise conflict(store.place, store.version + 1)
    return newest
