"""A master that is an Arrow table in this process, sorted by code when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import DuplicateKeyError
from ..kernels.arrays import I64, Mask
from ..rows.chunks import Chunks, one_batch
from ..rows.keys import codes_of, not_null
from .base import Master, MasterInfo, Pages, Traffic
from .store import Duplicates, design, plain_batch

PAGE_ROWS = 1024


class TableMaster(Master):
    """Sorted pages of an Arrow table. The table is the caller's memory, not the join's."""

    mapped = True

    def __init__(
        self, table: pa.Table, key: str | Sequence[str], page_rows: int = PAGE_ROWS
    ) -> None:
        self._design = design(table.schema, key)
        names = self._design.key
        batches = [plain_batch(b, self._design.schema) for b in table.to_batches()]
        batch = one_batch(pa.Table.from_batches(batches, self._design.schema))
        keys = [batch.column(name) for name in names]
        valid = not_null(keys)
        codes = codes_of(keys)
        order = np.argsort(codes, kind="stable")
        if valid is not None:  # rows with a NULL key go last: scanned, never found
            order = np.concatenate([order[valid[order]], np.flatnonzero(~valid)])
        sorted_rows = Chunks.of(batch).gather(order.astype(np.int64))
        self._batch = pa.RecordBatch.from_arrays(sorted_rows, schema=self._design.schema)
        keyed = len(codes) if valid is None else int(valid.sum())
        self._codes = np.ascontiguousarray(codes[order])
        cuts = [*range(0, keyed, page_rows), *range(keyed, len(codes), page_rows), len(codes)]
        self._cuts = np.array(cuts, np.int64)
        starts, ends = self._cuts[:-1], self._cuts[1:]
        self._keyed = int((starts < keyed).sum())
        self.first = self._codes[starts[: self._keyed]]
        self.last = self._codes[ends[: self._keyed] - 1]
        self.traffic = Traffic()
        unique = not (np.diff(self._codes[:keyed]) == 0).any()
        self._info = MasterInfo(
            schema=self._design.schema,
            key=names,
            rows=len(codes),
            pages=len(starts),
            bytes=self._batch.nbytes,
            max_page_bytes=self._widest_page(),
            indexed=True,
            unique=bool(unique),
            version=None,
            name="(in-memory table)",
        )

    def require_unique(self) -> None:
        """Everything is here: look at once."""
        doubles, keyed = Duplicates(self._design), int(self._cuts[self._keyed])
        if keyed:
            doubles.seen(self._codes[:keyed], self._batch.slice(0, keyed))
        doubles.finish()
        if doubles.count:
            shown = ", ".join(f"{name}={value!r}" for name, value in doubles.example.items())
            raise DuplicateKeyError(
                f"{doubles.count:,} keys of the table have more than one row, such as {shown}, and "
                "unique=True wants one each; remove the others, or leave unique out",
                doubles.example,
                doubles.count,
            )

    def _widest_page(self) -> int:
        ends = Chunks.of(self._batch).widths(np.arange(len(self._batch), dtype=np.int64))
        return int(np.diff(ends[self._cuts]).max(initial=0)) + 1

    def describe(self) -> MasterInfo:
        return self._info

    def locator(self) -> dict[str, Any]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._batch.schema) as writer:
            writer.write_batch(self._batch)
        data = sink.getvalue().to_pybytes()
        return {"kind": "memory", "table": data, "key": list(self._info.key)}

    def view(self, columns: Sequence[str]) -> Pages:
        return self._pages(np.arange(self._info.pages, dtype=np.int64), columns)

    def touch(self, wanted: Mask) -> None:
        self.traffic.pages += int(wanted.sum())

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        count = max(1, max_bytes // self._info.max_page_bytes)
        stop = min(self._info.pages, start + count)
        return self.read(np.arange(start, stop, dtype=np.int64), columns)

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        self.traffic.pages += len(numbers)
        return self._pages(numbers, columns)

    def _pages(self, numbers: I64, columns: Sequence[str]) -> Pages:
        self.check_columns(columns)
        starts, ends = self._cuts[:-1][numbers], self._cuts[1:][numbers]
        shown = self._batch.select(list(columns))
        parts = [shown.slice(int(a), int(b - a)) for a, b in zip(starts, ends, strict=True)]
        chunks = Chunks.of(*parts, schema=shown.schema)
        rows = ends - starts
        valid = [
            None if p < self._keyed else np.zeros(n, np.bool_)
            for p, n in zip(numbers, rows, strict=True)
        ]
        codes = self._codes.ctypes.data + 8 * starts
        bounds = self._codes[starts], self._codes[ends - 1]
        return Pages(chunks, codes, rows, numbers, 0, valid, self, bounds)
