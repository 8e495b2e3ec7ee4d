"""Rows of Parquet files, a page at a time, in the master's columns and types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import MasterError
from ...rows.layout import plain
from ..storage import Files
from .listing import DataFile, Group, open_parquet


@dataclass(frozen=True)
class PageAt:
    """Rows [at, at + length) of a row group, some of them perhaps deleted."""

    file: DataFile
    group: Group
    at: int
    length: int
    step: int  # length of a full page of this group

    def keep(self) -> pa.BooleanArray | None:
        """Which of the rows were not deleted; None: all."""
        if self.file.keep is None:
            return None
        return self.file.keep.slice(self.group.start + self.at, self.length)


def pages_in(file: DataFile, group: Group, step: int) -> Iterator[PageAt]:
    """The pages of a row group, without those whose rows were all deleted."""
    for at in range(0, group.rows, step):
        page = PageAt(file, group, at, min(step, group.rows - at), step)
        keep = page.keep()
        if keep is None or keep.true_count:
            yield page


@dataclass
class _Cursor:
    """An open row group: pages are mostly asked for in order."""

    page: PageAt
    columns: tuple[str, ...]
    at: int
    batches: Iterator[pa.RecordBatch]

    def serves(self, page: PageAt, columns: tuple[str, ...]) -> bool:
        same = self.page.group is page.group and self.columns == columns
        return same and self.at <= page.at


class PageReader:
    """Reads pages. A file that is not the one that was planned is an error, never other rows."""

    def __init__(self, files: Files, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._cursor: _Cursor | None = None
        self._opened: tuple[DataFile, pq.ParquetFile] | None = None

    def read(self, page: PageAt, columns: Sequence[str]) -> pa.RecordBatch:
        names = [page.file.names.get(n, n) for n in columns if n not in page.file.constants]
        rows = self._physical(page, tuple(names)) if names else None
        if rows is None or self._files.check_pages:
            self._files.check(page.file.found)  # what was read was still what was planned
        arrays = [self._column(page, rows, name) for name in columns]
        schema = pa.schema([self._schema.field(name) for name in columns])
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        keep = page.keep()
        return batch if keep is None else batch.filter(keep)

    def close(self) -> None:
        self._cursor = None
        if self._opened is not None:
            self._opened[1].close(force=True)
            self._opened = None

    def _physical(self, page: PageAt, names: tuple[str, ...]) -> pa.RecordBatch:
        cursor, self._cursor = self._cursor, None
        try:
            if cursor is None or not cursor.serves(page, names):
                cursor = self._open(page, names)
            batch, problem = self._advance(cursor, page), ""
        except (OSError, pa.ArrowException) as error:
            batch, problem = None, self._files.hide(error) or type(error).__name__
        if problem:  # not while the library's own error is at hand, which may have secrets in it
            self.close()
            self._files.check(page.file.found)  # the likeliest reason says more
            raise MasterError(f"reading {self._full(page)} failed: {problem}")
        if batch is None or len(batch) != page.length:
            self.close()
            raise MasterError(
                f"{self._full(page)}: row group {page.group.number} is shorter than it says"
            )
        assert cursor is not None
        self._cursor = cursor if cursor.at < page.group.rows else None
        return batch

    def _open(self, page: PageAt, names: tuple[str, ...]) -> _Cursor:
        opened = self._file(page.file)
        batches = opened.iter_batches(
            page.step, row_groups=[page.group.number], columns=list(names), use_threads=False
        )
        return _Cursor(page, names, 0, batches)

    def _advance(self, cursor: _Cursor, page: PageAt) -> pa.RecordBatch | None:
        """The page's rows; those before it are passed over."""
        batch = None
        while cursor.at <= page.at:
            batch = next(cursor.batches, None)
            cursor.at += page.step
        return batch

    def _file(self, file: DataFile) -> pq.ParquetFile:
        """Files are mostly read one after the other, so one stays open."""
        if self._opened is not None and self._opened[0] is file:
            self._files.check(file.found)
            return self._opened[1]
        self.close()
        opened = open_parquet(self._files, file.found, len(self._schema))
        self._opened = (file, opened)
        return opened

    def _column(self, page: PageAt, rows: pa.RecordBatch | None, name: str) -> pa.Array:
        t = self._schema.field(name).type
        constant = page.file.constants.get(name)
        if constant is not None or rows is None:
            return pa.repeat(pa.scalar(None, t) if constant is None else constant, page.length)
        array = rows.column(page.file.names.get(name, name))
        array = plain(array.storage if isinstance(array, pa.ExtensionArray) else array)
        try:
            return array if array.type == t else pc.cast(array, t)
        except pa.ArrowException as error:
            raise MasterError(
                f"column {name!r} of {self._full(page)} has a value that is no {t}: {error}"
            ) from error

    def _full(self, page: PageAt) -> str:
        return self._files.full(page.file.path)


def mean_bytes(group: Group) -> int:
    """Bytes of a row, as encoded."""
    return -(-group.bytes // max(1, group.rows))
