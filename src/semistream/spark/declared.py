"""Columns that the caller of `enrich` has named, compared with those that come. Imports nothing of
pyspark."""

from __future__ import annotations

import pyarrow as pa

from ..errors import SpecError


def check_columns(found: pa.Schema, declared: pa.Schema) -> None:
    """Spark was told that these columns leave again, and would take others for them."""
    same = found.names == declared.names and all(
        _same(f.type, d.type) for f, d in zip(found, declared, strict=True)
    )
    if not same:
        raise SpecError(
            f"the stream has the columns {in_words(found)}, but stream_schema= says "
            f"{in_words(declared)}; say it as it is, or cast the columns before"
        )


def _same(found: pa.DataType, declared: pa.DataType) -> bool:
    """But for the zone, which is only a way to print, and the width of offsets."""
    if pa.types.is_nested(found) and pa.types.is_nested(declared):
        parts = range(found.num_fields)
        return (
            found.id == declared.id
            and found.num_fields == declared.num_fields
            and all(_same(found.field(i).type, declared.field(i).type) for i in parts)
        )
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(declared):
        return bool((found.tz is None) == (declared.tz is None))
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(narrow.get(found, found) == narrow.get(declared, declared))


def in_words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
