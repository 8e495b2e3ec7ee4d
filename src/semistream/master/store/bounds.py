"""What a store's files say is looked at before it is used: numbers of an index within their file,
and pages that are what the index says. See kernels/bounds.py.

An index and claims are looked at when a version is opened, a page with its checksum, before its
first use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...errors import DamagedError
from ...kernels import bounds as k
from ...kernels.arrays import I64, Mask
from ...rows.layout import Layout
from ...safety import UNREADABLE
from . import format as fmt

_KINDS = {"bits": k.BITS, "fixed": k.FIXED, "var": k.VAR}


class PageCheck:
    """Whether pages of one store can be used: made once for its columns."""

    def __init__(self, stored: pa.Schema, layout: Sequence[Layout], manifest: fmt.Manifest) -> None:
        self._stored = stored
        flat = [(j, column) for j, column in enumerate(layout) if column.buffers]
        self._names = [stored.names[j] for j, _ in flat]
        self._kind = np.array([_KINDS[column.kind] for _, column in flat], np.int64)
        self._width = np.array([column.width for _, column in flat], np.int64)
        self._buffer = np.array([column.buffer for _, column in flat], np.int64)
        self._is_key = np.array([name in manifest.key for name in self._names], np.bool_)
        code = manifest.key[0] if manifest.code == "value" else fmt.CODE_COLUMN
        self.codes = layout[stored.get_field_index(code)].buffer + 1
        strings = self._kind == k.VAR
        self._strings = [name for name, yes in zip(self._names, strings, strict=True) if yes]
        self._offsets, self._offset_width = self._buffer[strings] + 1, self._width[strings]
        self.others = [j for j, column in enumerate(layout) if column.kind == "other"]

    def index(self, where: str, run: fmt.Run, column: dict[str, I64], buffers: I64) -> None:
        """Raise unless every page that a run's index describes can be there."""
        sizes = np.array([shard.bytes for shard in run.shards], np.int64)
        length, rows = column["length"], column["rows"]
        page, wrong = k.bad_entry(
            column["first"], column["last"], column["shard"], column["offset"], length, rows,
            buffers, run.pages - run.null_pages, run.unique, sizes, self._kind, self._width,
            self._buffer, self._is_key,
        )  # fmt: skip
        if page != k.SOUND:
            what = {k.PLACE: "its place in the file", k.ROWS: "its rows", k.ORDER: "its codes"}
            told = what.get(wrong) or f"its column {self._names[wrong]!r}"
            raise unsound(where, f"of page {page}, {told} cannot be as it says")
        said = (run.rows, run.page_bytes, run.max_page_bytes)
        found = (int(rows.sum()), int(length.sum()), int(length.max(initial=0)))
        if said != found:
            raise unsound(where, f"it has (rows, bytes, longest page) {found}, its run says {said}")

    def pages(
        self, base: I64, length: I64, rows: I64, bounds: tuple[I64, I64], buffers: I64,
        searched: Mask, unique: Mask,
    ) -> tuple[int, str] | None:  # fmt: skip
        """The first of some pages in memory that cannot be used, and why; None: all can."""
        page, wrong = k.bad_page(
            base, length, rows, *bounds, searched, unique, buffers, self.codes, self._offsets,
            self._offset_width,
        )  # fmt: skip
        if page == k.SOUND:
            return None
        if wrong == k.ORDER:
            return page, "its codes are not in the order that the index says"
        return page, f"its column {self._strings[wrong]!r} points outside of it"

    def nested(self, part: pa.Buffer, rows: int) -> str | None:
        """What is wrong with the columns of a page that pyarrow reads; None: nothing."""
        try:
            batch = pa.ipc.read_record_batch(part, self._stored)
            if batch.num_rows != rows:
                return f"it has {batch.num_rows} rows, the index says {rows}"
            for j in self.others:
                batch.column(j).validate(full=True)
        except UNREADABLE as error:
            return str(error)
        return None


def check_table(where: str, table: pa.Table, schema: pa.Schema, rows: int) -> pa.Table:
    """Raise unless an index or claims have these columns, in one piece and without NULLs."""
    if table.schema.names != schema.names or not all(map(_alike, table.schema, schema)):
        raise unsound(where, f"its columns are {table.schema.names} of {table.schema.types}")
    table.validate(full=True)
    if table.num_rows != rows:
        raise unsound(where, f"it has {table.num_rows} rows, its run says {rows}")
    if any(c.num_chunks > 1 or c.null_count for c in table.columns):
        raise unsound(where, "it has NULLs, or several record batches")
    if any(_inner_nulls(chunk) for c in table.columns for chunk in c.chunks):
        raise unsound(where, "it has NULLs within lists")
    return table


def _alike(found: pa.Field, wanted: pa.Field) -> bool:
    """The same type, whatever the items of a list are called, and whether NULL is declared."""
    if not pa.types.is_fixed_size_list(wanted.type):
        return bool(found.type == wanted.type)
    a, b = found.type, wanted.type
    alike = pa.types.is_fixed_size_list(a) and a.value_type == b.value_type
    return bool(alike and a.list_size == b.list_size)


def _inner_nulls(array: pa.Array) -> bool:
    return bool(pa.types.is_fixed_size_list(array.type) and array.values.null_count)


def check_claims(where: str, table: pa.Table) -> pa.Table:
    """Raise unless claims are sorted, each code once, with numbers of rows that can be."""
    if table.num_rows:
        codes, rows = (np.asarray(table[name].chunk(0)) for name in ("code", "rows"))
        if not (codes[1:] > codes[:-1]).all() or rows.min() < 0:
            raise unsound(where, "its codes are not in order, or a number of rows is below 0")
    return table


def unsound(where: str, why: str) -> DamagedError:
    return DamagedError(f"{where} is damaged: {why}; restore the file or rebuild the store")
