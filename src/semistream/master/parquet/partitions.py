"""Columns that are in the names of folders: day=2024-02-29/part-0.parquet.

Types are inferred as Spark does it: whole numbers, dates, otherwise text. Where Spark would make
a double, a decimal or a timestamp of a text, which other readers do not, it is refused.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa

from ...errors import MasterError

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(NaN|Infinity)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}.*")


def folder_values(path: str) -> list[tuple[str, str | None]]:
    """Column and text of every column=value folder of a path, outermost first."""
    found: list[tuple[str, str | None]] = []
    for part in path.split("/")[:-1]:
        name, equals, text = part.partition("=")
        if equals:
            value = unquote(text)
            found.append((unquote(name), None if value == NULL else value))
    return found


def partition_columns(
    root: str, paths: Sequence[str]
) -> tuple[pa.Schema, list[dict[str, pa.Scalar]]]:
    """The columns that folders name, and their values for every file."""
    values = [folder_values(path) for path in paths]
    names = [name for name, _ in values[0]]
    for path, found in zip(paths, values, strict=True):
        here = [name for name, _ in found]
        if here != names:
            raise MasterError(
                f"{root}: {path} lies in folders of the columns {here}, but {paths[0]} in those "
                f"of {names}; all files of a partitioned master need the same column=value levels"
            )
        if len(set(here)) != len(here) or not all(here):
            raise MasterError(f"{root}: {path} names a partition column twice or not at all")
    columns = list(zip(*values, strict=True)) if names else []
    types = [_type(root, column[0][0], [text for _, text in column]) for column in columns]
    schema = pa.schema([pa.field(n, t) for n, t in zip(names, types, strict=True)])
    return schema, [
        {name: _scalar(text, schema.field(name).type) for name, text in found} for found in values
    ]


def _type(root: str, name: str, texts: Sequence[str | None]) -> pa.DataType:
    known = [text for text in dict.fromkeys(texts) if text is not None]
    kinds = {kind: text for text in known for kind in [_kind(text)]}
    if "empty" in kinds:
        raise MasterError(
            f"{root}: the partition column {name!r} has a folder without a value ({name}=); "
            f"rename it to {name}={NULL} if NULL is meant"
        )
    if not kinds or "text" in kinds or ("date" in kinds and kinds.keys() & {"int32", "int64"}):
        return pa.string()
    unclear = [text for kind, text in kinds.items() if kind in ("number", "time")]
    if unclear:
        raise MasterError(
            f"{root}: the partition column {name!r} has the value {unclear[0]!r}, which some read "
            "as a number or time and others as text; partition by whole numbers, dates or text, or "
            "read it with Spark and build a store with semistream.spark.build_store"
        )
    if "date" in kinds:
        return pa.date32()
    return pa.int64() if "int64" in kinds else pa.int32()


def _kind(text: str) -> str:
    if not text:
        return "empty"
    if _INTEGER.fullmatch(text):
        number = int(text)
        if -(2**31) <= number < 2**31:
            return "int32"
        return "int64" if -(2**63) <= number < 2**63 else "number"
    if _NUMBER.fullmatch(text):
        return "number"
    if _DATE.fullmatch(text) and _date(text) is not None:
        return "date"
    return "time" if _TIME.fullmatch(text) else "text"


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _scalar(text: str | None, t: pa.DataType) -> pa.Scalar:
    if text is None or pa.types.is_string(t):
        return pa.scalar(text, t)
    return pa.scalar(_date(text) if pa.types.is_date(t) else int(text), t)
