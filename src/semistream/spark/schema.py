"""Master columns in Spark: it has fewer types than Arrow, so some change on the way."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from ..errors import SpecError

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDER |= {pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32()}


def spark_type(name: str, t: pa.DataType) -> pa.DataType:
    """The type that carries a master column through Spark without loss."""
    if (pa.types.is_timestamp(t) or pa.types.is_duration(t)) and t.unit == "ns":
        raise SpecError(
            f"master column {name!r} has {t}: Spark keeps microseconds, so nanoseconds would be "
            "lost; cast it to microseconds (timestamp[us], duration[us]) before building the "
            "store, or leave it out with columns=[...]"
        )
    if pa.types.is_timestamp(t):
        return pa.timestamp("us", t.tz)
    if pa.types.is_duration(t):
        return pa.duration("us")
    if pa.types.is_time(t):
        return pa.time64("ns")
    if pa.types.is_decimal(t):
        if t.precision > 38:
            raise SpecError(f"master column {name!r} is {t}: Spark decimals have 38 digits at most")
        return pa.decimal128(t.precision, t.scale)
    if pa.types.is_date64(t):
        return pa.date32()
    if pa.types.is_large_string(t):
        return pa.string()
    if pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t):
        return pa.binary()
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return pa.list_(t.value_field.with_type(spark_type(name, t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([f.with_type(spark_type(name, f.type)) for f in t])
    return _WIDER.get(t, t)


def spark_schema(joined: pa.Schema, stream: int) -> pa.Schema:
    """The output's columns in types that Spark has; the first `stream` are the stream's own."""
    fields = [
        f if i < stream else f.with_type(spark_type(f.name, f.type)) for i, f in enumerate(joined)
    ]
    try:
        from_arrow_schema(pa.schema(fields[stream:]))
    except Exception as error:
        raise SpecError(
            f"a master column has a type that Spark lacks ({error}); leave it out with "
            "columns=[...] or cast it before building the store"
        ) from error
    return pa.schema(fields)
