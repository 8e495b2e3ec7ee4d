"""build_store: sort a DataFrame by key in Spark and write a store from its tasks.

Rows never pass through the driver: each task writes one shard of a range of codes and returns a few
numbers about it. The store appears, whole, when the driver publishes the manifest; a job that fails
leaves no store.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from ..errors import SpecError, StoreError
from ..master import Store
from ..master.store import format as fmt
from ..master.store.change import publish
from ..master.store.expire import writing
from ..master.store.place import place_at
from ..master.store.write import PAGE_BYTES, design
from .columns import Columns
from .frames import check_frame, is_stream
from .run import check_partitions, write_run

Report = Callable[[int, float], None]  # (bytes written so far, seconds)


def build_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    key: str | Sequence[str],
    *,
    partitions: int | None = None,
    page_bytes: int = PAGE_BYTES,
    progress: bool | Report = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Write `df` as version 1 of a new store, sorted by `key`, one shard per Spark task.

    `path` must be writable from every executor; `storage_options` are for s3://... and the like.
    `progress=True` prints a line per second; a function gets (bytes written, seconds).
    """
    check_frame(df)
    check_partitions(partitions)
    if is_stream(df):
        raise SpecError(
            "a store cannot be built from a stream, which has no end; build it from a batch, or "
            'let micro-batches make it: foreachBatch(upsert_into(path, key="..."))'
        )
    place = place_at(path, storage_options)
    if fmt.versions(place):
        raise StoreError(f"{place} is a store already; choose another path or delete it first")
    rows = Columns(df)
    plan = design(rows.arrow, key, page_bytes)
    rows.check_keys(plan.key, "DataFrame")
    data = place.data.absolute()
    with place.new_store(), writing(place, new=True):
        written = write_run(
            rows, place, plan, partitions=partitions, watch=lambda run: _Watch(data, run, progress)
        )
        publish(place, plan.manifest([written.run]), [written.run])
    return Store.open(place)


class _Watch:
    """Reports how much has been written while the job runs, by looking at the files."""

    def __init__(self, data: Path, run: str, progress: bool | Report) -> None:
        self._data, self._run = data, run
        self._report: Report | None = _print_line if progress is True else progress or None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if self._report is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._report is not None:
            self._thread.join()

    def _files(self) -> Iterator[int]:
        for file in self._data.iterdir():
            if self._run in file.name:
                try:
                    yield file.stat().st_size
                except FileNotFoundError:
                    continue

    def _watch(self) -> None:
        assert self._report is not None
        begin = time.monotonic()
        while not self._stop.wait(1.0):
            self._report(sum(self._files()), time.monotonic() - begin)


def _print_line(count: int, seconds: float) -> None:
    print(
        f"\r  building the store: {count / 1e6:8.1f} MB written, {seconds:4.0f} s",
        end="",
        file=sys.stderr,
        flush=True,
    )
