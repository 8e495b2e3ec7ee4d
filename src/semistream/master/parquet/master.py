"""Parquet that others write, as a master: scanned; found by key where row groups are sorted by it.

A page is a slice of a row group, so a scan holds little whatever the size of row groups. Where the
key is one integer, date or timestamp column and the row groups' statistics do not overlap, those
statistics are the index: all pages of a row group share its smallest and largest key.

Every file is looked at before a row group is opened and after every page: one that was replaced
or removed since the master was opened is an error, never other rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import MasterError
from ...kernels.arrays import I64
from ...rows.keys import codes_of, is_natural, not_null
from ...rows.layout import row_bytes
from ..base import NOTHING, Master, MasterInfo, Pages, Traffic, pages_of
from ..storage import Files, FoundFile, open_files
from ..store import design
from .listing import DataFile, Footer, Group, common_schema, data_files, read_footers
from .read import PageAt, PageReader, mean_bytes, pages_in

_Ranged: TypeAlias = "tuple[DataFile, Group, tuple[int, int] | None]"
PAGE_BYTES = 64 << 10
MOST_CHANGED_ROWS = 1 << 20  # of which changed_since says the codes


class ParquetMaster(Master):
    block_pages = 1  # pages of one row group may overlap

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: str | Sequence[str],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        files = open_files(path, storage_options)
        partitions, data = data_files(files)
        names = [key] if isinstance(key, str) else list(key)
        footers = read_footers(files, data, names)
        schema = common_schema(files, footers, partitions)
        self._set_up(files, schema, key, footers)

    def _set_up(
        self,
        files: Files,
        schema: pa.Schema,
        key: str | Sequence[str],
        footers: Sequence[Footer],
        version: int | None = None,
    ) -> None:
        self._files, self._data = files, [footer.file for footer in footers]
        self._design = design(schema, key)
        self._reader = PageReader(files, self._design.schema)
        self.traffic = Traffic()
        groups = self._ordered_groups(footers)
        least = row_bytes(self._design.schema)
        self._set_pages(groups, least)
        rows = sum(group.rows for _, group, _ in groups)
        total = sum(group.bytes for _, group, _ in groups)
        kept = rows - sum(int(f.keep.false_count) for f in self._data if f.keep is not None)
        # Encoded sizes say little about decoded ones: take the larger guess.
        width = max([least, *(mean_bytes(group) for _, group, _ in groups)])
        self._info = MasterInfo(
            schema=self._design.schema,
            key=self._design.key,
            rows=kept,
            pages=len(self._pages),
            bytes=max(total, max(least, total // max(1, rows)) * rows),
            max_page_bytes=2 * max(PAGE_BYTES, width),
            indexed=self._indexed,
            unique=False,
            version=version,
            name=files.name,
            resident_bytes=sum(f.keep.nbytes for f in self._data if f.keep is not None),
        )

    def _ordered_groups(self, footers: Sequence[Footer]) -> list[_Ranged]:
        """All row groups: by key where their ranges do not overlap, else as files are named."""
        groups = [(f.file, g, self._bounds(f, g)) for f in footers for g in f.groups]
        self._indexed = bool(groups) and all(bounds is not None for _, _, bounds in groups)
        if self._indexed:
            by_key = sorted(groups, key=lambda one: one[2] or (0, 0))
            ranges = [bounds or (0, 0) for _, _, bounds in by_key]
            self._indexed = all(a[1] <= b[0] for a, b in pairwise(ranges))
        return by_key if self._indexed else groups

    def _set_pages(self, groups: Sequence[_Ranged], least: int) -> None:
        self._pages: list[PageAt] = []
        ranges: list[tuple[int, int]] = []
        for file, group, bounds in groups:
            step = max(1, PAGE_BYTES // max(least, mean_bytes(group)))
            some = list(pages_in(file, group, step))
            self._pages += some
            ranges += [bounds or (0, 0)] * len(some)
        if self._indexed:
            self.first = np.array([low for low, _ in ranges], np.int64)
            self.last = np.array([high for _, high in ranges], np.int64)

    def _bounds(self, footer: Footer, group: Group) -> tuple[int, int] | None:
        """Codes of the smallest and largest key, where they are known in the master's type."""
        types = [self._design.schema.field(name).type for name in self._design.key]
        if not is_natural(types):
            return None
        name = self._design.key[0]
        constant = footer.file.constants.get(name)
        if constant is None:
            inside = footer.file.names.get(name, name)
            return group.bounds if footer.schema.field(inside).type == types[0] else None
        if not constant.is_valid:
            return None
        code = int(codes_of([pa.repeat(constant, 1)])[0])
        return code, code

    def describe(self) -> MasterInfo:
        return self._info

    def locator(self) -> dict[str, Any]:
        # Sizes and times tell these files from others that were written in their place later.
        found = [[f.path, f.found.size, f.found.mark] for f in self._data]
        place = self._files.locator()
        return {"kind": "parquet", **place, "key": list(self._info.key), "files": found}

    @classmethod
    def from_locator(cls, locator: dict[str, Any]) -> Master:
        """The master that a locator described; an error if it is not the same any more."""
        master = cls(locator["path"], locator["key"], locator.get("options"))
        now = {f.path: f.found for f in master._data}
        for path, size, mark in locator["files"]:
            if now.pop(path, None) != FoundFile(path, size, mark):
                raise MasterError(
                    f"{master._files.full(path)} is not the file with which the query began: it "
                    "was replaced or removed, or is a copy with another time; start it again"
                )
        for path in now:
            raise MasterError(
                f"{master._files.full(path)} was added since the query began; start it again"
            )
        return master

    # --- what changes ----------------------------------------------------------------------------

    def newest(self) -> Master:
        _, now = data_files(self._files)
        if [file.found for file in now] == [file.found for file in self._data]:
            return self
        options = self._files.locator().get("options")
        return self._followed_by(ParquetMaster(self._files.path, self._info.key, options))

    def _followed_by(self, fresh: ParquetMaster) -> Master:
        if not fresh._info.schema.equals(self._info.schema):
            raise MasterError(
                f"the columns of {self._info.name} have changed: {fresh._info.schema.names} of "
                f"types {[str(t) for t in fresh._info.schema.types]} now; start the join again"
            )
        return fresh

    def changed_since(self, older: Master) -> I64 | None:
        """The keys of files that only one of the two has, if they can still be read."""
        if older is self:
            return NOTHING
        if not isinstance(older, ParquetMaster) or older._files.path != self._files.path:
            return None
        if older._info.key != self._info.key or older._info.schema != self._info.schema:
            return None
        here, there = {_identity(f) for f in self._data}, {_identity(f) for f in older._data}
        sides = [(self, there), (older, here)]
        parts = [[p for p in m._pages if _identity(p.file) not in same] for m, same in sides]
        if sum(page.length for some in parts for page in some) > MOST_CHANGED_ROWS:
            return None
        codes = [NOTHING]
        try:
            for (master, _), some in zip(sides, parts, strict=True):
                codes += [master._page_codes(page) for page in some]
        except MasterError:
            return None  # files are gone: any key may have been in them
        return np.unique(np.concatenate(codes))

    def _page_codes(self, page: PageAt) -> I64:
        batch = self._rows(page, ())
        arrays = [batch.column(name) for name in self._design.key]
        codes, valid = codes_of(arrays), not_null(arrays)
        return codes if valid is None else codes[valid]

    # --- reading ---------------------------------------------------------------------------------

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        batch = self._rows(self._pages[start], columns)
        if self._indexed:
            batch, _ = self._in_order(batch)
        return pages_of(batch, self._design.key, start, columns)

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        if not self._indexed:
            raise self._no_index("read pages by number")
        if len(numbers) != 1:
            raise MasterError(f"Parquet pages are read one at a time, not {len(numbers)}")
        number = int(numbers[0])
        batch, keyed = self._in_order(self._rows(self._pages[number], columns))
        return pages_of(batch.slice(0, keyed), self._design.key, number, columns)

    def _rows(self, page: PageAt, columns: Sequence[str]) -> pa.RecordBatch:
        self.check_columns(columns)
        batch = self._reader.read(page, list(dict.fromkeys([*self._design.key, *columns])))
        self.traffic.pages += 1
        self.traffic.bytes += batch.nbytes
        return batch

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

    def close(self) -> None:
        self._reader.close()


def _identity(file: DataFile) -> tuple[Any, ...]:
    """What tells a file's rows from those of any other."""
    keep = None if file.keep is None else np.packbits(file.keep.to_numpy(False)).tobytes()
    return file.found, keep
