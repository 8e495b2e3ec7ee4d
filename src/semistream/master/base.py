"""What a master table can do. A master is an ordered list of pages of rows.

    describe()            schema, key, size, whether it has an index
    scan(start, ...)      pages in file order
    seek(codes)           which pages can hold each of some sorted codes   (needs an index)
    read(pages)           some pages                                       (needs an index)
    lookup(keys)          the rows of a few keys                           (needs an index)

A page's rows are sorted by code and pages are in code order where there is an index. The join
asks for `Pages`: addresses of columns and codes, whoever owns the memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import MasterError, SpecError
from ..kernels import search
from ..kernels.arrays import I32, I64, Mask
from ..rows.chunks import Chunks
from ..rows.keys import codes_of, key_coder, not_null
from .find import find_rows

NOTHING: I64 = np.zeros(0, np.int64)


@dataclass(frozen=True)
class MasterInfo:
    """What is known about a master before reading it."""

    schema: pa.Schema
    key: tuple[str, ...]
    rows: int
    pages: int
    bytes: int
    max_page_bytes: int
    indexed: bool
    unique: bool  # no two rows share a code
    version: int | None
    name: str
    resident_bytes: int = 0  # memory that reading it allocates for good, such as an index
    created: int | None = None  # when this version was published, seconds since 1970


@dataclass
class Pages:
    """Some pages in memory. Chunk i of `columns` is page `numbers[i]`."""

    columns: Chunks
    codes: I64  # address of each page's code column
    rows: I64  # rows of each page
    numbers: I64
    allocated: int  # bytes that were allocated for them: 0 where they are mapped
    valid: list[Mask | None] = field(default_factory=list)  # rows with a key
    keep: Any = None
    bounds: tuple[I64, I64] = (NOTHING, NOTHING)  # first and last code of each page, where sorted

    def head(self, count: int) -> Pages:
        """The first `count` of these pages."""
        if count >= len(self.rows):
            return self
        some = slice(count)
        first, last = self.bounds
        return replace(
            self, codes=self.codes[some], rows=self.rows[some], numbers=self.numbers[some],
            valid=self.valid[some], bounds=(first[some], last[some]),
        )  # fmt: skip


@dataclass
class Traffic:
    """What was read so far."""

    pages: int = 0
    bytes: int = 0


class TooBigError(Exception):
    """A fetch would bring more bytes than there is room for: ask for fewer keys."""


class Master(ABC):
    """Base of all masters. `first` and `last` are the codes of every page: the sparse index."""

    first: I64 = NOTHING
    last: I64 = NOTHING
    traffic: Traffic
    mapped: bool = False  # True: `view` gives the whole master without allocating anything
    block_pages: int | None = None  # the most pages one block may have, where pages may overlap
    by_key: bool = False  # True: `fetch` brings the rows of many keys at once, as databases do
    ranges: bool = True  # False: keys can be fetched, but pages are not in the order of codes
    scans: bool = True  # False: there is no order to read all rows in, a part at a time
    ages: bool = False  # True: rows must not be kept for good; see `ttl` and `changes`
    ttl: float | None = None  # seconds after which a row must be asked for again
    must_be_unique: bool = False  # True: whoever joins looks for keys with two rows, an error

    @abstractmethod
    def describe(self) -> MasterInfo: ...

    @abstractmethod
    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        """Pages from number `start` on, in file order: at least one, about `max_bytes` at most."""

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        """The given pages (ascending)."""
        raise self._no_index("read pages by number")

    def view(self, columns: Sequence[str]) -> Pages | None:
        """The whole master as one block, where that allocates nothing (None: it would)."""
        return None

    def touch(self, wanted: Mask) -> None:
        """Pages of `view` are about to be used: check them, count them."""
        self.check(wanted)

    def check(self, wanted: Mask) -> None:
        """Raise if a page of `view` is damaged."""
        return

    def checked(self) -> Mask:
        """Which pages of `view` need no more checking."""
        return np.ones(self.describe().pages, np.bool_)

    def count(self, ranges: I64) -> None:
        """Pages [ranges[i, 0], ranges[i, 1]) of `view` were used."""
        pages = ranges[:, 1] - ranges[:, 0]
        self.traffic.pages += int(pages.sum())
        ends = np.concatenate([[0], np.cumsum(self.page_bytes(np.arange(self.describe().pages)))])
        self.traffic.bytes += int((ends[ranges[:, 1]] - ends[ranges[:, 0]]).sum())

    def seek(self, codes: I64, in_order: bool = True) -> tuple[I32, I32]:
        """The pages [low, high) that can hold each code, all of one run. `in_order`: the codes are
        sorted, and so are the pages of one run."""
        if not self.describe().indexed:
            raise self._no_index("find pages by key")
        find = search.page_ranges if in_order else search.page_of_each
        low, high = np.zeros(len(codes), np.int32), np.zeros(len(codes), np.int32)
        owner = self.owners(codes)
        if owner is None:
            find(codes, self.first, self.last, low, high)
            return low, high
        for run, (begin, end) in enumerate(pairwise(self.runs)):
            mine = np.flatnonzero(owner == run)
            a, b = np.empty(len(mine), np.int32), np.empty(len(mine), np.int32)
            find(codes[mine], self.first[begin:end], self.last[begin:end], a, b)
            low[mine], high[mine] = a + begin, b + begin
        return low, high

    # --- runs: a store whose newer pages replace rows of older ones ----------------------------

    @property
    def runs(self) -> I64:
        """Pages of run r are [runs[r], runs[r + 1]), sorted within the run."""
        return np.array([0, len(self.first)], np.int64)

    def owners(self, codes: I64) -> I32 | None:
        """The run that has all rows of each code (-1: none has any); None: there is one run."""
        return None

    def stale(self, pages: Pages) -> Mask | None:
        """Which rows of some pages have been replaced by newer runs; None: none has."""
        return None

    def page_bytes(self, numbers: I64) -> I64:
        """Bytes that reading each page allocates (where nothing is mapped)."""
        info = self.describe()
        return np.full(len(numbers), info.max_page_bytes, np.int64)

    def lookup(self, keys: pa.RecordBatch) -> pa.Table:
        """All rows whose key is among `keys` (a batch with the key columns, in any order)."""
        info = self.describe()
        coder = key_coder(list(info.key), keys.schema, info.schema)
        encoded = coder.encode(keys)
        usable = slice(None) if encoded.usable is None else encoded.usable
        codes = np.unique(encoded.codes[usable])
        _, rows = find_rows(self, codes, info.schema.names)
        table = pa.Table.from_batches([rows])
        if not coder.verify:
            return table
        if encoded.usable is not None:
            wanted_keys = [a.filter(pa.array(encoded.usable)) for a in encoded.arrays]
        else:
            wanted_keys = encoded.arrays
        return _keep_keys(table, info.key, wanted_keys)

    def fetch(
        self, keys: pa.RecordBatch, columns: Sequence[str], max_bytes: int | None = None
    ) -> Pages:
        """All rows of some distinct keys (a batch with the key columns in the master's types), as
        one page sorted by code. Only where `by_key`. TooBigError: more than `max_bytes`."""
        raise self._no_index("fetch rows by key")

    # --- what changes --------------------------------------------------------------------------

    def changes(self) -> I64 | None:
        """Codes of rows that were found to have changed since the last call; None: any may."""
        return NOTHING

    def identity(self) -> str | None:
        """What tells this version of it from any other, and from what may take its place under the
        same number; None: nothing is known."""
        return None

    def newest(self) -> Master:
        """This master as it is now: itself where nothing has changed."""
        return self

    def changed_since(self, older: Master) -> I64 | None:
        """Codes whose rows may differ from those of an older version; None: any may."""
        return NOTHING if older is self else None

    def table(self, pages: Pages) -> pa.Table:
        """Pages as a table, without stale rows."""
        loc = [(np.int64(c) << 32) | np.arange(n, dtype=np.int64) for c, n in enumerate(pages.rows)]
        where = np.concatenate(loc) if loc else np.zeros(0, np.int64)
        stale = self.stale(pages)
        rows = pages.columns.gather(where if stale is None else where[~stale])
        return pa.Table.from_arrays(rows, schema=pages.columns.schema)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, page by page."""
        info = self.describe()
        at = 0
        while at < info.pages:
            pages = self.scan(at, 1 << 20, list(columns or info.schema.names))
            yield from self.table(pages).to_batches()
            at += len(pages.rows)

    def check_columns(self, columns: Sequence[str]) -> None:
        info = self.describe()
        for name in columns:
            if name not in info.schema.names:
                raise SpecError(
                    f"column {name!r} does not exist in the master {info.name}; "
                    f"it has {info.schema.names}"
                )

    def locator(self) -> dict[str, Any]:
        """Plain data from which another process can open the same master at the same version."""
        raise MasterError(f"{self.describe().name} lives in this process only")

    def close(self) -> None:
        """Let go of files and memory."""
        return

    def require_unique(self) -> None:
        """Keys with more than one row are an error from now on: here where it is known at once,
        else for a join that meets one."""
        self.must_be_unique = not self.describe().unique

    def _no_index(self, what: str) -> MasterError:
        info = self.describe()
        return MasterError(
            f"the master {info.name} has no index on {list(info.key)}, so it cannot {what}; use "
            'algorithm="meshjoin", or build a store from it with Store.create'
        )


def no_order(name: str) -> str:
    return (
        f"{name} has neither an ordered index on its key nor a primary key that rows could be read "
        "in the order of; add one, or use sweepjoin, inlj or cinlj"
    )


def _keep_keys(table: pa.Table, key: Sequence[str], keys: list[pa.Array]) -> pa.Table:
    """Rows of `table` whose key is in `keys`, by value."""
    names = [f"__wanted_{i}" for i in range(len(keys))]
    wanted = pa.Table.from_arrays(keys, names=names).group_by(names).aggregate([])
    numbers = pa.array(np.arange(table.num_rows, dtype=np.int64))
    numbered = table.select(list(key)).append_column("__row", numbers)
    found = numbered.join(wanted, list(key), names, "left semi")
    return table.take(found["__row"].sort())


def not_among(rows: pa.RecordBatch, keys: list[pa.Array]) -> Mask:
    """True for rows, which are keys themselves, that are not among `keys`, by value."""
    names = rows.schema.names
    numbered = pa.Table.from_batches([rows]).append_column("__row", pa.array(range(len(rows))))
    wanted = pa.Table.from_arrays(keys, names=names).group_by(names).aggregate([])
    mask = np.zeros(len(rows), np.bool_)
    mask[np.asarray(numbered.join(wanted, names, names, "left anti")["__row"])] = True
    return mask


def pages_of(
    batch: pa.RecordBatch, key: Sequence[str], number: int, columns: Sequence[str]
) -> Pages:
    """One batch read from anywhere as a page, its codes computed now."""
    arrays = [batch.column(name) for name in key]
    codes = np.ascontiguousarray(codes_of(arrays))
    shown = batch.select(list(columns))
    return Pages(
        columns=Chunks.of(shown),
        codes=np.array([codes.ctypes.data], np.int64),
        rows=np.array([len(codes)], np.int64),
        numbers=np.array([number], np.int64),
        allocated=batch.nbytes + codes.nbytes,
        valid=[not_null(arrays)],
        keep=(batch, codes),
        bounds=(codes[:1], codes[-1:]),
    )
