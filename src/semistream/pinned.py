"""xhybridjoin's front stage: the first pages of the master stay in memory.

It pays where the master is ordered by how often its rows are asked for. Two ways, both with whole
key groups only:

    stream     the pinned rows in a hash table that the stream asks (the later, better variant)
    waiting    the pinned pages against the waiting rows, in every step (as published)
"""

from __future__ import annotations

import ctypes

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .front import Front, WholeMaster
from .master import Master, Pages
from .memory import Ledger

I64 = NDArray[np.int64]
TABLE_BYTES = 2 * 24 + 24  # per row: slots of the table, and what packing adds
PAGE_BYTES = 1024  # per page: addresses


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
        left -= 2 * int(size) + TABLE_BYTES * (more + 1)
        if left < 0:
            break
        count, rows = count + 1, rows + more
    front = WholeMaster(schema, rows, ledger, complete=False)
    for page in range(count):
        pages = master.read(np.array([page], np.int64), schema.names)
        codes = _codes(pages)
        whole = np.ones(len(codes), np.bool_)
        if page > 0:
            whole &= codes != master.last[page - 1]
        if page + 1 < len(master.first):
            whole &= codes != master.first[page + 1]
        front.add(codes[whole], pages.columns, np.flatnonzero(whole))
    return front, None, count


def _sizes(master: Master) -> I64:
    return master.page_bytes(np.arange(len(master.first), dtype=np.int64))


def _codes(pages: Pages) -> I64:
    """The codes of a single page, in a copy."""
    count = int(pages.rows[0])
    return np.array((ctypes.c_int64 * count).from_address(int(pages.codes[0])), np.int64)
