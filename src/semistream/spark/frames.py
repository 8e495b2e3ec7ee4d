"""What can be asked about a DataFrame, which depends on where it lives.

A classic session answers everything. Over Spark Connect there is no SparkContext, so a function in
`foreachBatch` cannot learn which query it serves. In the query functions of a declarative pipeline
nothing can be asked: there the caller says which columns there are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.utils import is_remote

from ..errors import SpecError
from .checkpoint import owner_of
from .once import Once
from .task import APP, BATCH, QUERY, ROOT, Batch

REFUSED = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"

_PLAIN: dict[str, type[T.DataType]] = {
    "tinyint": T.ByteType,
    "smallint": T.ShortType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "bigint": T.LongType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "string": T.StringType,
    "binary": T.BinaryType,
    "boolean": T.BooleanType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
}
_FIELD = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>\w+))(?:\s*:\s*|\s+)"
    r"(?P<type>\w+)(?:\s*\(\s*(?P<digits>\d+)\s*(?:,\s*(?P<scale>\d+)\s*)?\))?\s*(?:,|$)"
)


def check_frame(df: object) -> None:
    """Other libraries have DataFrames, too."""
    if not hasattr(df, "mapInArrow"):
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        raise SpecError(
            f"df must be a Spark DataFrame, not a {kind}; make one: spark.createDataFrame(...)"
        )


def column(name: str) -> Column:
    """A column of just this name, dots and all."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def columns_of(df: DataFrame) -> T.StructType:
    try:
        return df.schema
    except AnalysisException as error:
        if not _refused(error):
            raise
        raise SpecError(
            "in the query function of a pipeline nobody may ask for the columns of a DataFrame; "
            'name them: enrich(..., stream_schema="id bigint, quantity int")'
        ) from None


def with_columns(df: DataFrame, given: str | T.StructType) -> DataFrame:
    """`df` with just these columns. Where Spark may be asked they are compared with what it has;
    in a pipeline the tasks compare."""
    wanted = given if isinstance(given, T.StructType) else _parsed(given)
    try:
        have = [(field.name, field.dataType.simpleString()) for field in df.schema]
    except AnalysisException as error:
        if not _refused(error):
            raise
        # DataFrame.to(schema) would do this and be public, but makes the server look for tables
        # that the pipeline has yet to make.
        told = df.select(*[column(name) for name in wanted.names])
        told._cached_schema = wanted  # type: ignore[attr-defined]
        return told
    for field in wanted:
        kind = field.dataType.simpleString()
        if (field.name, kind) not in have:
            raise SpecError(
                f"stream_schema says {field.name} {kind}, but the DataFrame has "
                + ", ".join(f"{name} {kind}" for name, kind in have)
            )
    places = [have.index((field.name, field.dataType.simpleString())) for field in wanted]
    numbered = named(df, [f"c{i}" for i in range(len(have))])
    return named(numbered.select(*[f"c{i}" for i in places]), wanted.names)


def named(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """The same columns under other names, by position."""
    told = df.toDF(*names)
    known = getattr(df, "_cached_schema", None)  # as we left it, where nobody may ask
    if known is not None:
        fields = zip(names, known.fields, strict=True)
        told._cached_schema = T.StructType(  # type: ignore[attr-defined]
            [T.StructField(n, f.dataType, f.nullable, f.metadata) for n, f in fields]
        )
    return told


def is_stream(df: DataFrame) -> bool | None:
    """None: nobody may ask, and the task will see."""
    try:
        return df.isStreaming
    except AnalysisException as error:
        if not _refused(error):
            raise
        return None


def is_connect(thing: object) -> bool:
    """A session, DataFrame or query of Spark Connect."""
    return type(thing).__module__.startswith("pyspark.sql.connect")  # importing that needs grpc


def micro_batch(df: DataFrame) -> Batch | None:
    """Which one the batch DataFrame belongs to: in foreachBatch; None elsewhere."""
    if is_connect(df):
        raise SpecError(
            "pins= for a batch DataFrame is for foreachBatch, where Spark Connect does not say "
            "which micro-batch it is; leave it out (the newest version is joined), fix the version "
            "with version=..., or enrich the stream itself, before writeStream"
        )
    context = df.sparkSession.sparkContext
    query, number = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    if query is None or number is None:
        return None
    return Batch(owner_of(df.sparkSession, query), int(number))


def needs_writer(call: str) -> None:
    """Functions for foreachBatch that must know their query: over Connect they cannot learn it."""
    if is_remote():
        raise SpecError(
            f"{call} over Spark Connect needs a name for the query that writes, since Spark does "
            f'not tell it there: {call[:-1]}, writer="..."), another one for every checkpoint'
        )


def change_of(
    df: DataFrame, number: int, writer: str | None, name: str, call: str, target: str
) -> Once:
    """A change that a function of foreachBatch is about to make with `df`, of the streaming query
    that called it or of whom the caller names as `writer`."""
    if writer is None:
        if is_connect(df):
            needs_writer(call)
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY)
        if query is None:
            raise SpecError(f"{call} is for foreachBatch, and this is no micro-batch of a stream")
        writer = owner_of(df.sparkSession, query)
    return Once(writer, number, name, target, attempt_of(df), call)


def attempt_of(df: DataFrame) -> str | None:
    """At a micro-batch, whose replay is another one; None outside of foreachBatch."""
    if is_connect(df):
        return _connect_worker()
    context = df.sparkSession.sparkContext
    # All that a micro-batch does at one attempt has one root execution.
    query, app, root = map(context.getLocalProperty, (QUERY, APP, ROOT))
    return None if query is None or root is None else f"{app} {root}"


def _connect_worker() -> str | None:
    """Over Connect, foreachBatch has a process of its own for each start of a query; None in any
    other process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"process {os.getpid()}" if "foreach_batch" in getattr(main, "name", "") else None


def _refused(error: AnalysisException) -> bool:
    return REFUSED in (error.getCondition() or str(error))


def _parsed(text: str) -> T.StructType:
    try:
        parsed = T.StructType.fromDDL(text)
    except ParseException as error:
        raise SpecError(f"stream_schema={text!r} is no list of columns: {error}") from error
    except AnalysisException as error:
        if not _refused(error):
            raise
        return _parsed_here(text)
    if not isinstance(parsed, T.StructType):
        raise SpecError(f'stream_schema={text!r} is no list of columns: "id bigint, name string"')
    return parsed


def _parsed_here(text: str) -> T.StructType:
    """Spark's parser is on the server, which gives no answer within a pipeline."""
    fields, at = [], 0
    while at < len(text.rstrip()):
        found = _FIELD.match(text, at)
        kind = None if found is None else _plain_type(found)
        if found is None or kind is None:
            raise SpecError(
                f"stream_schema={text!r}: in a pipeline only columns of plain types can be given "
                f"as text, such as {', '.join(_PLAIN)}, decimal(10, 2), and "
                f"{text[at:].strip()!r} begins with something else; make it outside of the query "
                "function: StructType.fromDDL(...)"
            )
        name = (found["quoted"] or found["name"]).replace("``", "`")
        fields.append(T.StructField(name, kind))
        at = found.end()
    return T.StructType(fields)


def _plain_type(found: re.Match[str]) -> T.DataType | None:
    kind, digits, scale = found["type"].lower(), found["digits"], found["scale"]
    if kind in ("decimal", "numeric", "dec"):
        return T.DecimalType(int(digits or 10), int(scale or 0))
    return _PLAIN[kind]() if kind in _PLAIN and digits is None else None
