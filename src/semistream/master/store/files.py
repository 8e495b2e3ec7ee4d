"""Files of a store, and rows to make one from."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from ...errors import DamagedError, SpecError, StoreError

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]"


class StoreFile:
    """A local file of known size, mapped or read by position."""

    def __init__(self, path: Path, size: int, io: str) -> None:
        self.path: Path | str = path
        self.size = size
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DamagedError(f"{path} cannot be opened: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._handle)
        found = os.fstat(self._handle).st_size
        if found != size:
            self.close()
            raise DamagedError(f"{path} has {found} bytes instead of {size}; restore the file")
        self._map: mmap.mmap | None = None
        if io == "map":
            try:
                self._map = mmap.mmap(self._handle, size, prot=mmap.PROT_READ)
            except (OSError, ValueError) as error:  # no memory for it, a folder, no bytes at all
                self.close()
                raise StoreError(f'{path} cannot be mapped: {error}; use io="pread"') from error
            self.buffer = pa.py_buffer(self._map)
            self.address = self.buffer.address

    def read_into(self, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._handle, [target[done:]], offset + done)
            except OSError as error:
                raise StoreError(f"reading {self.path} failed: {error.strerror}") from error
            if count == 0:
                raise DamagedError(f"{self.path} ends at byte {offset + done}; restore the file")
            done += count

    def close(self) -> None:
        self._close()


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Where there are no rows at all, their columns are to be checked nevertheless. Made when it is
    asked for: some types cannot even be empty, and are refused before."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def as_batches(data: Rows) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Schema and batches of anything that holds rows."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.Table):
        return data.schema, chain(map(_no_rows, [data.schema]), data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, chain(map(_no_rows, [data.schema]), data)
    batches: Iterator[pa.RecordBatch] = iter(data) if isinstance(data, Iterable) else iter(())
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise SpecError(
            "data must be a pyarrow Table, RecordBatch, RecordBatchReader or an iterable of at "
            f"least one RecordBatch, not {type(data).__name__} of {type(first).__name__}"
        )

    def rest() -> Iterable[pa.RecordBatch]:
        yield first
        yield from batches

    return first.schema, rest()
