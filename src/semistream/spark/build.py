"""build_store: sort a DataFrame by key in Spark and write a store from its tasks.

Rows never pass through the driver: each task writes one shard of a range of codes and returns a few
numbers about it. The store appears, whole, when the driver publishes the manifest; a job that fails
leaves no store.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ..errors import SpecError, StoreError
from ..master import Store
from ..master.storage import Place, place_at
from ..master.store import (
    CODE_COLUMN,
    PAGE_BYTES,
    Run,
    StoreDesign,
    clean_run,
    design,
    join_parts,
    publish,
    versions,
    writing,
)
from .cause import told_plainly
from .columns import Columns
from .frames import check_frame, is_stream
from .schema import spark_type
from .ship import shipped
from .task import RESULT, CodeTask, ShardTask, part_of, writing_to

Report = Callable[[int, float], None]  # (bytes written so far, seconds)

MOST = 1 << 20  # partitions
Watch = Callable[[str], AbstractContextManager[None]]  # gets the run's name, is open meanwhile


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
    if versions(place):
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


# --- a DataFrame becomes a run of a store, one shard per task ----------------------------------


@dataclass(frozen=True)
class Written:
    run: Run
    more: int  # rows that the store has more (or fewer) with it, but for those without a key
    nulls: int  # rows without a key that were met


def check_partitions(partitions: object) -> None:
    """Of a store's run, and of a shuffle."""
    if partitions is None:
        return
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 < partitions < MOST:
        raise SpecError(f"partitions={partitions!r}: give a number from 1 on, or leave it out")


def write_run(
    rows: Columns,
    place: Place,
    plan: StoreDesign,
    kind: str = "base",
    locator: dict[str, Any] | None = None,
    partitions: int | None = None,
    watch: Watch = lambda _: nullcontext(),
) -> Written:
    """Sort rows by code, in ranges, and let each task write its own. Of a change, `rows` are the
    columns that `fitting` has chosen, and `locator` is of the version that is changed."""
    run = uuid.uuid4().hex
    code = F.col(CODE_COLUMN).asc_nulls_last()
    coded = _with_code(rows, plan)
    ranged = (
        coded.repartitionByRange(code)
        if partitions is None
        else coded.repartitionByRange(partitions, code)
    )
    task = ShardTask(place.locator(), run, plan, kind, locator)
    with watch(run), told_plainly():
        found = ranged.sortWithinPartitions(code).mapInArrow(shipped(task), RESULT).collect()
    results = [json.loads(row.result) for row in found]
    with writing_to(str(place.data), "the driver"):
        parts = [part for result in results if (part := part_of(place, result)) is not None]
        joined = join_parts(place, run, plan, kind, parts)
        clean_run(place, joined)
    more, nulls = (sum(result[name] for result in results) for name in ("more", "nulls"))
    return Written(joined, more, nulls)


def _with_code(rows: Columns, plan: StoreDesign) -> DataFrame:
    """Columns by position, so that no name can be in the way, and the code column behind them: in
    SQL where the code is an integer key, else by our own hash."""
    name, names = plan.key[0], rows.schema.names
    kind, have = plan.schema.field(name).type, rows.arrow.field(name).type
    df, key = rows.by_position, F.col(f"c{names.index(name)}")
    code: Column | None = None
    if plan.natural and pa.types.is_integer(kind) and pa.types.is_integer(have):
        code = key.cast("long")
    elif plan.natural and pa.types.is_date32(kind) and pa.types.is_date32(have):
        code = F.unix_date(key).cast("long")
    if code is not None:
        return df.withColumn(CODE_COLUMN, code)
    fields = [*df.schema.fields, StructField(CODE_COLUMN, LongType())]
    places = tuple(names.index(each) for each in plan.key)
    return df.mapInArrow(shipped(CodeTask(plan, places)), StructType(fields))


def fitting(df: DataFrame, plan: StoreDesign, kind: str) -> Columns:
    """The columns of `df` that a change of this kind needs, in order; types must be the store's."""
    columns = Columns(df)
    have, names = columns.arrow, list(plan.key) if kind == "delete" else plan.schema.names
    missing = [name for name in names if name not in have.names]
    extra = [] if kind == "delete" else [name for name in have.names if name not in names]
    if missing or extra or len(set(have.names)) < len(have.names):
        raise SpecError(
            f"the DataFrame has columns {have.names}, the store needs {names}: select these"
        )
    for name in names:
        found, wanted = have.field(name).type, spark_type(name, plan.schema.field(name).type)
        zoned = pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted)
        if found != wanted and not (zoned and (found.tz is None) == (wanted.tz is None)):
            raise SpecError(
                f"column {name!r} is {found} in the DataFrame and {plan.schema.field(name).type} "
                "in the store; cast it first"
            )
    columns.check_keys(plan.key, "DataFrame")
    return columns.only(names)
