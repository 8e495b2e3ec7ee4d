"""How Arrow columns lie in memory, and which types the kernels read as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import SpecError
from ..kernels.arrays import I64


@dataclass(frozen=True)
class Layout:
    """How one column lies in memory: `kind` is fixed, bits, var, null or other."""

    type: pa.DataType
    kind: str
    width: int  # bytes of a fixed value; bytes of an offset for var
    buffer: int  # number of the column's first buffer (its validity) within the chunk
    buffers: int


def _kind(t: pa.DataType) -> tuple[str, int, int]:
    """(kind, width, buffers) of a type; "other" goes through pyarrow, slower but any type."""
    if pa.types.is_boolean(t):
        return "bits", 0, 2
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return "var", 4, 3
    if pa.types.is_large_string(t) or pa.types.is_large_binary(t):
        return "var", 8, 3
    if pa.types.is_null(t):
        return "null", 0, 0
    if pa.types.is_primitive(t) or pa.types.is_decimal(t) or pa.types.is_fixed_size_binary(t):
        return "fixed", t.bit_width // 8, 2
    return "other", 0, 0


def layouts(schema: pa.Schema) -> list[Layout]:
    result, at = [], 0
    for field in schema:
        kind, width, buffers = _kind(field.type)
        result.append(Layout(field.type, kind, width, at, buffers))
        at += buffers
    return result


def row_bytes(schema: pa.Schema, guess_var: int = 24) -> int:
    """Bytes of a typical row, for sizing buffers before any row was seen."""
    total = 0
    for column in layouts(schema):
        total += guess_var + column.width if column.kind in ("var", "other") else column.width
    return total + len(schema) // 8 + 1


def addresses(array: pa.Array, layout: Layout) -> list[int]:
    """Buffer addresses of an array as `offsets` wants them, its slice offset folded in; bitmaps
    must begin at a byte: see `byte_aligned`."""
    buffers = array.buffers()
    first = -1
    if buffers[0] is not None and array.null_count:
        first = buffers[0].address + array.offset // 8
    if layout.kind == "bits":
        return [first, buffers[1].address + array.offset // 8 if buffers[1] is not None else 0]
    values = buffers[1].address if buffers[1] is not None else 0
    result = [first, values + array.offset * layout.width]
    if layout.kind == "var":
        result.append(buffers[2].address if buffers[2] is not None else 0)
    return result


def byte_aligned(batch: pa.RecordBatch, columns: Sequence[Layout]) -> pa.RecordBatch:
    """The batch, with a copy of every column whose bitmap begins within a byte (a slice)."""
    arrays = list(batch.columns)
    for j, (array, column) in enumerate(zip(arrays, columns, strict=True)):
        if array.offset % 8 and column.buffers and (column.kind == "bits" or array.null_count):
            arrays[j] = pa.concat_arrays([array])
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Dictionaries, views and runs as the plain type that the kernels read."""
    t = array.type
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays([pa.nulls(0, plain_type(t)), *map(plain, array.chunks)])
    if pa.types.is_dictionary(t):
        return plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(t):
        return plain(pc.run_end_decode(array))
    target = plain_type(t)
    return array if target == t else pc.cast(array, target)


def plain_type(t: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t):
        return plain_type(t.value_type)
    if pa.types.is_string_view(t):
        return pa.string()
    if pa.types.is_binary_view(t):
        return pa.binary()
    return t


def check_columns(schema: pa.Schema, side: str) -> None:
    """Refuse what cannot be carried through a join: encodings inside nested columns, for which
    Arrow has no way to choose rows or to bring them together."""
    for field in schema:
        if side == "stream" and pa.types.is_run_end_encoded(field.type):
            raise SpecError(
                f"stream column {field.name!r} is {field.type}: runs end when rows are chosen, so "
                "this encoding cannot be kept; decode it first (pyarrow.compute.run_end_decode)"
            )
        if _odd(field.type):
            raise SpecError(
                f"{side} column {field.name!r} is {field.type}: dictionaries, views and runs "
                "inside nested columns are not supported; cast it to plain values first"
            )


def _odd(t: pa.DataType) -> bool:
    """Whether there is an encoding below the outermost one."""
    if pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t):
        inner = t.value_type
        return pa.types.is_dictionary(inner) or pa.types.is_run_end_encoded(inner) or _odd(inner)
    if isinstance(t, pa.BaseExtensionType):
        children = [t.storage_type]
    else:
        children = [t.field(i).type for i in range(t.num_fields)]
    return any(plain_type(c) != c or _odd(c) for c in children)


def shown_value(scalar: pa.Scalar) -> Any:
    """A value for people: Python has none for dates after the year 9999, or for nanoseconds."""
    try:
        if getattr(scalar.type, "unit", None) != "ns":
            return scalar.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        pass
    return str(scalar.cast(pa.string(), safe=False).as_py())


def value_bytes(array: pa.Array, rows: I64) -> I64:
    """Bytes of the values at some rows, their offsets and null bits included."""
    return between(array, rows, rows + 1)


def between(array: pa.Array, begin: I64, end: I64) -> I64:
    """Bytes of the values [begin[i], end[i]) of an array, for every i."""
    if isinstance(array, pa.ExtensionArray):
        return between(array.storage, begin, end)
    count = end - begin
    return count // 8 + 1 + _inner(array, begin, end)


def _inner(array: pa.Array, begin: I64, end: I64) -> I64:
    """The same without null bits."""
    t, count = array.type, end - begin
    if isinstance(array, pa.StructArray):
        total: I64 = np.zeros_like(count)
        for i in range(t.num_fields):
            total += between(array.field(i), begin, end)
        return total
    if isinstance(array, pa.FixedSizeListArray):
        at, size = array.offset, int(t.list_size)
        return between(array.values, (begin + at) * size, (end + at) * size)
    if isinstance(array, pa.ListArray | pa.LargeListArray):  # a map is a list of pairs
        first, last = _at(array.offsets.to_numpy(), begin, end)
        width = int(array.offsets.type.bit_width) // 8
        return count * width + between(array.values, first, last)
    if _has_offsets(t):
        wide = pa.types.is_large_string(t) or pa.types.is_large_binary(t)
        every = np.frombuffer(array.buffers()[1] or bytes(8), np.int64 if wide else np.int32)
        first, last = _at(every, begin + array.offset, end + array.offset)
        return count * every.itemsize + last - first
    if _is_fixed(t):
        return -(-count * int(t.bit_width) // 8)
    return count * (int(array.nbytes) // max(1, len(array)) + 1)  # on average


def _at(offsets: NDArray[Any], begin: I64, end: I64) -> tuple[I64, I64]:
    return offsets[begin].astype(np.int64), offsets[end].astype(np.int64)


def _has_offsets(t: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)
    return any(kind(t) for kind in (*kinds, pa.types.is_large_binary))


def _is_fixed(t: pa.DataType) -> bool:
    kinds = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(kind(t) for kind in kinds)
