"""A master behind another one: rows, pages and index are its own; who inherits says what happens
when pages are read. It has no map: pages that are read count as memory."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..kernels.arrays import I32, I64, Mask
from .base import Master, MasterInfo, Pages


class WrappedMaster(Master):
    def __init__(self, master: Master) -> None:
        self.master = master
        self.first, self.last, self.traffic = master.first, master.last, master.traffic
        self.block_pages, self.scans = master.block_pages, master.scans
        self.ages, self.ttl = master.ages, master.ttl

    def describe(self) -> MasterInfo:
        return self.master.describe()

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        return self.master.scan(start, max_bytes, columns)

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        return self.master.read(numbers, columns)

    def seek(self, codes: I64, in_order: bool = True) -> tuple[I32, I32]:
        return self.master.seek(codes, in_order)

    @property
    def runs(self) -> I64:
        return self.master.runs

    def owners(self, codes: I64) -> I32 | None:
        return self.master.owners(codes)

    def stale(self, pages: Pages) -> Mask | None:
        return self.master.stale(pages)

    def page_bytes(self, numbers: I64) -> I64:
        return self.master.page_bytes(numbers)

    def table(self, pages: Pages) -> pa.Table:
        return self.master.table(pages)

    def changes(self) -> I64 | None:
        return self.master.changes()

    def identity(self) -> str | None:
        return self.master.identity()

    def changed_since(self, older: Master) -> I64 | None:
        return self.master.changed_since(
            older.master if isinstance(older, WrappedMaster) else older
        )

    def close(self) -> None:
        self.master.close()
