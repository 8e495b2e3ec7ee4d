"""Master rows packed one after another: what the front stage keeps (see kernels/records.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..kernels import records as k
from ..kernels.arrays import I32, I64, U8
from .chunks import Chunks, Sizes, Spans, fixed_arrays
from .layout import layouts


class Records:
    """Packed rows in chunks, with the verbs of `Chunks`. Nested columns cannot be packed."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.layouts = layouts(schema)
        self.base: I64 = np.zeros(0, np.int64)
        self.keep: list[U8 | None] = []
        self.has_nulls = [False] * len(self.layouts)
        self._var = [j for j, c in enumerate(self.layouts) if c.kind == "var"]
        self._bits = 4 + 4 * len(self._var)  # where validity and booleans begin, a bit each
        self._place = np.zeros(len(self.layouts), np.int64)
        at = self._bits + (2 * len(self.layouts) + 7) // 8
        for j, column in enumerate(self.layouts):
            if column.kind == "fixed":
                self._place[j] = at
                at += column.width
        self._head = at

    @staticmethod
    def can_hold(schema: pa.Schema) -> bool:
        return all(column.kind != "other" for column in layouts(schema))

    def _bit(self, number: int) -> tuple[int, int]:
        """(byte, mask) of a bit: 2 j says column j is NULL, 2 j + 1 is its boolean value."""
        return self._bits + number // 8, 1 << (number % 8)

    # --- adding --------------------------------------------------------------------------------

    def add(self, chunk: int | None, source: Chunks | Records, loc: I64) -> tuple[int, I64, int]:
        """Copy rows in, as a new chunk or in place of `chunk`. Returns (chunk, location of every
        row, bytes)."""
        words, data = self._pack(source, loc)
        if chunk is None:
            chunk = len(self.base)
            self.base = np.append(self.base, 0)
            self.keep.append(None)
        self.base[chunk], self.keep[chunk] = data.ctypes.data, data
        return chunk, (np.int64(chunk) << 32) | words, data.nbytes

    def _pack(self, source: Chunks | Records, loc: I64) -> tuple[I64, U8]:
        spans = [source.spans(loc, j) for j in self._var]
        ends = np.array([s.ends for s in spans], np.int64).reshape(len(spans), len(loc) + 1)
        address = np.array([s.address for s in spans], np.int64).reshape(len(spans), len(loc))
        words = np.empty(len(loc), np.int64)
        total = k.record_words(self._head, ends, words)
        data = np.zeros(8 * total + 64, np.uint8)
        k.pack_strings(words, total, data.ctypes.data, self._head, address, ends)
        fixed = [j for j, c in enumerate(self.layouts) if c.kind in ("fixed", "bits")]
        for j, array in zip(fixed, source.gather(loc, fixed), strict=True):
            self._pack_values(j, words, data, array.buffers()[1])
        for j, column in enumerate(self.layouts):
            if source.has_nulls[j] and column.kind != "null":
                self.has_nulls[j] = True
                nulls = source.null_bits(loc, j)
                k.pack_bits(words, data.ctypes.data, nulls.ctypes.data, *self._bit(2 * j))
        return words, data

    def _pack_values(self, j: int, words: I64, data: U8, values: pa.Buffer) -> None:
        column = self.layouts[j]
        if column.kind == "bits":
            k.pack_bits(words, data.ctypes.data, values.address, *self._bit(2 * j + 1))
        else:
            place = int(self._place[j])
            k.pack_fixed(words, data.ctypes.data, values.address, column.width, place)

    def drop(self, chunk: int) -> None:
        self.keep[chunk] = None

    # --- reading -------------------------------------------------------------------------------

    def gather(
        self, loc: I64, columns: Sequence[int] | None = None, sizes: Sizes | None = None
    ) -> list[pa.Array]:
        chosen = list(range(len(self.layouts)) if columns is None else columns)
        fixed = [j for j in chosen if self.layouts[j].kind == "fixed"]

        def fill(widths: I64, targets: I64) -> None:
            k.unpack_fixed(loc, self.base, self._place[fixed], widths, targets)

        spans = {j: (sizes or {}).get(j) for j in chosen}
        for j in chosen:  # before the rest: this pass brings the records into the CPU cache
            if self.layouts[j].kind == "var" and spans[j] is None:
                spans[j] = self.spans(loc, j)
        arrays = fixed_arrays([self.layouts[j] for j in fixed], len(loc), fill)
        out = dict(zip(fixed, arrays, strict=True))
        return [self._column(loc, j, out.get(j), spans[j]) for j in chosen]

    def _column(self, loc: I64, j: int, values: U8 | None, spans: Spans | None) -> pa.Array:
        column, n = self.layouts[j], len(loc)
        if column.kind == "null":
            return pa.nulls(n)
        validity, nulls = None, 0
        if self.has_nulls[j]:
            bits, valid = self._unpack_bits(loc, 2 * j)
            nulls = n - valid
            validity = pa.py_buffer(~bits) if nulls else None
        if spans is not None:
            return spans.first(n).copy(column.type, validity, nulls)
        if column.kind == "bits":
            values, _ = self._unpack_bits(loc, 2 * j + 1)
        buffers = [validity, pa.py_buffer(values)]
        return pa.Array.from_buffers(column.type, n, buffers, null_count=nulls)

    def _unpack_bits(self, loc: I64, number: int) -> tuple[U8, int]:
        out = np.zeros((len(loc) + 7) // 8, np.uint8)
        return out, k.unpack_bits(loc, self.base, *self._bit(number), out)

    def null_bits(self, loc: I64, j: int) -> U8:
        return self._unpack_bits(loc, 2 * j)[0]

    def measure(self, loc: I64, columns: Sequence[int] | None = None) -> tuple[int, Sizes]:
        chosen = range(len(self.layouts)) if columns is None else columns
        sizes = {j: self.spans(loc, j) for j in chosen if self.layouts[j].kind == "var"}
        return sum(self.layouts[j].width for j in chosen) + len(chosen) // 8 + 1, sizes

    def widths(self, loc: I64) -> I64:
        """Cumulative bytes of whole records."""
        words = np.empty(len(loc), np.int64)
        ends = np.array([self.spans(loc, j).ends for j in self._var], np.int64)
        total = k.record_words(self._head, ends.reshape(len(self._var), len(loc) + 1), words)
        return 8 * np.append(words, total)

    def spans(self, loc: I64, j: int) -> Spans:
        column, spans = self.layouts[j], Spans.empty(len(loc))
        if column.kind == "var":
            v = self._var.index(j)
            k.string_spans(loc, self.base, v, self._head, spans.address, spans.ends)
        elif column.kind == "fixed":
            place = int(self._place[j])
            k.value_spans(loc, self.base, place, column.width, spans.address, spans.ends)
        else:
            return Spans.bits(self._unpack_bits(loc, 2 * j + 1)[0], len(loc))
        return spans

    def pairs(
        self, start: I64, count: I32, row: int, skip: int, who: I32, loc: I64
    ) -> tuple[int, int, int]:
        return k.expand_records(start, count, self.base, row, skip, who, loc)
