"""Repartition the stream by key before the join, so that no two tasks need the same pages.

The JVM hashes each row, an iterator UDF gives it a partition (task/partition.py), and Spark
shuffles by that number. Only the keys and the hash go through Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ..errors import SpecError
from ..kernels.arrays import I64
from ..master import Master
from ..rows.keys import key_coder
from ..spec import ALGORITHMS
from .build import check_partitions
from .columns import Columns
from .dimensions import Opened
from .frames import column
from .ship import shipped
from .task import CELLS, Spread, Step

SHUFFLES = ("none", "key", "auto")
_MOST_STARTS = 8192

# What xxhash64 tells apart completely; strings go in as bytes, since a collation makes some equal.
_FLAT = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.DecimalType, T.DayTimeIntervalType, T.YearMonthIntervalType, T.BinaryType,
)  # fmt: skip


def shuffled(
    stream: Columns,
    opened: Sequence[Opened],
    steps: Sequence[Step],
    shuffle: str,
    partitions: int | None,
) -> DataFrame:
    """`stream.frame` as `enrich(shuffle=, partitions=)` wants it: as it is, or repartitioned by
    the key of one of the masters."""
    if shuffle not in SHUFFLES:
        raise SpecError(f"shuffle={shuffle!r}: choose one of {', '.join(SHUFFLES)}")
    if shuffle == "none":
        if partitions is not None:
            raise SpecError(f'partitions={partitions!r} is for shuffle="key"; leave one out')
        return stream.frame
    # Of several masters that one whose reads cost most, among those whose key the stream has.
    candidates = [
        (_pays(each.master, step), each.master.describe().bytes, -i)
        for i, (each, step) in enumerate(zip(opened, steps, strict=True))
        if all(name in stream.schema.names for name, _ in step.on)
    ]
    pays, _, at = max(candidates)
    if shuffle == "auto" and not pays:
        return stream.frame
    return by_key(stream, opened[-at].master, dict(steps[-at].on), partitions)


def _pays(master: Master, step: Step) -> bool:
    """The rule of shuffle="auto": a page that two tasks need is read twice. Databases are asked for
    keys, of which tasks share few unless they are hot, and those a join has in memory."""
    read = not master.mapped and not master.by_key
    return read and ALGORITHMS[step.algorithm].needs_index


def by_key(
    stream: Columns,
    master: Master,
    on: str | Sequence[str] | Mapping[str, str],
    partitions: int | None = None,
) -> DataFrame:
    """The rows of `stream.frame` in `partitions` (None: one per task slot): rows of one key, and of
    keys in neighbouring pages of `master`, together where that leaves no partition with too
    much."""
    df = stream.frame
    if not hasattr(df, "repartitionById") or not hasattr(F, "arrow_udf"):
        version = df.sparkSession.version
        raise SpecError(
            f'shuffle="key" needs Spark 4.1 or newer, and this is {version}; upgrade, or use '
            'shuffle="none"'
        )
    check_partitions(partitions)
    n = _slots(df) if partitions is None else partitions
    coder = key_coder(on, stream.arrow, master.describe().schema)
    hashed, exact = _row_hash(stream)
    task: Any = shipped(Spread(coder, n, _starts(master, n), exact))

    # A function, since PySpark asks for its type hints. It is deterministic as Spark understands
    # it: the same rows in any order get the same targets. So a lost shuffle file costs just its
    # own map task; marked as nondeterministic, it would cost the whole stage.
    def target(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        result: Iterator[pa.Array] = task(batches)
        return result

    udf = F.arrow_udf(target, T.IntegerType())
    return df.repartitionById(n, udf(hashed, *map(stream.column, coder.stream)))


def _slots(df: DataFrame) -> int:
    """Tasks that run at once; through Spark Connect, what is known of it."""
    session = df.sparkSession
    if hasattr(session, "_sc"):
        return int(session.sparkContext.defaultParallelism)
    known = session.conf.get("spark.default.parallelism", None)
    return int(known or session.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def _starts(master: Master, n: int) -> I64:
    """The codes at which to cut into ranges of as many pages each."""
    if not master.describe().indexed or not master.ranges or not len(master.first):
        return np.zeros(0, np.int64)
    first = np.sort(master.first)
    count = min(CELLS * n, _MOST_STARTS, len(first))
    return first[np.arange(count) * len(first) // count]


def _row_hash(stream: Columns) -> tuple[Column, bool]:
    """A hash of each row, and whether only equal rows have the same one (but for the chance of one
    in 2**64)."""
    parts: list[Column] = []
    exact = True
    for field in stream.frame.schema.fields:
        at = column(field.name)
        if field.nullable:
            parts.append(at.isNull())  # a NULL leaves a hash as it is: (1, NULL) is (NULL, 1)
        if isinstance(field.dataType, T.StringType):
            parts.append(at.cast("binary"))
        elif isinstance(field.dataType, (T.FloatType, T.DoubleType)):
            parts += [at, F.when(at == 0, at.cast("string"))]  # the hash of -0.0 is that of 0.0
        elif isinstance(field.dataType, _FLAT):
            parts.append(at)
        elif not isinstance(field.dataType, T.NullType):
            exact = False
            parts += _nested(at, field.dataType)
    return F.xxhash64(*parts) if parts else F.xxhash64(F.lit(0)), exact


def _nested(at: Column, kind: T.DataType) -> list[Column]:
    """What can be hashed of a column whose hash does not tell all values apart."""
    if isinstance(kind, T.MapType):
        return _nested(F.map_entries(at), T.ArrayType(_entry(kind)))
    return [at] if _hashable(kind) else []


def _entry(kind: T.MapType) -> T.StructType:
    return T.StructType().add("key", kind.keyType).add("value", kind.valueType)


def _hashable(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, T.StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return isinstance(kind, (*_FLAT, T.StringType, T.FloatType, T.DoubleType, T.NullType))
