"""What can be asked about a DataFrame, which depends on where it lives.

A classic session answers everything. Over Spark Connect there is no SparkContext, so a function in
`foreachBatch` cannot learn which query it serves. In the query functions of a declarative pipeline
nothing can be asked: there the caller says which columns there are.
"""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.utils import is_remote

from ..errors import SpecError
from .pins import BATCH, QUERY, Batch

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
    names = [column(name) for name in wanted.names]
    try:
        have = {field.name: field.dataType.simpleString() for field in df.schema}
    except AnalysisException as error:
        if not _refused(error):
            raise
        # DataFrame.to(schema) would do this and be public, but makes the server look for tables
        # that the pipeline has yet to make.
        told = df.select(*names)
        told._cached_schema = wanted  # type: ignore[attr-defined]
        return told
    for field in wanted:
        kind = field.dataType.simpleString()
        if have.get(field.name) != kind:
            raise SpecError(
                f"stream_schema says {field.name} {kind}, but the DataFrame has "
                + ", ".join(f"{name} {kind}" for name, kind in have.items())
            )
    return df.select(*names)


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
    return Batch.of(context.getLocalProperty(QUERY), context.getLocalProperty(BATCH))


def needs_writer(call: str) -> None:
    """Functions for foreachBatch that must know their query: over Connect they cannot learn it."""
    if is_remote():
        raise SpecError(
            f"{call} over Spark Connect needs a name for the query that writes, since Spark does "
            f'not tell it there: {call[:-1]}, writer="..."), another one for every checkpoint'
        )


def query_of(df: DataFrame, call: str) -> str:
    """The streaming query whose foreachBatch got `df`."""
    if is_connect(df):
        needs_writer(call)
    query: str | None = df.sparkSession.sparkContext.getLocalProperty(QUERY)
    if query is None:
        raise SpecError(f"{call} is for foreachBatch, and this is no micro-batch of a stream")
    return query


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
