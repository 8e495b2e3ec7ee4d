"""check_master: what a master promises to the joins that read it."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import MasterError
from ..kernels.arrays import I64
from ..master import Master, MasterInfo, Pages
from ..rows.keys import key_coder
from .rows import Row, assert_same_rows, keys_of, one_array, rows_of

SAMPLE = 40  # keys that are looked up


def check_master(
    master: Master, table: pa.Table, key: str | Sequence[str], rng: random.Random | int = 0
) -> MasterInfo:
    """Check a master against the rows it should have; returns its description.

    Checked: that `describe` fits the table; that scanning from any page on and round covers the
    rows exactly; and where it has an index, that codes lie in order, that `seek` and `read` find
    all rows of keys that are there and none of others, and that `lookup` is exact for present,
    absent, repeated and NULL keys. Where it has no index, that these three refuse.
    """
    seed = rng if isinstance(rng, int) else rng.getrandbits(32)
    names = (key,) if isinstance(key, str) else tuple(key)
    try:
        _MasterCheck(master, table, names, random.Random(seed)).run()
    except Exception as error:
        name = type(master).__name__
        error.add_note(
            f"replay: check_master({name}, <{table.num_rows} rows>, {key!r}, rng={seed})"
        )
        raise
    return master.describe()


class _MasterCheck:
    def __init__(
        self, master: Master, table: pa.Table, key: tuple[str, ...], rng: random.Random
    ) -> None:
        self.master, self.table, self.key, self.rng = master, table, key, rng
        self.info = master.describe()
        self.columns = list(self.info.schema.names)
        self.rows: dict[Row, list[Row]] = {}
        for one, row in zip(keys_of(table, key), rows_of(table), strict=True):
            self.rows.setdefault(one, []).append(row)

    def run(self) -> None:
        self.describe()
        self.scan()
        self.view()
        if self.info.indexed and self.master.ranges:
            self.seek()
        if self.info.indexed:
            self.lookup()
        if not self.info.indexed or not self.master.ranges:
            self.refusals()

    def describe(self) -> None:
        info = self.info
        assert info.rows == self.table.num_rows, f"describe() says {info.rows} rows"
        assert info.schema.names == self.table.column_names, f"columns {info.schema.names}"
        assert info.key == self.key, f"key {info.key}, expected {self.key}"
        assert info.pages > 0 or info.rows == 0, f"no pages for {info.rows} rows"
        repeated = any(len(v) > 1 for k, v in self.rows.items() if None not in k)
        assert not (info.unique and repeated), "unique, but a key has several rows"

    # --- scan ----------------------------------------------------------------------------------

    def scan(self) -> None:
        last = max(0, self.info.pages - 1)
        for start in {0, last, self.rng.randint(0, last)}:
            if self.info.pages:
                self.scan_from(start, self.rng.choice([1, 5_000, 1 << 20]))
        one_run = self.master.owners(np.zeros(0, np.int64)) is None  # else rows may all be stale
        if not self.table.num_rows and one_run:
            assert self.info.pages == 0, "pages in a master without rows"

    def scan_from(self, start: int, size: int) -> None:
        """Once round, as the cyclic scan goes."""
        left, at, parts = self.info.pages, start, []
        while left > 0:
            pages = self.master.scan(at, size, self.columns)
            numbers = list(range(at, at + len(pages.rows)))
            assert numbers, f"scan({at}) gave no page"
            assert list(pages.numbers) == numbers, f"scan({at}) gave pages {pages.numbers}"
            assert numbers[-1] < self.info.pages, f"scan({at}) went on to page {numbers[-1]}"
            parts.append(self.content(pages.head(left)))  # it may go on into pages read first
            left -= len(numbers)
            at = (at + len(numbers)) % self.info.pages
        assert_same_rows(parts, self.table, f"scan from page {start}")

    def content(self, pages: Pages) -> pa.Table:
        """The rows of some pages, their codes looked at on the way."""
        assert len(pages.columns) >= len(pages.rows) == len(pages.codes) == len(pages.valid)
        table = self.master.table(pages)
        assert table.schema.equals(self.info.schema), f"pages have {table.schema}"
        if self.info.indexed:
            for i, valid in enumerate(pages.valid):
                codes = page_codes(pages, i)
                codes = codes if valid is None else codes[valid]
                assert (codes[1:] >= codes[:-1]).all(), f"page {pages.numbers[i]} is out of order"
        return table

    def view(self) -> None:
        pages = self.master.view(self.columns)
        if pages is not None:
            self.master.touch(np.ones(len(pages.rows), np.bool_))
            assert pages.allocated == 0, "a view must not allocate"
            assert_same_rows(self.content(pages), self.table, "view")

    # --- finding by key --------------------------------------------------------------------------

    def seek(self) -> None:
        """All rows of a key lie in the pages that seek names for its code."""
        keys = pa.concat_tables([self.present(), self.absent()])
        coder = key_coder(list(self.key), keys.schema, self.info.schema)
        every = coder.encode(_one_batch(keys)).codes
        codes = np.unique(every)
        low, high = self.master.seek(codes)
        assert ((low >= 0) & (low <= high) & (high <= self.info.pages)).all(), "pages out of range"
        where = {int(c): range(a, b) for c, a, b in zip(codes, low, high, strict=True)}
        for one, code in zip(keys_of(keys, self.key), every, strict=True):
            found = [self.read_page(page) for page in where[int(code)]]
            rows = [r for part in found for r in rows_of(part) if self.key_of(r) == one]
            assert_same_rows(rows, self.rows.get(one, []), f"seek and read of key {one!r}")
        self.read_many(np.unique([p for pages in where.values() for p in pages]))

    def read_page(self, page: int) -> pa.Table:
        pages = self.master.read(np.array([page], np.int64), self.columns)
        assert list(pages.numbers) == [page], f"read([{page}]) gave pages {pages.numbers}"
        return self.content(pages)

    def read_many(self, numbers: NDArray[Any]) -> None:
        """Several pages at once are those pages, in the order asked for."""
        if self.master.block_pages is None and len(numbers):
            some = np.array(sorted(self.rng.sample(list(numbers), min(5, len(numbers)))), np.int64)
            pages = self.master.read(some, self.columns)
            assert list(pages.numbers) == list(some), f"read({some}) gave {pages.numbers}"
            assert_same_rows(self.content(pages), [self.read_page(int(p)) for p in some], "read")

    def lookup(self) -> None:
        present, absent = self.present(), self.absent()
        nothing = pa.Table.from_pylist([{}], schema=present.schema)
        for what, keys in (
            ("present", present),
            ("absent", absent),
            ("no", present.slice(0, 0)),
            ("NULL", nothing),
            ("repeated, absent and NULL", pa.concat_tables([present, absent, nothing, present])),
        ):
            wanted = {k for k in keys_of(keys, self.key) if None not in k}
            expected = [row for k in wanted for row in self.rows.get(k, [])]
            assert_same_rows(
                self.master.lookup(_one_batch(keys)), expected, f"lookup of {what} keys"
            )

    def refusals(self) -> None:
        """Without an index these must refuse: an empty answer would be a wrong one."""
        keys = _one_batch(self.present())
        calls: dict[str, Callable[[], object]] = {
            "seek": lambda: self.master.seek(np.zeros(1, np.int64)),
            "read": lambda: self.master.read(np.zeros(1, np.int64), self.columns),
        }
        if not self.info.indexed:
            calls["lookup"] = lambda: self.master.lookup(keys)
        for name, call in calls.items():
            try:
                call()
            except MasterError:
                continue
            raise AssertionError(f"{name} did not refuse, though there is no index")

    # --- keys ----------------------------------------------------------------------------------

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(name)] for name in self.key)

    def present(self) -> pa.Table:
        """A sample of the keys that are there."""
        found = keys_of(self.table, self.key)
        usable = [i for i, one in enumerate(found) if None not in one]
        some = self.rng.sample(usable, min(SAMPLE, len(usable)))
        return _take(self.table.select(self.key), some)

    def absent(self) -> pa.Table:
        """Keys of the right types that are not there; none where all are, as with a bool."""
        made = [_made_up(self.table.schema.field(name).type) for name in self.key]
        length = min(len(column) for column in made)
        table = pa.table([column[:length] for column in made], list(self.key))
        fresh = [i for i, one in enumerate(keys_of(table, self.key)) if one not in self.rows]
        return _take(table, fresh[:SAMPLE])


def page_codes(pages: Pages, i: int) -> I64:
    """The code column of page i, read from its address."""
    count = int(pages.rows[i])
    if count == 0:
        return np.zeros(0, np.int64)
    return np.array((ctypes.c_int64 * count).from_address(int(pages.codes[i])), np.int64)


def _take(table: pa.Table, rows: list[int]) -> pa.Table:
    """Some rows, also of types that pyarrow's `take` does not know."""
    return pa.concat_tables([table.slice(0, 0), *(table.slice(row, 1) for row in rows)])


def _made_up(t: pa.DataType) -> pa.Array:
    """Values of any key type, few of which a table is likely to have."""
    numbers = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 100, 111, 127]
    if pa.types.is_fixed_size_binary(t):
        return pa.array([bytes([n]) * t.byte_width for n in numbers], t)
    for start in (pa.int64(), pa.int32(), pa.bool_(), pa.string()):
        with contextlib.suppress(pa.ArrowException):
            first = pa.array([str(n) for n in numbers]) if start == pa.string() else numbers
            return pa.array(first).cast(start).cast(t)
    return pa.nulls(0, t)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([one_array(c) for c in table.columns], schema=table.schema)
