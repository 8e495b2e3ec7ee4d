"""Reading a store's pages.

Through a memory map (every page's checksum is verified before its first use, since a damaged map
shows no error), or, with io="pread", into memory of the join: adjacent pages merged, several reads
in flight. An object store knows only the second way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DamagedError
from ...kernels.arrays import I32, I64, Mask
from ...rows.chunks import Chunks
from ...rows.layout import Layout, layouts
from ...safety import checksum
from ..base import Master, MasterInfo, Pages, Traffic
from ..storage import DATA, Place, stays_in_memory
from . import format as fmt
from .bounds import PageCheck, unsound
from .index import StoreIndex
from .write import design_of

IN_FLIGHT = 8
CHECK_PAGES = 256  # at a time, so that little of the index is copied


class StorePages(Master):
    """The pages of a store at one version."""

    def __init__(
        self, place: Place, manifest: fmt.Manifest, io: str, like: StorePages | None = None
    ) -> None:
        """`like`: another version of the store, which may have some of its runs open already."""
        self.place, self.manifest = place, manifest
        self.io = _chosen(place, manifest) if io == "auto" else io
        self.mapped = self.io == "map"
        self.traffic = Traffic()
        self.design = design_of(manifest)
        self._layouts = layouts(self.design.stored)
        self._bounds = PageCheck(self.design.stored, self._layouts, manifest)
        shards = [shard for run in manifest.runs for shard in run.shards]
        self.files = [place.open(f"{DATA}/{s.name}", s.bytes, self.io) for s in shards]
        width = sum(c.buffers for c in self._layouts)
        older = None if like is None else like.index
        self.index: StoreIndex = StoreIndex(place, manifest, width, self._bounds, older)
        self._ready_index()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def describe(self) -> MasterInfo:
        return self._info

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for file in self.files:
            file.close()

    def _ready_index(self) -> None:
        index, runs = self.index, self.manifest.runs
        pages = len(index.rows)
        self.first, self.last = index.first[: index.keyed], index.last[: index.keyed]
        self._verified = np.zeros(pages, np.bool_)
        self._sound = np.zeros(pages, np.bool_)  # their content was looked at
        self._unique = np.array([run.unique for run in runs], np.bool_)
        self._base = np.zeros(pages, np.int64)
        if self.mapped:
            start = np.array([f.address for f in self.files] or [0], np.int64)
            self._base = start[index.shard] + index.offset
        self._info = MasterInfo(
            schema=self.manifest.schema,
            key=tuple(self.manifest.key),
            rows=self.manifest.rows,
            pages=pages,
            bytes=sum(run.page_bytes for run in runs),
            max_page_bytes=max(run.max_page_bytes for run in runs),
            indexed=True,
            unique=all(run.unique for run in runs),
            version=self.manifest.version,
            name=str(self.place),
            created=self.manifest.created or None,
            # besides what is kept here, a view allocates code addresses and a list of masks
            resident_bytes=2 * pages + self._base.nbytes + 16 * pages + index.allocated,
        )

    @property
    def runs(self) -> I64:
        return self.index.runs

    def owners(self, codes: I64) -> I32 | None:
        return None if self.index.claims is None else self.index.claims.owners(codes)

    def stale(self, pages: Pages) -> Mask | None:
        if self.index.claims is None:
            return None
        run = self.index.run_of(pages.numbers)
        return self.index.claims.stale(pages.codes, pages.rows, run)

    # --- reading -------------------------------------------------------------------------------

    def view(self, columns: Sequence[str]) -> Pages | None:
        if not self.mapped:
            return None
        return self._mapped_pages(0, len(self.index.rows), columns)

    def touch(self, wanted: Mask) -> None:
        self.traffic.pages += int(wanted.sum())
        self.traffic.bytes += int(self.index.length[: len(wanted)][wanted].sum())
        self.check(wanted)

    def check(self, wanted: Mask) -> None:
        """Verify the pages in `wanted` that this process has not used yet."""
        new = np.flatnonzero(wanted & ~self._verified[: len(wanted)])
        for at in range(0, len(new), CHECK_PAGES):
            some = new[at : at + CHECK_PAGES]
            parts = [self._part(int(page)) for page in some]
            self._check_sums(some, parts)
            self._check_content(some, parts, self._base[some], self.index.buffers[some])
            self._verified[some] = True

    def checked(self) -> Mask:
        return self._verified

    def _part(self, page: int) -> pa.Buffer:
        """The bytes of a mapped page."""
        file = self.files[self.index.shard[page]]
        return file.buffer.slice(int(self.index.offset[page]), int(self.index.length[page]))

    def _check_sums(self, numbers: I64, parts: Sequence[pa.Buffer]) -> None:
        """The bytes of pages, before anyone looks at them."""
        expected = self.index.crc[numbers].tolist()
        for i, (part, known) in enumerate(zip(parts, expected, strict=True)):
            if checksum(part) != known:
                raise self.damaged(int(numbers[i]), "it has a wrong checksum")

    def _check_content(
        self, numbers: I64, parts: Sequence[pa.Buffer], base: I64, buffers: I64
    ) -> None:
        """What kernels, and pyarrow for nested columns, are about to take for addresses, of pages
        that lie at `base`. Once is enough: bytes of the same checksum have the same."""
        new = ~self._sound[numbers]
        if not new.any():
            return
        index, some = self.index, numbers[new]
        if self._bounds.others:
            for i in map(int, np.flatnonzero(new)):
                wrong = self._bounds.nested(parts[i], int(index.rows[numbers[i]]))
                if wrong is not None:
                    raise self.damaged(int(numbers[i]), wrong)
        run = index.run_of(some)
        bad = self._bounds.pages(
            base[new], index.length[some], index.rows[some], (index.first[some], index.last[some]),
            buffers[new], run >= 0, self._unique[run],
        )  # fmt: skip
        if bad is not None:
            raise self.damaged(int(some[bad[0]]), bad[1])
        self._sound[some] = True

    def damaged(self, page: int, why: str) -> DamagedError:
        file = self.files[self.index.shard[page]]
        return unsound(str(file.path), f"page {page} at byte {self.index.offset[page]}: {why}")

    def page_bytes(self, numbers: I64) -> I64:
        return self.index.length[numbers]

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        ends = np.cumsum(self.index.length[start : start + 1 + max_bytes // 256])
        stop = start + max(1, int(np.searchsorted(ends, max_bytes, "right")))
        if not self.mapped:
            return self.read(np.arange(start, stop, dtype=np.int64), columns)
        wanted = np.zeros(len(self.index.rows), np.bool_)
        wanted[start:stop] = True
        self.touch(wanted)
        return self._mapped_pages(start, stop, columns)

    def _mapped_pages(self, start: int, stop: int, columns: Sequence[str]) -> Pages:
        part = slice(start, stop)
        base, buffers, rows = self._base[part], self.index.buffers[part], self.index.rows[part]

        def array(c: int, j: int) -> pa.Array:
            return self._batch(start + c).column(columns[j])

        return Pages(
            columns=self._chunks(columns, base, buffers, rows, array),
            codes=self._code_addresses(base, buffers),
            rows=rows,
            numbers=np.arange(start, stop, dtype=np.int64),
            allocated=0,
            valid=self._valid(start, stop),
            keep=self,
            bounds=(self.index.first[part], self.index.last[part]),
        )

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        """Read pages into one new buffer: adjacent ones in one read, several reads in flight."""
        length = self.index.length[numbers]
        place = np.cumsum(length) - length
        arena = pa.allocate_buffer(int(length.sum()))
        view = memoryview(arena)
        shard, offset = self.index.shard[numbers], self.index.offset[numbers]
        gap = np.flatnonzero((np.diff(shard) != 0) | (np.diff(offset) != length[:-1])) + 1
        starts = np.concatenate([[0], gap]) if len(numbers) else gap
        ends = np.append(gap, len(numbers)) if len(numbers) else gap

        def fetch(a: int, b: int) -> None:
            size = int(length[a:b].sum())
            at = int(place[a])
            self.files[shard[a]].read_into(int(offset[a]), view[at : at + size])

        self._in_parallel(fetch, list(zip(starts, ends, strict=True)))
        parts = [arena.slice(a, n) for a, n in zip(place.tolist(), length.tolist(), strict=True)]
        self._check_sums(numbers, parts)
        base, buffers = arena.address + place, self.index.buffers[numbers]
        self._check_content(numbers, parts, base, buffers)
        self.traffic.pages += len(numbers)
        self.traffic.bytes += int(length.sum())
        rows = self.index.rows[numbers]

        def array(c: int, j: int) -> pa.Array:
            return pa.ipc.read_record_batch(parts[c], self.design.stored).column(columns[j])

        return Pages(
            columns=self._chunks(columns, base, buffers, rows, array),
            codes=self._code_addresses(base, buffers),
            rows=rows,
            numbers=numbers,
            allocated=arena.size + buffers.nbytes + 5 * 8 * len(numbers),
            valid=[self._valid(p, p + 1)[0] for p in numbers.tolist()],
            keep=arena,
            bounds=(self.index.first[numbers], self.index.last[numbers]),
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
        return pa.ipc.read_record_batch(self._part(page), self.design.stored)

    def _chunks(
        self,
        columns: Sequence[str],
        base: I64,
        buffers: I64,
        rows: I64,
        array: Callable[[int, int], pa.Array],
    ) -> Chunks:
        self.check_columns(columns)
        schema = self.manifest.schema
        chosen = [schema.get_field_index(name) for name in columns]
        layout = [self._layouts[j] for j in chosen]
        shown = pa.schema([schema.field(j) for j in chosen])
        nullable = [_nullable(c, buffers) for c in layout]
        return Chunks.in_place(shown, layout, base, buffers, rows, nullable, array)

    def _code_addresses(self, base: I64, buffers: I64) -> I64:
        return base + buffers[:, self._bounds.codes]

    def _valid(self, start: int, stop: int) -> list[Mask | None]:
        keyed, rows = len(self.first), self.index.rows
        if stop <= keyed:
            return [None] * (stop - start)
        return [None if p < keyed else np.zeros(rows[p], np.bool_) for p in range(start, stop)]


def _chosen(place: Place, manifest: fmt.Manifest) -> str:
    """How to read where the caller has no wish."""
    size = sum(shard.bytes for run in manifest.runs for shard in run.shards)
    return "map" if not place.remote and stays_in_memory(size) else "pread"


def _nullable(column: Layout, buffers: I64) -> bool:
    if column.kind in ("other", "null"):
        return True
    return bool(len(buffers)) and bool(buffers[:, column.buffer].max() >= 0)
