"""Which Parquet files are a master, which columns they share, and what each has of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import MasterError, SpecError
from ...rows.keys import codes_of, family, is_natural
from ...rows.layout import plain_type
from ..storage import Files, FoundFile, RemoteFiles
from .partitions import partition_columns

SUFFIXES = (".parquet", ".parq", ".pq")
MAGIC = b"PAR1"
SPARK = b"org.apache.spark.version"
_T = TypeVar("_T")
_R = TypeVar("_R")
SMALL_BUFFER, MOST_BUFFERED = 16 << 10, 16 << 20
AT_ONCE = 16  # footers that are fetched from elsewhere at the same time


@dataclass(frozen=True)
class DataFile:
    """One file, and what it has of the master's columns."""

    found: FoundFile
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)  # not in the file
    names: Mapping[str, str] = field(default_factory=dict)  # column -> its name in the file
    keep: pa.BooleanArray | None = None  # rows that were not deleted

    @property
    def path(self) -> str:
        return self.found.path


@dataclass(frozen=True)
class Group:
    """One row group, as the end of its file describes it."""

    number: int
    start: int  # its first row in the file
    rows: int
    bytes: int
    bounds: tuple[int, int] | None  # codes of the smallest and largest key


@dataclass(frozen=True)
class Footer:
    """What the end of a file says."""

    file: DataFile
    schema: pa.Schema
    groups: list[Group]


def data_files(files: Files) -> tuple[pa.Schema, list[DataFile]]:
    """The Parquet files under a root, with the columns that their folders name."""
    every = files.walk()
    _check_table_formats(files, every)
    found = [one for one in every if not one.path or _is_data(files, one)]
    if not found:
        raise MasterError(f"{files.name} holds no Parquet files; name a file or a folder of them")
    table = files.table_around("_delta_log")
    if table is not None:
        raise MasterError(
            f"{files.name} is part of the Delta table {table}, whose log says which of its files "
            "are current; name that folder"
        )
    schema, values = partition_columns(files.name, [one.path for one in found])
    return schema, [DataFile(one, value) for one, value in zip(found, values, strict=True)]


def _is_data(files: Files, found: FoundFile) -> bool:
    """As Spark sees it: whatever is not hidden. Files of other names must begin like Parquet."""
    if any(_is_hidden(part) for part in found.path.split("/")):
        return False
    if found.path.endswith(SUFFIXES):
        return True
    if found.size < 12 or "." in found.path.rsplit("/", 1)[-1]:
        return False
    with files.open(found) as file:
        return bool(file.read(4) == MAGIC)


def _is_hidden(part: str) -> bool:
    return part[0] == "." or (part[0] == "_" and "=" not in part) or part.endswith("._COPYING_")


def _check_table_formats(files: Files, every: Sequence[FoundFile]) -> None:
    """The files of a table format are not all of them rows of the table as it is now."""
    for one in every:
        parts = one.path.split("/")
        for mark, name in (("_delta_log", "Delta"), (".hoodie", "Hudi")):
            if mark in parts[:-1]:
                inner = "/".join(parts[: parts.index(mark)])
                raise MasterError(
                    f"{files.full(inner)} is a {name} table; name exactly that folder to read a "
                    "Delta table, and build a store from any other kind with Spark"
                )
        if parts[-2:-1] == ["metadata"] and one.path.endswith(".metadata.json"):
            raise MasterError(
                f"{files.full('/'.join(parts[:-2]))} is an Iceberg table, whose files are not all "
                "current; read it with Spark and build a store with semistream.spark.build_store"
            )


def open_parquet(files: Files, found: FoundFile, columns: int = 1) -> pq.ParquetFile:
    """Read by a small buffer for each column, whatever the size of row groups. Old timestamps
    (INT96) come with microseconds: with nanoseconds, years before 1678 and after 2261 would
    silently wrap around."""
    source = files.open(found)
    buffer = min(files.buffer_bytes, max(SMALL_BUFFER, MOST_BUFFERED // columns))
    try:
        return pq.ParquetFile(
            source, buffer_size=buffer, pre_buffer=False,
            coerce_int96_timestamp_unit="us", page_checksum_verification=True,
        )  # fmt: skip
    except (OSError, pa.ArrowException, ValueError) as error:
        source.close()
        text = files.hide(error)
    # Not while the library's own error is at hand, which may have secrets in it.
    raise MasterError(f"{files.full(found.path)} is not a readable Parquet file: {text}")


def read_footers(files: Files, data: Sequence[DataFile], key: Sequence[str]) -> list[Footer]:
    def read(file: DataFile) -> Footer:
        with open_parquet(files, file.found) as opened:
            schema = file_schema(opened)
            names = [file.names.get(name, name) for name in key]
            groups = list(_groups(opened.metadata, schema, names))
            return Footer(_whole(files, file, opened.metadata.num_rows), schema, groups)

    return at_once(files, read, data)


def at_once(files: Files, call: Callable[[_T], _R], many: Sequence[_T]) -> list[_R]:
    """A call for every file; where each takes a journey, several at the same time."""
    if not isinstance(files, RemoteFiles):
        return [call(one) for one in many]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(call, many))


def _groups(metadata: Any, schema: pa.Schema, key: Sequence[str]) -> Iterator[Group]:
    start = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if group.num_rows:
            bounds = _bounds(group, schema, key)
            yield Group(i, start, group.num_rows, group.total_byte_size, bounds)
        start += group.num_rows


def _bounds(group: Any, schema: pa.Schema, key: Sequence[str]) -> tuple[int, int] | None:
    types = [schema.field(name).type for name in key if schema.names.count(name) == 1]
    if len(types) != len(key) or not is_natural(types):
        return None
    t = plain_type(types[0])
    if family(t) not in ("integer", "date", "timestamp", "timestamp with zone"):
        return None
    paths = [group.column(j).path_in_schema for j in range(group.num_columns)]
    if paths.count(key[0]) != 1:
        return None  # a column "a.b" beside a field b of a
    found = group.column(paths.index(key[0])).statistics
    if found is None or not found.has_min_max or not _counts_alike(found, t):
        return None
    # The numbers as they are stored: Python has no dates after the year 9999, and no nanoseconds.
    kind = "u" if pa.types.is_unsigned_integer(t) else "i"
    raw = np.array([found.min_raw, found.max_raw], np.int64).astype(f"{kind}{t.bit_width // 8}")
    stored = pa.array(raw)
    low, high = codes_of([stored if stored.type == t else stored.view(t)])
    return int(low), int(high)


def _counts_alike(statistics: Any, t: pa.DataType) -> bool:
    """Whether the numbers in a column's statistics count what its values do in Arrow."""
    if statistics.physical_type not in ("INT32", "INT64") or pa.types.is_date64(t):
        return False
    if not pa.types.is_timestamp(t):
        return True
    unit = json.loads(statistics.logical_type.to_json()).get("timeUnit")
    return {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(unit) == str(
        t.unit
    )


def file_schema(opened: pq.ParquetFile) -> pa.Schema:
    """The columns of a file. Extension types (uuid, json) are what they are stored as. Spark's old
    timestamps are moments in UTC, which only Spark knows."""
    schema = opened.schema_arrow.remove_metadata()
    for i, one in enumerate(schema):
        if isinstance(one.type, pa.BaseExtensionType):
            schema = schema.set(i, one.with_type(one.type.storage_type))
    metadata = opened.metadata
    if SPARK not in (metadata.metadata or {}):
        return schema
    leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    for i, one in enumerate(schema):
        if one.name in old and pa.types.is_timestamp(one.type):
            schema = schema.set(i, one.with_type(pa.timestamp("us", "UTC")))
    return schema


# --- one schema for all -------------------------------------------------------------------------


def normal(t: pa.DataType, any_time: bool = False) -> pa.DataType:
    """A type without what is only a way to lay values out: widths of offsets, dictionaries,
    whether NULL may occur, what the items of lists are called."""
    t = plain_type(t)
    if any_time and pa.types.is_timestamp(t):
        return pa.timestamp("us")
    if pa.types.is_large_string(t):
        return pa.string()
    if pa.types.is_large_binary(t):
        return pa.binary()
    if pa.types.is_fixed_size_list(t):
        return pa.list_(normal(t.value_type, any_time), t.list_size)
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return pa.list_(normal(t.value_type, any_time))
    if pa.types.is_map(t):
        return pa.map_(normal(t.key_type, any_time), normal(t.item_type, any_time))
    if pa.types.is_struct(t):
        return pa.struct([pa.field(f.name, normal(f.type, any_time)) for f in t])
    return t


def common_schema(files: Files, footers: Sequence[Footer], partitions: pa.Schema) -> pa.Schema:
    """The columns that all files have, those of folders last; a real difference is an error."""
    fields: dict[str, pa.Field] = {}
    first = footers[0]
    for footer in footers:
        if set(footer.schema.names) != set(first.schema.names):
            odd = sorted(set(footer.schema.names) ^ set(first.schema.names))
            raise SpecError(
                f"{files.full(footer.file.path)} and {files.full(first.file.path)} do not have the "
                f"same columns: {odd} only one of them; write all files of a master with one schema"
            )
        for one in footer.schema:
            fields[one.name] = _agreed(files, fields.get(one.name, one), one, footer, first)
    for name in partitions.names:
        if name in fields:
            raise SpecError(
                f"column {name!r} of {files.name} is both in the files and in the names of "
                "folders, and the two may differ; leave it out of one"
            )
    return pa.schema([*(fields[name] for name in first.schema.names), *partitions])


def _agreed(files: Files, known: pa.Field, new: pa.Field, footer: Footer, first: Footer) -> Any:
    """One column for both: nullable if either is; a column without any value has any type."""
    nullable = known.nullable or new.nullable
    if pa.types.is_null(known.type):
        return new.with_nullable(True)
    if not pa.types.is_null(new.type) and normal(known.type) != normal(new.type):
        raise SpecError(
            f"column {new.name!r} is {new.type} in {files.full(footer.file.path)}, but "
            f"{known.type} in {files.full(first.file.path)} and others; write all files of a "
            "master with one schema"
        )
    return known.with_nullable(nullable)


def check_castable(files: Files, footer: Footer, schema: pa.Schema) -> None:
    """Every column that a file has can be read in the master's type: the same but for layout, or
    a time of another unit, whose values are looked at when they are read."""
    for one in schema:
        name = footer.file.names.get(one.name, one.name)
        if one.name in footer.file.constants or name not in footer.schema.names:
            continue
        t = footer.schema.field(name).type
        if normal(t, any_time=True) != normal(one.type, any_time=True):
            raise MasterError(
                f"column {one.name!r} is {t} in {files.full(footer.file.path)}, but {one.type} in "
                "the table; rewrite the file"
            )


def missing_columns(footers: Sequence[Footer], schema: pa.Schema) -> list[Footer]:
    """With NULL for every column that a file lacks: it is older than the column."""
    result = []
    for footer in footers:
        file, has = footer.file, set(footer.schema.names)
        lacks = {
            one.name: pa.scalar(None, one.type)
            for one in schema
            if one.name not in file.constants and file.names.get(one.name, one.name) not in has
        }
        fuller = replace(file, constants={**file.constants, **lacks})
        result.append(replace(footer, file=fuller))
    return result


def _whole(files: Files, file: DataFile, rows: int) -> DataFile:
    """A list of deleted rows ends with the last of them; rows after it are kept."""
    if file.keep is None:
        return file
    if len(file.keep) > rows:
        raise MasterError(
            f"{files.full(file.path)} has {rows} rows, but its deletion vector {len(file.keep)}; "
            "restore the file from where the table was written"
        )
    rest = pa.repeat(pa.scalar(True), rows - len(file.keep))
    return replace(file, keep=pa.concat_arrays([file.keep, rest]))
