"""Plain Parquet as a master: scanned; found by key where row groups are sorted by it.

A page is a slice of a row group, so a scan holds little whatever the size of row groups. Where the
key is one integer, date or timestamp column and the row groups' statistics do not overlap, those
statistics are the index: all pages of a row group share its smallest and largest key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import MasterError, SpecError
from ..keys import codes_of, family, is_natural, not_null
from ..layout import row_bytes
from .base import Master, MasterInfo, Pages, Traffic, pages_of
from .store_write import design, plain_batch

I64 = NDArray[np.int64]
PAGE_BYTES = 64 << 10


@dataclass(frozen=True)
class _Group:
    file: Path
    number: int
    rows: int
    bytes: int
    bounds: tuple[int, int] | None  # codes of the smallest and largest key


class ParquetMaster(Master):
    block_pages = 1  # pages of one row group may overlap

    def __init__(self, path: Path, key: str | Sequence[str]) -> None:
        self.path = path
        self._files = _files(path)
        schema = _read(self._files[0]).schema_arrow.remove_metadata()
        self._design = design(schema, key)
        self._source_schema = schema
        self._groups = [g for file in self._files for g in self._groups_of(file)]
        total_rows = sum(g.rows for g in self._groups)
        total_bytes = sum(g.bytes for g in self._groups)
        # Encoded sizes say little about decoded ones: take the larger guess.
        width = max(row_bytes(self._design.schema), total_bytes // max(1, total_rows))
        self._page_rows = max(1, PAGE_BYTES // width)
        pages = [(g, at) for g in self._groups for at in range(0, g.rows, self._page_rows)]
        self._pages = pages
        self._set_index()
        self._cursor: tuple[int, tuple[str, ...], Iterator[pa.RecordBatch]] | None = None
        self.traffic = Traffic()
        self._info = MasterInfo(
            schema=self._design.schema,
            key=self._design.key,
            rows=total_rows,
            pages=len(pages),
            bytes=max(total_bytes, width * total_rows),
            max_page_bytes=2 * max(PAGE_BYTES, width),
            indexed=self._indexed,
            unique=False,
            version=None,
            name=str(path),
        )

    def describe(self) -> MasterInfo:
        return self._info

    def locator(self) -> dict[str, Any]:
        # Sizes and times tell these files from others that were written in their place later.
        found = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in self._files]
        path = str(self.path.absolute())
        return {"kind": "parquet", "path": path, "key": list(self._info.key), "files": found}

    def _groups_of(self, path: Path) -> Iterator[_Group]:
        file = _read(path)
        schema = file.schema_arrow.remove_metadata()
        if not schema.equals(self._source_schema):
            raise SpecError(
                f"{path} has columns {schema.names} of other names or types than "
                f"{self._files[0]}; write all files of a master with one schema"
            )
        for i in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(i)
            yield _Group(path, i, group.num_rows, group.total_byte_size, self._bounds(group))

    def _bounds(self, group: Any) -> tuple[int, int] | None:
        types = [self._design.schema.field(n).type for n in self._design.key]
        if not is_natural(types) or (pa.types.is_timestamp(types[0]) and types[0].unit == "ns"):
            return None  # statistics come as datetime, which would cut nanoseconds off
        if family(types[0]) not in ("integer", "date", "timestamp", "timestamp with zone"):
            return None
        names = [group.column(j).path_in_schema for j in range(group.num_columns)]
        found = group.column(names.index(self._design.key[0])).statistics
        if found is None or not found.has_min_max:
            return None
        low, high = codes_of([pa.array([found.min, found.max], types[0])])
        return int(low), int(high)

    def _set_index(self) -> None:
        bounds = [g.bounds for g in self._groups]
        known = [b for b in bounds if b is not None]
        in_order = all(a[1] <= b[0] for a, b in pairwise(known))
        self._indexed = bool(known) and len(known) == len(bounds) and in_order
        if self._indexed:
            ranges = [g.bounds or (0, 0) for g, _ in self._pages]
            self.first = np.array([low for low, _ in ranges], np.int64)
            self.last = np.array([high for _, high in ranges], np.int64)

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        batch = self._page(start, columns)
        if self._indexed:
            batch, _ = self._in_order(batch)
        return pages_of(batch, self._design.key, start, columns)

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        if not self._indexed:
            raise self._no_index("read pages by number")
        if len(numbers) != 1:
            raise MasterError(f"Parquet pages are read one at a time, not {len(numbers)}")
        number = int(numbers[0])
        batch, keyed = self._in_order(self._page(number, columns))
        return pages_of(batch.slice(0, keyed), self._design.key, number, columns)

    def _page(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Pages are mostly asked for in order, so the open row group goes on where it was."""
        self.check_columns(columns)
        needed = tuple(dict.fromkeys([*self._design.key, *columns]))
        if self._cursor is None or self._cursor[:2] != (number, needed):
            self._cursor = (number, needed, self._open(number, needed))
        batch = self._next(number, needed, self._cursor[2])
        self.traffic.pages += 1
        self.traffic.bytes += batch.nbytes
        return batch

    def _open(self, number: int, needed: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        group, at = self._pages[number]
        rows: Iterator[pa.RecordBatch] = _read(group.file).iter_batches(
            self._page_rows, row_groups=[group.number], columns=list(needed), use_threads=False
        )
        for _ in range(at // self._page_rows):
            next(rows)
        return rows

    def _next(
        self, number: int, needed: tuple[str, ...], rows: Iterator[pa.RecordBatch]
    ) -> pa.RecordBatch:
        group, at = self._pages[number]
        expected = min(self._page_rows, group.rows - at)
        try:
            batch = next(rows, None)
        except (OSError, pa.ArrowException) as error:
            self._cursor = None
            raise MasterError(f"reading {group.file} failed: {error}") from error
        if batch is None or len(batch) != expected:
            self._cursor = None
            raise MasterError(f"{group.file}: row group {group.number} is shorter than it says")
        following = number + 1
        same = following < len(self._pages) and self._pages[following][0] is group
        self._cursor = (following, needed, rows) if same else None
        schema = pa.schema([self._design.schema.field(name) for name in needed])
        return plain_batch(batch.select(list(needed)), schema)

    def _in_order(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Sorted by code, rows with a NULL key last; and how many rows have a key."""
        arrays = [batch.column(name) for name in self._design.key]
        codes, valid = codes_of(arrays), not_null(arrays)
        if valid is None and (codes[1:] >= codes[:-1]).all():
            return batch, len(batch)
        order = np.argsort(codes, kind="stable")
        if valid is not None:
            order = np.concatenate([order[valid[order]], np.flatnonzero(~valid)])
        keyed = len(batch) if valid is None else int(valid.sum())
        return batch.take(pa.array(order)), keyed


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = [f.relative_to(path) for f in path.rglob("*.par*q*") if f.is_file()]
    plain_names = [f for f in found if not any(part[0] in "_." for part in f.parts)]
    parquet = sorted(path / f for f in plain_names if f.suffix in (".parquet", ".parq"))
    if not parquet:
        raise MasterError(f"{path} holds no Parquet files; name a file or a folder of them")
    if any("=" in part for f in parquet for part in f.relative_to(path).parent.parts):
        raise MasterError(
            f"{path} is a partitioned folder (column=value); such columns are not in the files: "
            "read it with Spark and build a store from it with semistream.spark.build_store"
        )
    return parquet


def _read(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise MasterError(f"{path} is not a readable Parquet file: {error}") from error
