"""Rows of one schema that live in many Arrow chunks, addressed by location.

A location is `chunk << 32 | row` in an int64, or -1 for "no row". Pages of the master, segments
of the front stage and chunks of waiting rows are all `Chunks`, so one `gather` serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .kernels import gather as k

I64 = NDArray[np.int64]
Ends = dict[int, I64]
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.int64}
_FIXED = {1: k.gather_1, 2: k.gather_2, 4: k.gather_4, 8: k.gather_8}


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
    """Buffer addresses of an array as `offsets` wants them, its slice offset folded in (the bits
    of validity and booleans keep theirs: see `Chunks.bit`)."""
    buffers = array.buffers()
    first = buffers[0].address if buffers[0] is not None and array.null_count else -1
    if layout.kind == "bits":
        return [first, buffers[1].address if buffers[1] is not None else 0]
    values = buffers[1].address if buffers[1] is not None else 0
    result = [first, values + array.offset * layout.width]
    if layout.kind == "var":
        result.append(buffers[2].address if buffers[2] is not None else 0)
    return result


class Chunks:
    """A growing list of chunks with the addresses of their buffers."""

    def __init__(self, schema: pa.Schema, layout: list[Layout] | None = None) -> None:
        self.schema = schema
        self.layouts = layout if layout is not None else layouts(schema)
        self.base: I64 = np.zeros(0, np.int64)
        self.offsets: I64 = np.zeros((0, sum(c.buffers for c in self.layouts)), np.int64)
        self.bit: I64 = np.zeros(0, np.int64)
        self.keep: list[Any] = []
        self.has_nulls = [False] * len(self.layouts)
        # Columns of kind "other" are fetched as arrays: (chunk, column) -> array.
        self.array: Callable[[int, int], pa.Array] = lambda c, j: self.keep[c].column(j)

    def __len__(self) -> int:
        return len(self.base)

    @classmethod
    def of(cls, *batches: pa.RecordBatch, schema: pa.Schema | None = None) -> Chunks:
        chunks = cls(schema if schema is not None else batches[0].schema)
        chunks.extend(batches)
        return chunks

    def append(self, batch: pa.RecordBatch) -> int:
        """Add a batch as a chunk; returns its number."""
        self.extend([batch])
        return len(self.base) - 1

    def extend(self, batches: Sequence[pa.RecordBatch]) -> None:
        found = [self._addresses(batch) for batch in batches]
        width = self.offsets.shape[1]
        new = np.array([row for row, _ in found], np.int64).reshape(len(found), width)
        self.base = np.append(self.base, np.zeros(len(found), np.int64))
        self.offsets = np.vstack([self.offsets, new])
        self.bit = np.append(self.bit, np.array([bit for _, bit in found], np.int64))
        self.keep += batches

    def _addresses(self, batch: pa.RecordBatch) -> tuple[list[int], int]:
        """Where each buffer of the batch is, and the bit at which its bitmaps begin."""
        row: list[int] = []
        bit = 0
        for j, column in enumerate(self.layouts):
            if column.buffers:
                array = batch.column(j)
                row += addresses(array, column)
                bit = array.offset
                self.has_nulls[j] |= array.null_count > 0
            elif column.kind == "other":
                self.has_nulls[j] = True
        return row, bit

    def put(self, chunk: int, batch: pa.RecordBatch) -> None:
        """Replace one chunk, keeping the other numbers."""
        row, self.bit[chunk] = self._addresses(batch)
        self.offsets[chunk] = row
        self.keep[chunk] = batch

    def gather(
        self, loc: I64, columns: Sequence[int] | None = None, ends: Ends | None = None
    ) -> list[pa.Array]:
        """The rows at `loc`, one new array per column. `ends` may come from `measure`."""
        chosen = range(len(self.layouts)) if columns is None else columns
        missing = bool(len(loc)) and bool(loc.min() < 0)
        return [self._column(loc, j, missing, ends) for j in chosen]

    def _column(self, loc: I64, j: int, missing: bool, ends: Ends | None) -> pa.Array:
        column, n = self.layouts[j], len(loc)
        if column.kind == "null":
            return pa.nulls(n)
        if column.kind == "other":
            return self._other(loc, j)
        validity, nulls = None, 0
        if missing or self.has_nulls[j]:
            bits = np.zeros((n + 7) // 8, np.uint8)
            nulls = k.gather_bits(loc, self.base, self.offsets, column.buffer, self.bit, 1, bits)
            validity = pa.py_buffer(bits) if nulls else None
        known = ends[j][: n + 1] if ends is not None and j in ends else None
        values = self._values(loc, column, known)
        return pa.Array.from_buffers(column.type, n, [validity, *values], null_count=nulls)

    def _values(self, loc: I64, column: Layout, ends: I64 | None) -> list[pa.Buffer]:
        n, at = len(loc), column.buffer + 1
        if column.kind == "bits":
            bits = np.zeros((n + 7) // 8, np.uint8)
            k.gather_bits(loc, self.base, self.offsets, at, self.bit, 0, bits)
            return [pa.py_buffer(bits)]
        if column.kind == "var":
            ends = self._ends(loc, column) if ends is None else ends
            data = np.empty(int(ends[-1]), np.uint8)
            k.var_copy(loc, self.base, self.offsets, at, column.width == 8, ends, data)
            return [pa.py_buffer(ends if column.width == 8 else _narrow(ends)), pa.py_buffer(data)]
        if column.width in _FIXED:
            out = np.empty(n, _UNSIGNED[column.width])
            _FIXED[column.width](loc, self.base, self.offsets, at, out)
        else:
            out = np.empty(n * column.width, np.uint8)
            k.gather_wide(loc, self.base, self.offsets, at, column.width, out)
        return [pa.py_buffer(out)]

    def _ends(self, loc: I64, column: Layout) -> I64:
        ends = np.empty(len(loc) + 1, np.int64)
        sizes = k.var_ends_32 if column.width == 4 else k.var_ends_64
        sizes(loc, self.base, self.offsets, column.buffer + 1, ends)
        return ends

    def _other(self, loc: I64, j: int) -> pa.Array:
        """Nested and other types: take per chunk with pyarrow, then restore the order."""
        parts, at = [pa.nulls(1, self.layouts[j].type)], 1
        where = np.zeros(len(loc), np.int64)
        chunk = loc >> 32
        for c in np.unique(chunk[loc >= 0]):
            mask = (chunk == c) & (loc >= 0)
            rows = loc[mask] & 0xFFFFFFFF
            parts.append(self.array(int(c), j).take(pa.array(rows)))
            where[mask] = at + np.arange(len(rows))
            at += len(rows)
        return pa.concat_arrays(parts).take(pa.array(where))

    def measure(self, loc: I64, columns: Sequence[int] | None = None) -> tuple[int, Ends]:
        """Bytes of a row's fixed part, and for each column of varying width the cumulative bytes
        of the rows at `loc` (entry i: the first i rows)."""
        chosen = range(len(self.layouts)) if columns is None else columns
        ends: Ends = {}
        for j in chosen:
            if self.layouts[j].kind == "var":
                ends[j] = self._ends(loc, self.layouts[j])
            elif self.layouts[j].kind == "other":
                ends[j] = np.concatenate([[0], np.cumsum(self._other_widths(loc, j))])
        return sum(self.layouts[j].width for j in chosen) + len(chosen) // 8 + 1, ends

    def widths(self, loc: I64, columns: Sequence[int] | None = None) -> I64:
        """Cumulative bytes of whole rows: entry i is the size of the first i rows."""
        fixed, ends = self.measure(loc, columns)
        total: I64 = np.arange(len(loc) + 1, dtype=np.int64) * fixed
        for part in ends.values():
            total += part
        return total

    def _other_widths(self, loc: I64, j: int) -> I64:
        """A nested value counts as its chunk's mean: exact sizes would need a walk of the type."""
        result = np.zeros(len(loc), np.int64)
        chunk = loc >> 32
        for c in np.unique(chunk[loc >= 0]):
            array = self.array(int(c), j)
            result[chunk == c] = array.nbytes // max(1, len(array)) + 1
        return result


def _narrow(ends: I64) -> NDArray[np.int32]:
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("a gathered column passed 2 GiB")  # callers cap batches far below
    return ends.astype(np.int32)


def plain(array: pa.Array) -> pa.Array:
    """Dictionary and view types as the plain type that the kernels read."""
    t = array.type
    target = plain_type(t)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if target == t else pc.cast(array, target)


def plain_type(t: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(t):
        return plain_type(t.value_type)
    if pa.types.is_string_view(t):
        return pa.string()
    if pa.types.is_binary_view(t):
        return pa.binary()
    return t
