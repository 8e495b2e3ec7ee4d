"""Front stages that are loaded before the stream comes: all of the master, or its first pages.

Pinning the first pages (xhybridjoin) pays where the master is ordered by how often its rows are
asked for. Two ways, both with whole key groups only:

    stream     the pinned rows in a hash table that the stream asks (the later, better variant)
    waiting    the pinned pages against the waiting rows, in every step (as published)
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow as pa

from ..budget import PINNED_ROW_BYTES, Ledger
from ..kernels import search
from ..kernels.arrays import I64
from ..master import Master, Pages
from ..rows.chunks import Chunks
from ..rows.sort import Sorter
from .base import Front, Hits
from .segments import new_rows
from .table import Groups, GroupTable

PAGE_BYTES = 1024  # per page: addresses


class WholeMaster(Front):
    """All of the master in memory: the bound that every comparison shows. Or a part of it that
    stays for good: xhybridjoin's pinned pages, asked by the stream."""

    def __init__(self, schema: pa.Schema, rows: int, ledger: Ledger, complete: bool = True) -> None:
        self._ledger, self.complete = ledger, complete
        self._table = GroupTable(max(8, 2 * rows))
        self._bytes = self._table.nbytes
        self.rows = new_rows(schema)

    def add(self, codes: I64, rows: Chunks, loc: I64) -> None:
        """More rows, sorted by code; all rows of a code come in one call."""
        _, where, size = self.rows.add(None, rows, loc)
        heads = np.empty(len(codes), np.int32)
        heads = heads[: search.code_runs(codes, heads)]
        count = np.diff(np.append(heads, len(codes))).astype(np.int32)
        uses = np.zeros(len(heads), np.uint32)
        self._table.put(Groups(codes[heads], where[heads], count, uses))
        self._bytes += size
        self._ledger.set("front", self._bytes)

    def probe(self, codes: I64) -> Hits | None:
        start, count, _ = self._table.probe(codes)
        return Hits(start, count, None)


def load_whole(master: Master, schema: pa.Schema, ledger: Ledger) -> WholeMaster:
    """Read all of the master and sort it by code."""
    info = master.describe()
    names = list(dict.fromkeys([*info.key, *schema.names]))
    wide = pa.schema([info.schema.field(n) for n in names])
    sorter = Sorter(wide, info.key, 1 << 62, Path(gettempdir()))
    count = 0
    for batch in master.batches(names):
        sorter.add(batch)
        count += len(batch)
    whole = WholeMaster(schema, max(info.rows, count), ledger)  # a database may have grown
    for codes, rows in sorter.pieces(1 << 16):
        whole.add(codes, Chunks.of(rows.select(schema.names)), np.arange(len(codes)))
    return whole


def pinned_block(
    master: Master, schema: pa.Schema, limit: int, ledger: Ledger
) -> tuple[Front, Pages | None, int]:
    """As many of the first pages as `limit` bytes hold, as they are."""
    ends = np.cumsum(_sizes(master) + PAGE_BYTES)
    count = int(np.searchsorted(ends, limit, "right"))
    if count == 0:
        return Front(), None, 0
    pages = master.read(np.arange(count, dtype=np.int64), schema.names)
    ledger.set("front", pages.allocated)
    return Front(), pages, count


def pinned_front(
    master: Master, schema: pa.Schema, limit: int, ledger: Ledger
) -> tuple[Front, Pages | None, int]:
    """As many of the first pages as `limit` bytes hold, in a hash table."""
    count = rows = 0
    left = limit
    for size in _sizes(master):  # pages may differ much in rows, so these are counted first
        if 2 * size > left:  # a page is read and packed: twice there
            break
        more = int(master.read(np.array([count], np.int64), []).rows[0])
        left -= 2 * int(size) + PINNED_ROW_BYTES * (more + 1)
        if left < 0:
            break
        count, rows = count + 1, rows + more
    front = WholeMaster(schema, rows, ledger, complete=False)
    for page in range(count):
        pages = master.read(np.array([page], np.int64), schema.names)
        codes = _codes(pages)
        stale = master.stale(pages)
        whole = np.ones(len(codes), np.bool_) if stale is None else ~stale
        if page > 0:
            whole &= codes != master.last[page - 1]
        if page + 1 < master.runs[1]:
            whole &= codes != master.first[page + 1]
        front.add(codes[whole], pages.columns, np.flatnonzero(whole))
    return front, None, count


def _sizes(master: Master) -> I64:
    """Of the base's pages: which pages later changes have says nothing about their use."""
    return master.page_bytes(np.arange(master.runs[1], dtype=np.int64))


def _codes(pages: Pages) -> I64:
    """The codes of a single page, in a copy."""
    count = int(pages.rows[0])
    return np.array((ctypes.c_int64 * count).from_address(int(pages.codes[0])), np.int64)
