"""The paged store: the default home of a master table.

Pages are read through a memory map (every page's checksum is verified before its first use, since
a damaged map shows no error), or, with io="pread", into memory of the join: adjacent pages merged,
several reads in flight.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import Chunks
from ..errors import DamagedError, SpecError, StoreError
from ..keys import codes_of
from ..layout import Layout, layouts
from . import store_format as fmt
from .base import Master, MasterInfo, Pages, Traffic
from .store_files import Rows, StoreFile, as_batches
from .store_write import PAGE_BYTES, Design, Progress, design, frame_crc, write_run

I64 = NDArray[np.int64]
IN_FLIGHT = 8


class Store(Master):
    """A store at one version. Open it with `Store.open`, make one with `Store.create`."""

    def __init__(self, root: Path, manifest: fmt.Manifest, io: str) -> None:
        self.root, self.manifest, self.io = root, manifest, io
        self.mapped = io == "map"
        self.traffic = Traffic()
        self._run = manifest.runs[0]
        self._design = Design(manifest.schema, tuple(manifest.key))
        self._layouts = layouts(self._design.stored)
        self._files = [StoreFile(root / fmt.DATA / s.name, s.bytes, io) for s in self._run.shards]
        self._load_index()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    # --- making and opening --------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        data: Rows,
        key: str | Sequence[str],
        *,
        page_bytes: int = PAGE_BYTES,
        spill_bytes: int = 1 << 30,
        progress: Progress | None = None,
    ) -> Store:
        """Sort `data` by key and write it as version 1 of a new store. Rows beyond `spill_bytes`
        are sorted on disk. A crash before the end leaves no store behind."""
        root = fmt.local_path(path)
        if fmt.versions(root):
            raise StoreError(f"{root} is a store already; choose another path or delete it first")
        schema, batches = as_batches(data)
        plan = design(schema, key, page_bytes)
        with fmt.new_root(root):
            run = write_run(root, plan, batches, spill_bytes, progress)
            fmt.publish(root, plan.manifest(1, [run]))
        return cls.open(root)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], version: int | None = None, *, io: str = "auto"
    ) -> Store:
        """Open the latest version, or a given one. `io`: "map", "pread", or "auto"."""
        root = fmt.local_path(path)
        if io not in ("auto", "map", "pread"):
            raise SpecError(f'io={io!r}: choose "auto", "map" or "pread"')
        known = fmt.versions(root)
        if not known:
            raise StoreError(f"{root} is not a store: it has no manifest; make one: Store.create")
        if version is not None and version not in known:
            raise StoreError(f"{root} has no version {version}; it has {known}")
        number = known[-1] if version is None else version
        manifest = fmt.parse_manifest(fmt.manifest_path(root, number))
        return cls(root, manifest, "map" if io == "auto" else io)

    @property
    def version(self) -> int:
        return self.manifest.version

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, version={self.version}, rows={self._run.rows})"

    def locator(self) -> dict[str, Any]:
        # The run tells a store from another that was built in its place later.
        return {
            "kind": "store",
            "path": str(self.root.absolute()),
            "version": self.version,
            "run": self._run.id,
            "io": self.io,
        }

    def describe(self) -> MasterInfo:
        return self._info

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for file in self._files:
            file.close()

    # --- index ---------------------------------------------------------------------------------

    def _load_index(self) -> None:
        run, path = self._run, self.root / fmt.DATA / f"{self._run.id}.index"
        index = StoreFile(path, run.index_bytes, "map")
        index.close()  # the map keeps the file by itself
        if fmt.crc(index.buffer) != run.index_crc:
            raise DamagedError(f"{path} is damaged: its checksum is wrong; rebuild the store")
        table = pa.ipc.open_file(index.buffer).read_all()
        self._index = table  # keeps the map alive
        column = {n: _numpy(table[n]) for n in fmt.INDEX_FIELDS}
        keyed = run.pages - run.null_pages
        self._first, self._last = column["first"], column["last"]
        self.first, self.last = self._first[:keyed], self._last[:keyed]
        self._shard, self._offset = column["shard"], column["offset"]
        self._length, self._rows, self._crc = column["length"], column["rows"], column["crc"]
        width = sum(c.buffers for c in self._layouts)
        buffers = _numpy(_chunk(table["buffers"]).values)
        self._buffers = buffers.reshape(run.pages, max(1, width))
        self._verified = np.zeros(run.pages, np.bool_)
        self._base = np.zeros(run.pages, np.int64)
        if self.mapped:
            start = np.array([f.address for f in self._files] or [0], np.int64)
            self._base = start[self._shard] + self._offset
        self._info = MasterInfo(
            schema=self.manifest.schema,
            key=tuple(self.manifest.key),
            rows=run.rows,
            pages=run.pages,
            bytes=run.page_bytes,
            max_page_bytes=run.max_page_bytes,
            indexed=True,
            unique=run.unique,
            version=self.version,
            name=str(self.root),
            # besides what is kept here, a view allocates code addresses and a list of masks
            resident_bytes=self._verified.nbytes + self._base.nbytes + 16 * run.pages,
        )

    # --- reading -------------------------------------------------------------------------------

    def view(self, columns: Sequence[str]) -> Pages | None:
        if not self.mapped:
            return None
        return self._mapped_pages(0, self._run.pages, columns)

    def touch(self, wanted: NDArray[np.bool_]) -> None:
        self.traffic.pages += int(wanted.sum())
        self.traffic.bytes += int(self._length[: len(wanted)][wanted].sum())
        self.check(wanted)

    def check(self, wanted: NDArray[np.bool_]) -> None:
        """Verify the pages in `wanted` that this process has not used yet."""
        for page in np.flatnonzero(wanted & ~self._verified[: len(wanted)]):
            file = self._files[self._shard[page]]
            part = file.buffer.slice(int(self._offset[page]), int(self._length[page]))
            self._check(int(page), part)
            self._verified[page] = True

    def checked(self) -> NDArray[np.bool_]:
        return self._verified

    def _check(self, page: int, part: pa.Buffer) -> None:
        if fmt.crc(part) != self._crc[page]:
            file = self._files[self._shard[page]]
            raise DamagedError(
                f"{file.path} is damaged: page {page} at byte {self._offset[page]} has a wrong "
                "checksum; restore the file or rebuild the store"
            )

    def page_bytes(self, numbers: I64) -> I64:
        return self._length[numbers]

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        ends = np.cumsum(self._length[start : start + 1 + max_bytes // 256])
        stop = start + max(1, int(np.searchsorted(ends, max_bytes, "right")))
        if not self.mapped:
            return self.read(np.arange(start, stop, dtype=np.int64), columns)
        wanted = np.zeros(self._run.pages, np.bool_)
        wanted[start:stop] = True
        self.touch(wanted)
        return self._mapped_pages(start, stop, columns)

    def _mapped_pages(self, start: int, stop: int, columns: Sequence[str]) -> Pages:
        part = slice(start, stop)
        chunks = self._chunks(columns, self._base[part], self._buffers[part])
        chunks.rows = self._rows[part]
        chunks.array = lambda c, j: self._batch(start + c).column(columns[j])
        return Pages(
            columns=chunks,
            codes=self._code_addresses(self._base[part], self._buffers[part]),
            rows=self._rows[part],
            numbers=np.arange(start, stop, dtype=np.int64),
            allocated=0,
            valid=self._valid(start, stop),
            keep=self,
            bounds=(self._first[part], self._last[part]),
        )

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        """Read pages into one new buffer: adjacent ones in one read, several reads in flight."""
        length = self._length[numbers]
        place = np.cumsum(length) - length
        arena = pa.allocate_buffer(int(length.sum()))
        view = memoryview(arena)
        shard, offset = self._shard[numbers], self._offset[numbers]
        gap = np.flatnonzero((np.diff(shard) != 0) | (np.diff(offset) != length[:-1])) + 1
        starts = np.concatenate([[0], gap]) if len(numbers) else gap
        ends = np.append(gap, len(numbers)) if len(numbers) else gap

        def fetch(a: int, b: int) -> None:
            size = int(length[a:b].sum())
            at = int(place[a])
            self._files[shard[a]].read_into(int(offset[a]), view[at : at + size])

        self._in_parallel(fetch, list(zip(starts, ends, strict=True)))
        for i, page in enumerate(numbers):
            self._check(int(page), arena.slice(int(place[i]), int(length[i])))
        self.traffic.pages += len(numbers)
        self.traffic.bytes += int(length.sum())
        base, buffers = arena.address + place, self._buffers[numbers]
        chunks = self._chunks(columns, base, buffers)
        chunks.rows = self._rows[numbers]

        def array(c: int, j: int) -> pa.Array:
            part = arena.slice(int(place[c]), int(length[c]))
            return pa.ipc.read_record_batch(part, self._design.stored).column(columns[j])

        chunks.array = array
        return Pages(
            columns=chunks,
            codes=self._code_addresses(base, buffers),
            rows=self._rows[numbers],
            numbers=numbers,
            allocated=arena.size + buffers.nbytes + 5 * 8 * len(numbers),
            valid=[self._valid(int(p), int(p) + 1)[0] for p in numbers],
            keep=arena,
            bounds=(self._first[numbers], self._last[numbers]),
        )

    def _in_parallel(self, fetch: Any, parts: list[tuple[int, int]]) -> None:
        if len(parts) <= 1:
            for a, b in parts:
                fetch(a, b)
            return
        with self._lock:
            if self._pool is None:  # not before the first read: a fork must not inherit threads
                self._pool = ThreadPoolExecutor(IN_FLIGHT, "semistream-read")
        for future in [self._pool.submit(fetch, a, b) for a, b in parts]:
            future.result()

    def _batch(self, page: int) -> pa.RecordBatch:
        file = self._files[self._shard[page]]
        part = file.buffer.slice(int(self._offset[page]), int(self._length[page]))
        return pa.ipc.read_record_batch(part, self._design.stored)

    def _chunks(self, columns: Sequence[str], base: I64, buffers: I64) -> Chunks:
        self.check_columns(columns)
        schema = self.manifest.schema
        chosen = [schema.get_field_index(name) for name in columns]
        layout = [self._layouts[j] for j in chosen]
        chunks = Chunks(pa.schema([schema.field(j) for j in chosen]), layout)
        chunks.base, chunks.offsets = base, buffers
        chunks.has_nulls = [_nullable(c, buffers) for c in layout]
        return chunks

    def _code_addresses(self, base: I64, buffers: I64) -> I64:
        name = self.manifest.key[0] if self.manifest.code == "value" else fmt.CODE_COLUMN
        column = self._layouts[self._design.stored.get_field_index(name)]
        return base + buffers[:, column.buffer + 1]

    def _valid(self, start: int, stop: int) -> list[NDArray[np.bool_] | None]:
        keyed = len(self.first)
        return (
            [None if p < keyed else np.zeros(self._rows[p], np.bool_) for p in range(start, stop)]
            if stop > keyed
            else [None] * (stop - start)
        )

    # --- checking ------------------------------------------------------------------------------

    def verify(self, progress: Progress | None = None) -> int:
        """Check every byte of every file, and that rows lie in code order under their codes.
        Returns the number of pages; raises DamagedError at the first fault."""
        for i, (shard, file) in enumerate(zip(self._run.shards, self._files, strict=True)):
            mine = np.flatnonzero(self._shard == i)
            order = mine[np.argsort(self._offset[mine])]
            if frame_crc(file.path, self._index.take(pa.array(order))) != shard.frame_crc:
                raise DamagedError(f"{file.path} is damaged outside its pages; rebuild the store")
        last: int | None = None
        for page in range(self._run.pages):
            pages = self.read(np.array([page], np.int64), self.manifest.key)
            last = self._check_codes(page, pages, last)
            if progress is not None:
                progress(page + 1)
        return self._run.pages

    def _check_codes(self, page: int, pages: Pages, last: int | None) -> int | None:
        if page >= len(self.first):
            return last
        table = self.table(pages)
        codes = codes_of([_chunk(table[name]) for name in self.manifest.key])
        in_order = bool((codes[1:] >= codes[:-1]).all()) and (last is None or last <= codes[0])
        kept = codes[0] == self.first[page] and codes[-1] == self.last[page]
        if not (in_order and kept):
            raise DamagedError(f"{self.root}: page {page} is not in code order; rebuild the store")
        return int(codes[-1])


def _nullable(column: Layout, buffers: I64) -> bool:
    if column.kind in ("other", "null"):
        return True
    return bool(len(buffers)) and bool(buffers[:, column.buffer].max() >= 0)


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numpy(column: pa.Array | pa.ChunkedArray) -> I64:
    array = _chunk(column) if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)
