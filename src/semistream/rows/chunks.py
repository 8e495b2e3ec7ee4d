"""Rows of one schema that live in many Arrow chunks, addressed by location.

A location is `chunk << 32 | row` in an int64. Pages of the master and chunks of waiting rows are
`Chunks`; the front stage keeps `Records` (records.py), with the same verbs:

    measure(loc)   where the values of varying width are, and how many bytes they have
    gather(loc)    the rows, as new arrays
    spans(loc, j)  where the values of one column are, to compare keys
    pairs(...)     every row of groups of equal keys
    add(rows)      more rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import SpecError
from ..kernels import gather as k
from ..kernels import search
from ..kernels.arrays import I32, I64, U8
from .layout import Layout, addresses, byte_aligned, layouts, value_bytes

MOST_BYTES = 2**31 - 1  # of text or bytes in one array with 32-bit offsets


@dataclass
class Spans:
    """Values of one column: `address[i]`, and the bytes of the first i values in `ends[i]`."""

    address: I64
    ends: I64
    keep: Any = None  # memory of our own that the addresses point into

    @classmethod
    def bits(cls, bits: U8, n: int) -> Spans:
        """Booleans as values of one byte each."""
        values = np.unpackbits(bits, count=n, bitorder="little")
        address = values.ctypes.data + np.arange(n, dtype=np.int64)
        return cls(address, np.arange(n + 1, dtype=np.int64), values)

    @classmethod
    def empty(cls, n: int) -> Spans:
        return cls(np.empty(n, np.int64), np.empty(n + 1, np.int64))

    def first(self, n: int) -> Spans:
        return self if n == len(self.address) else Spans(self.address[:n], self.ends[: n + 1])

    def copy(self, t: pa.DataType, validity: pa.Buffer | None, nulls: int) -> pa.Array:
        """The values as a new string or binary array."""
        wide = pa.types.is_large_string(t) or pa.types.is_large_binary(t)
        if not wide and self.ends[-1] > MOST_BYTES:
            raise too_wide(t, int(self.ends[-1]))
        data = np.empty(int(self.ends[-1]), np.uint8)
        k.copy_spans(self.address, self.ends, data)
        ends = self.ends if wide else self.ends.astype(np.int32)
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(t, len(self.address), buffers, null_count=nulls)


Sizes = dict[int, Spans]


def fixed_arrays(columns: Sequence[Layout], n: int, fill: Callable[[I64, I64], None]) -> list[U8]:
    """New buffers for fixed-width columns, filled by `fill(widths, addresses)`."""
    out = [np.empty(n * c.width, np.uint8) for c in columns]
    if columns and n:
        widths = np.array([c.width for c in columns], np.int64)
        fill(widths, np.array([a.ctypes.data for a in out], np.int64))
    return out


class Chunks:
    """A growing list of chunks with the addresses of their buffers."""

    def __init__(self, schema: pa.Schema, layout: list[Layout] | None = None) -> None:
        self.schema = schema
        self.layouts = layout if layout is not None else layouts(schema)
        self.base: I64 = np.zeros(0, np.int64)
        self.offsets: I64 = np.zeros((0, sum(c.buffers for c in self.layouts)), np.int64)
        self.rows: I64 = np.zeros(0, np.int64)  # of each chunk
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

    @classmethod
    def in_place(
        cls,
        schema: pa.Schema,
        layout: list[Layout],
        base: I64,
        offsets: I64,
        rows: I64,
        has_nulls: list[bool],
        array: Callable[[int, int], pa.Array],
    ) -> Chunks:
        """Chunks that lie in memory of somebody else's, at `base`, their buffers `offsets` on."""
        chunks = cls(schema, layout)
        chunks.base, chunks.offsets, chunks.rows = base, offsets, rows
        chunks.has_nulls, chunks.array = has_nulls, array
        return chunks

    # --- adding --------------------------------------------------------------------------------

    def append(self, batch: pa.RecordBatch) -> int:
        """Add a batch as a chunk; returns its number."""
        self.extend([batch])
        return len(self.base) - 1

    def extend(self, batches: Sequence[pa.RecordBatch]) -> None:
        aligned = [byte_aligned(batch, self.layouts) for batch in batches]
        rows = [self._addresses(batch) for batch in aligned]
        new = np.array(rows, np.int64).reshape(len(rows), self.offsets.shape[1])
        self.base = np.append(self.base, np.zeros(len(rows), np.int64))
        self.offsets = np.vstack([self.offsets, new])
        self.rows = np.append(self.rows, np.array([len(b) for b in batches], np.int64))
        self.keep += aligned

    def put(self, chunk: int, batch: pa.RecordBatch) -> None:
        """Replace one chunk, keeping the other numbers."""
        self.keep[chunk] = byte_aligned(batch, self.layouts)
        self.offsets[chunk] = self._addresses(self.keep[chunk])
        self.rows[chunk] = len(batch)

    def _addresses(self, batch: pa.RecordBatch) -> list[int]:
        """Where each buffer of the batch is."""
        row: list[int] = []
        for j, column in enumerate(self.layouts):
            if column.buffers:
                array = batch.column(j)
                row += addresses(array, column)
                self.has_nulls[j] |= array.null_count > 0
        return row

    # --- reading -------------------------------------------------------------------------------

    def gather(
        self, loc: I64, columns: Sequence[int] | None = None, sizes: Sizes | None = None
    ) -> list[pa.Array]:
        """The rows at `loc`, one new array per column. `sizes` may come from `measure`."""
        chosen = list(range(len(self.layouts)) if columns is None else columns)
        fixed = [j for j in chosen if self.layouts[j].kind == "fixed"]
        buffers = np.array([self.layouts[j].buffer + 1 for j in fixed], np.int64)

        def fill(widths: I64, targets: I64) -> None:
            k.gather_fixed(loc, self.base, self.offsets, buffers, widths, targets)

        arrays = fixed_arrays([self.layouts[j] for j in fixed], len(loc), fill)
        out = dict(zip(fixed, arrays, strict=True))
        return [self._column(loc, j, out.get(j), (sizes or {}).get(j)) for j in chosen]

    def _column(self, loc: I64, j: int, values: U8 | None, spans: Spans | None) -> pa.Array:
        column, n = self.layouts[j], len(loc)
        if column.kind == "null":
            return pa.nulls(n)
        if column.kind == "other":
            return self._other(loc, j)
        validity, nulls = None, 0
        if self.has_nulls[j]:
            bits, nulls = self._bits(loc, column.buffer, 1)
            validity = pa.py_buffer(bits) if nulls else None
        if column.kind == "var":
            spans = self.spans(loc, j) if spans is None else spans.first(n)
            return spans.copy(column.type, validity, nulls)
        if column.kind == "bits":
            values, _ = self._bits(loc, column.buffer + 1, 0)
        buffers = [validity, pa.py_buffer(values)]
        return pa.Array.from_buffers(column.type, n, buffers, null_count=nulls)

    def _bits(self, loc: I64, j: int, absent: int) -> tuple[U8, int]:
        bits = np.zeros((len(loc) + 7) // 8, np.uint8)
        zeros = k.gather_bits(loc, self.base, self.offsets, j, absent, bits)
        return bits, zeros

    def null_bits(self, loc: I64, j: int) -> U8:
        """A set bit for every NULL."""
        return ~self._bits(loc, self.layouts[j].buffer, 1)[0]

    def _other(self, loc: I64, j: int) -> pa.Array:
        """Nested and other types: take per chunk with pyarrow, then restore the order."""
        parts, where, at = [], np.zeros(len(loc), np.int64), 0
        chunk = loc >> 32
        for c in np.unique(chunk):
            mask = chunk == c
            rows = loc[mask] & k.ROW
            parts.append(self.array(int(c), j).take(pa.array(rows)))
            where[mask] = at + np.arange(len(rows))
            at += len(rows)
        if not parts:
            return pa.nulls(0, self.layouts[j].type)
        return pa.concat_arrays(parts).take(pa.array(where))

    def measure(self, loc: I64, columns: Sequence[int] | None = None) -> tuple[int, Sizes]:
        """Bytes of a row's fixed part, and where the values of varying width are."""
        chosen = range(len(self.layouts)) if columns is None else columns
        sizes: Sizes = {}
        for j in chosen:
            if self.layouts[j].kind == "var":
                sizes[j] = self.spans(loc, j)
            elif self.layouts[j].kind == "other":
                ends = np.concatenate([[0], np.cumsum(self._other_widths(loc, j))])
                sizes[j] = Spans(np.zeros(0, np.int64), ends)
        return sum(self.layouts[j].width for j in chosen) + len(chosen) // 8 + 1, sizes

    def _other_widths(self, loc: I64, j: int) -> I64:
        result = np.zeros(len(loc), np.int64)
        chunk = loc >> 32
        for c in np.unique(chunk):
            here = chunk == c
            result[here] = value_bytes(self.array(int(c), j), loc[here] & k.ROW)
        return result

    def widths(self, loc: I64) -> I64:
        """Cumulative bytes of whole rows: entry i is the size of the first i rows."""
        fixed, sizes = self.measure(loc)
        total: I64 = np.arange(len(loc) + 1, dtype=np.int64) * fixed
        for spans in sizes.values():
            total += spans.ends
        return total

    def spans(self, loc: I64, j: int) -> Spans:
        column, spans = self.layouts[j], Spans.empty(len(loc))
        where = (loc, self.base, self.offsets, column.buffer + 1, column.width)
        if column.kind == "var":
            k.var_spans(*where, spans.address, spans.ends)
        elif column.kind == "fixed":
            k.fixed_spans(*where, spans.address, spans.ends)
        else:
            return Spans.bits(self._bits(loc, column.buffer + 1, 0)[0], len(loc))
        return spans

    def pairs(
        self, start: I64, count: I32, row: int, skip: int, who: I32, loc: I64
    ) -> tuple[int, int, int]:
        return search.expand(start, count, self.rows, row, skip, who, loc)

    def add(self, chunk: int | None, source: Any, loc: I64) -> tuple[int, I64, int]:
        """Copy rows in, as a new chunk or in place of `chunk`. Returns (chunk, location of every
        row, bytes)."""
        rows = source.gather(loc)
        batch = pa.RecordBatch.from_arrays(rows, schema=self.schema)
        if chunk is None:
            chunk = self.append(batch)
        else:
            self.put(chunk, batch)
        where = (np.int64(chunk) << 32) | np.arange(len(loc), dtype=np.int64)
        return chunk, where, batch.get_total_buffer_size()

    def drop(self, chunk: int) -> None:
        self.keep[chunk] = None


def too_wide(t: pa.DataType, size: int) -> SpecError:
    return SpecError(
        f"{size} bytes of a {t} column would have to be in one batch, which holds {MOST_BYTES} at "
        f"most; make the column large_{t}, or give fewer rows at a time"
    )


def _narrow(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_binary(t))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table in one batch; an error where they are too many bytes for one."""
    widest = max(table.columns, key=lambda c: c.nbytes if _narrow(c.type) else 0, default=None)
    if widest is not None and _narrow(widest.type) and widest.nbytes > MOST_BYTES:
        raise too_wide(widest.type, widest.nbytes)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:  # texts within a nested column
        raise too_wide(max(table.columns, key=lambda c: c.nbytes).type, table.nbytes)
    if batches:
        return batches[0]
    empty = [pa.nulls(0, field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)


def group_rows(source: Any, start: I64, count: I32) -> I64:
    """Locations of all rows of some groups, group after group."""
    if len(count) == 0 or count.max() <= 1:
        return start
    total = int(count.sum())
    who, loc = np.empty(total, np.int32), np.empty(total, np.int64)
    source.pairs(start, count, 0, 0, who, loc)
    return loc
