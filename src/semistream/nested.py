"""How many bytes values of any Arrow type take, without looking at each: values that follow one
another take the difference of two offsets, at every level of nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]


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
