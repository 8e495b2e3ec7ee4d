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
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ..errors import StoreError
from ..master import Store
from ..master import store_format as fmt
from ..master.place import place_at
from ..master.store_expire import writing
from ..master.store_write import PAGE_BYTES, Design, design, write_index
from .build_task import CodeTask, ShardTask
from .schema import stream_schema

Report = Callable[[int, float], None]  # (bytes written so far, seconds)
_RESULT = "shard string, bytes long, frame_crc long, index string, null_pages int, unique boolean"


def build_store(
    df: DataFrame,
    path: str | os.PathLike[str],
    key: str | Sequence[str],
    *,
    partitions: int | None = None,
    page_bytes: int = PAGE_BYTES,
    progress: bool | Report = False,
) -> Store:
    """Write `df` as version 1 of a new store, sorted by `key`, one shard per Spark task.

    `path` must be writable from every executor. `progress=True` prints a line per second;
    a function gets (bytes written, seconds).
    """
    place = place_at(path)
    if fmt.versions(place):
        raise StoreError(f"{place} is a store already; choose another path or delete it first")
    plan = design(stream_schema(df), key, page_bytes)
    data = place.data.absolute()
    run = uuid.uuid4().hex
    coded = _with_code(df, plan)
    code = F.col(fmt.CODE_COLUMN).asc_nulls_last()
    ranged = (
        coded.repartitionByRange(code)
        if partitions is None
        else coded.repartitionByRange(partitions, code)
    )
    shards = ranged.sortWithinPartitions(code).mapInArrow(ShardTask(str(data), run, plan), _RESULT)
    with place.new_store(), writing(place):
        with _Watch(data, run, progress):
            rows = shards.collect()
        manifest = _manifest(data, run, plan, [_Shard(*row) for row in rows])
        place.deliver(manifest.runs[0].files)
        fmt.publish(place, manifest)
    return Store.open(path)


def _with_code(df: DataFrame, plan: Design) -> DataFrame:
    """Add the code column: in SQL where the code is an integer key, else by our own hash."""
    name = plan.key[0]
    kind = plan.schema.field(name).type
    code: Column | None = None
    if plan.natural and pa.types.is_integer(kind):
        code = F.col(f"`{name}`").cast("long")
    elif plan.natural and pa.types.is_date(kind):
        code = F.unix_date(F.col(f"`{name}`")).cast("long")
    if code is not None:
        return df.withColumn(fmt.CODE_COLUMN, code)
    fields = [*df.schema.fields, StructField(fmt.CODE_COLUMN, LongType())]
    return df.mapInArrow(CodeTask(plan), StructType(fields))


@dataclass(frozen=True)
class _Shard:
    name: str
    bytes: int
    frame_crc: int
    index: str
    null_pages: int
    unique: bool


def _manifest(data: Path, run: str, plan: Design, shards: list[_Shard]) -> fmt.Manifest:
    """Put the shards in code order and write the run's index."""
    loaded = []
    for shard in shards:
        with pa.memory_map(str(data / shard.index)) as source:
            loaded.append((shard, pa.ipc.open_file(source).read_all()))
    loaded = [(shard, table) for shard, table in loaded if table.num_rows]

    def place(item: tuple[_Shard, pa.Table]) -> tuple[bool, int]:
        shard, table = item
        return table.num_rows == shard.null_pages, int(table["first"][0].as_py())

    loaded.sort(key=place)
    parts = []
    for number, (shard, table) in enumerate(loaded):
        numbered = pa.array([number] * table.num_rows, pa.int64())
        table = table.set_column(table.column_names.index("shard"), "shard", numbered)
        entry = fmt.Shard(shard.name, shard.bytes, shard.frame_crc)
        parts.append((entry, table, shard.null_pages, shard.unique))
    return plan.manifest([write_index(data, run, plan, parts)])


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
