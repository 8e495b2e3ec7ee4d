"""The contestants: one row of VARIANTS each, all of them a DataFrame in and a DataFrame out.

No peer is held back: each gets the settings that made it fastest here. Two findings shape the
list.

* Spark's plain join depends on the source. A file source states how many bytes a micro-batch has,
  so below 10 MB Spark broadcasts the batch by itself and `spark-join` is the expert's trick. Kafka
  and the other newer sources state no size: Spark then plans a sort-merge join, shuffles the whole
  master, and only afterwards notices that the batch was small. `spark-join-unsized` is that plan,
  obtained by telling the planner (but not the adaptive executor) nothing about sizes.
* `broadcast(stream)` as a hint in the streaming plan is as fast as joining inside `foreachBatch`,
  and keeps the sink free, so it is what the trick means here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from benchmarks.lib import workload
from benchmarks.spark.data import CORES
from semistream.spark import enrich

KEY = workload.KEY
Join = Callable[[DataFrame], DataFrame]

_MIB = 1 << 20


@dataclass(frozen=True)
class Setting:
    """What a variant may use: the master in both forms, and the memory ours is allowed per task."""

    spark: SparkSession
    rows: int
    master: Path
    store: Path
    memory: int

    def static(self) -> DataFrame:
        return self.spark.read.parquet(str(self.master))


@dataclass(frozen=True)
class Variant:
    """`open` prepares the join (caches, settings), yields it, and clears up.

    `scan` guesses the seconds per million master rows, only to tell how long a run will take.
    """

    name: str
    open: Callable[[Setting], AbstractContextManager[Join]]
    scan: float
    help: str
    joins: bool = True


@contextmanager
def _ours(setting: Setting) -> Iterator[Join]:
    yield lambda stream: enrich(
        stream, str(setting.store), on=KEY, how="inner", memory_per_task=setting.memory
    )


@contextmanager
def _spark_join(setting: Setting) -> Iterator[Join]:
    with _settings(setting.spark, _shuffle(setting.rows)):
        yield lambda stream: stream.join(setting.static(), KEY)


@contextmanager
def _spark_join_unsized(setting: Setting) -> Iterator[Join]:
    default = setting.spark.conf.get("spark.sql.autoBroadcastJoinThreshold") or ""
    unsized = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": default,
    }
    with _settings(setting.spark, _shuffle(setting.rows) | unsized):
        yield lambda stream: stream.join(setting.static(), KEY)


@contextmanager
def _shuffle_hash(setting: Setting) -> Iterator[Join]:
    with _settings(setting.spark, _shuffle(setting.rows)):
        yield lambda stream: stream.join(setting.static().hint("shuffle_hash"), KEY)


@contextmanager
def _broadcast_batch(setting: Setting) -> Iterator[Join]:
    yield lambda stream: setting.static().join(broadcast(stream), KEY)


@contextmanager
def _cached(setting: Setting) -> Iterator[Join]:
    # Faster to read uncompressed, for a quarter more memory.
    with _settings(setting.spark, {"spark.sql.inMemoryColumnarStorage.compressed": "false"}):
        static = setting.static().cache()
        static.count()  # caching is lazy; the timed batches must find it done
        try:
            yield lambda stream: static.join(broadcast(stream), KEY)
        finally:
            static.unpersist(blocking=True)


@contextmanager
def _ceiling(setting: Setting) -> Iterator[Join]:
    yield lambda stream: stream.mapInArrow(_widen, _joined_ddl(setting, stream))


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("ours", _ours, 0.0, "enrich() with the store on disk"),
        Variant("spark-join", _spark_join, 0.3, "stream.join(static), the plan left to Spark"),
        Variant(
            "spark-join-unsized", _spark_join_unsized, 0.9,
            "the same, planned as for a source that states no size, such as Kafka",
        ),
        Variant("shuffle-hash", _shuffle_hash, 0.9, "the same, with the shuffle_hash hint"),
        Variant(
            "broadcast-batch", _broadcast_batch, 0.3,
            "the expert's trick: static.join(broadcast(stream)), the master scanned, not shuffled",
        ),
        Variant("cached", _cached, 0.2, "that trick with the whole master in Spark's memory"),
        Variant(
            "ceiling", _ceiling, 0.0,
            "no join: a mapInArrow that hangs ready-made columns on each row",
            joins=False,
        ),
    )
}  # fmt: skip


@contextmanager
def _settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


def _shuffle(rows: int) -> dict[str, str]:
    """Shuffle partitions of about 64 MB, the size adaptive execution would merge them to anyway.

    Spark's default of 200 is slower on two cores, even with adaptive execution merging them.
    """
    wanted = round(rows * workload.master_row_bytes() / (64 * _MIB))
    return {"spark.sql.shuffle.partitions": str(min(200, max(4 * CORES, wanted)))}


# --- the ceiling --------------------------------------------------------------------------------


def _joined_ddl(setting: Setting, stream: DataFrame) -> str:
    """The schema a join would give: the stream's columns, then the master's without the key."""
    fields = [*stream.schema, *(f for f in setting.static().schema if f.name != KEY)]
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)


def _widen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give every row the width of a joined row without looking anything up."""
    ready = _ready_columns()
    for batch in batches:
        for start in range(0, batch.num_rows, ready.num_rows):
            part = batch.slice(start, ready.num_rows)
            columns = [*part.columns, *ready.slice(0, part.num_rows).columns]
            yield pa.RecordBatch.from_arrays(columns, [*part.schema.names, *ready.schema.names])


@cache
def _ready_columns() -> pa.RecordBatch:
    return workload.master_table(0, 10_000).drop_columns([KEY]).combine_chunks().to_batches()[0]
