"""Pages of a table in a database: ranges of keys, found when they are first needed.

    rows with a key     in the order of the key where that is the order of codes (then the table can
                        be sought), else of the primary key
    rows without one    behind them, in the order of the primary key

How many pages there are is settled when the table is opened; where they begin is found by one pass
over the index, every so many rows, without OFFSET. The first page is open below and the last above,
so rows that are inserted later belong to a page as well; a page whose rows were deleted is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...kernels.arrays import I64
from ...rows.keys import codes_of, is_natural
from ...rows.layout import row_bytes
from .columns import Column, Relation
from .dialect import Dialect
from .session import Query, Session, TooBigError

MOST_COUNTED = 2_000_000  # rows that are counted; beyond, the catalogue's estimate will do
WELL_KNOWN_ROWS = 10_000  # of a table whose statistics say something
SAMPLE_ROWS, SAMPLE_BYTES = 256, 4 << 20
CHUNK_ROWS = 1_000_000  # rows that one query walks over to find boundaries
_LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Table:
    """What every query needs: where the rows are, and which of them are meant."""

    session: Session
    dialect: Dialect
    relation: Relation
    key: tuple[Column, ...]
    where: str | None

    def select(self, columns: Sequence[Column]) -> str:
        shown = [
            f"{c.select.format('t.' + self.dialect.quote(c.name))} AS c{i}"
            for i, c in enumerate(columns)
        ]
        return "SELECT " + ", ".join(shown)

    def from_(self, conditions: Sequence[str]) -> str:
        every = " AND ".join(conditions) if conditions else "true"
        return f"FROM {self.dialect.table(self.relation)} WHERE {every} {self.filter}"

    @property
    def filter(self) -> str:
        """The user's own condition; on a line of its own, should it end in a comment."""
        return f"AND (\n{self.where}\n)" if self.where else ""

    def names(self, columns: Sequence[Column]) -> list[str]:
        return [f"t.{self.dialect.quote(c.name)}" for c in columns]

    def keyed(self, present: bool) -> str:
        """Rows that have a key, or those that have none."""
        nullable = [c for c in self.key if c.nullable]
        if not nullable:
            return "true" if present else "false"
        tests = [f"{name} IS {'NOT ' if present else ''}NULL" for name in self.names(nullable)]
        return "(" + (" AND " if present else " OR ").join(tests) + ")"


class KeyOrderedRows:
    """Some rows of the table in `pages` pages, in the order of `order`."""

    def __init__(
        self, table: Table, present: bool | None, order: Sequence[Column], pages: int, rows: int
    ) -> None:
        self._table, self._order, self.pages = table, tuple(order), pages
        self._which = [] if present is None else [table.keyed(present)]
        self._step = max(1, -(-rows // max(1, pages)))
        self._bounds: pa.RecordBatch | None = None

    @property
    def bounds(self) -> pa.RecordBatch:
        """The last key of every page but the last one; fewer where pages are empty."""
        if self._bounds is None:
            found = self._find() if self.pages > 1 else self._none()
            most = self.pages - 1
            if len(found) > most:  # the table has grown
                some = np.linspace(0, len(found) - 1, most).astype(np.int64)
                found = found.take(pa.array(np.unique(some)))
            self._bounds = found
        return self._bounds

    def _none(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(0, c.type) for c in self._order], names=[c.name for c in self._order]
        )

    def _find(self) -> pa.RecordBatch:
        """Every `_step`-th key, by one pass over the index."""
        parts = [self._none()]
        step = min(self._step, CHUNK_ROWS)
        most = step * (CHUNK_ROWS // step)
        after: pa.RecordBatch | None = None
        while True:
            query = Query()
            names = self._table.names(self._order)
            conditions = list(self._which)
            if after is not None:
                conditions.append(self._beyond(query, after, ">"))
            order = ", ".join(f"c{i}" for i in range(len(self._order)))
            inner = (
                f"{self._raw_select(names)} {self._table.from_(conditions)} "
                f"ORDER BY {', '.join(names)} LIMIT {most}"
            )
            numbered = f"SELECT {order}, row_number() OVER (ORDER BY {order}) AS r FROM ({inner}) a"
            shown = [c.select.format(f"b.c{i}") + f" AS c{i}" for i, c in enumerate(self._order)]
            query.text = (
                f"SELECT {', '.join(shown)} FROM ({numbered}) b WHERE r % {step} = 0 ORDER BY r"
            )
            found = self._table.session.select(query, self._order)
            parts.append(found)
            if len(found) < most // step:
                return _distinct(pa.Table.from_batches(parts).combine_chunks(), self._none())
            after = found.slice(len(found) - 1)

    def _raw_select(self, names: list[str]) -> str:
        return "SELECT " + ", ".join(f"{name} AS c{i}" for i, name in enumerate(names))

    def _beyond(self, query: Query, row: pa.RecordBatch, sign: str) -> str:
        """Rows behind (>) or up to and with (<=) a key of one or more columns. Written out, since
        not every database finds a range of (a, b) > (x, y) by its index."""
        dialect = self._table.dialect
        strict = sign[0]

        def tail(i: int) -> str:
            name, column = self._table.names(self._order)[i], self._order[i]

            def value() -> str:
                return dialect.bind(query, column, row.column(i))

            if i == len(self._order) - 1:
                return f"{name} {sign} {value()}"
            outer = f"{name} {strict}= {value()}"  # in this order: parameters may be positional
            inner = f"{name} {strict} {value()} OR ({name} = {value()} AND {tail(i + 1)})"
            return f"({outer} AND ({inner}))"

        return tail(0)

    def _place(self, page: int) -> tuple[int | None, int | None]:
        """(lower, upper) boundary of a page; equal ones: the page is empty."""
        count = len(self.bounds)
        if page == self.pages - 1:
            return (count - 1 if count else None), None
        if page >= count:
            return 0, 0
        return (page - 1 if page else None), page

    def range(self, query: Query, first: int, last: int) -> list[str] | None:
        """Conditions for the rows of pages first..last; None: there are no such rows."""
        low, high = self._place(first)[0], self._place(last)[1]
        conditions = list(self._which)
        if self._place(first) == (0, 0):  # empty pages lie before the last one
            low = len(self.bounds) - 1 if len(self.bounds) else None
        if self._place(last) == (0, 0) and last != self.pages - 1:
            high = len(self.bounds) - 1 if len(self.bounds) else None
            if not len(self.bounds) or low == high:
                return None
        if low is not None:
            conditions.append(self._beyond(query, self.bounds.slice(low, 1), ">"))
        if high is not None:
            conditions.append(self._beyond(query, self.bounds.slice(high, 1), "<="))
        return conditions

    def codes(self) -> tuple[I64, I64]:
        """The lowest and highest code that each page may hold, where the order is that of codes.
        With more columns than the key in the order, one key may lie on two pages."""
        ends = codes_of([self.bounds.column(0)])
        empty = np.full(self.pages - 1 - len(ends), ends[-1] if len(ends) else _LOW, np.int64)
        ends = np.concatenate([ends, empty])
        more = 1 if len(self._order) == 1 and len(self.bounds) else 0
        starts = np.where(ends < _HIGH, ends + more, ends)
        return np.concatenate([[_LOW], starts]).astype(np.int64), np.append(ends, _HIGH)


def _distinct(table: pa.Table, empty: pa.RecordBatch) -> pa.RecordBatch:
    """Boundaries that differ from the one before (a key with many rows may come again)."""
    if table.num_rows == 0:
        return empty
    batch = table.to_batches()[0]
    rows = list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
    keep = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    return batch if len(keep) == len(rows) else batch.take(pa.array(keep))


# --- how large they are to be: rows and widths, counted or as the catalogue says ---------------


@dataclass(frozen=True)
class TableLayout:
    main: KeyOrderedRows  # rows with a key, or all rows where the order is the primary key's
    null: KeyOrderedRows  # rows without one
    ranges: bool  # pages are in the order of codes
    scans: bool  # there is an order to read all rows in
    exact: bool  # a page ends where its last key ends
    indexed: bool
    unique: bool

    @property
    def pages(self) -> int:
        return self.main.pages + self.null.pages


def lay_out(table: Table, rows: int, keyed: int, page_rows: int) -> TableLayout:
    relation, names = table.relation, [c.name for c in table.key]
    primary, index = _primary(relation), _index_on(relation, names)
    natural, unique = is_natural([c.type for c in table.key]), _is_unique(relation, names)
    ranges = natural and index is not None and index.ordered
    tie: tuple[Column, ...] = ()
    if not unique and primary is not None:  # one key may have more rows than a page
        tie = tuple(c for c in primary if c not in table.key)
    nulls = rows - keyed if ranges else 0
    order = (*table.key, *tie) if ranges else (primary or ())
    count = -(-(rows - nulls) // page_rows) if order else int(rows > 0)
    more = -(-nulls // page_rows) if primary else int(nulls > 0)
    return TableLayout(
        main=KeyOrderedRows(table, True if ranges else None, order, count, rows - nulls),
        null=KeyOrderedRows(table, False, primary or (), more, nulls),
        ranges=ranges,
        scans=bool(order),
        exact=ranges and not tie,
        indexed=relation.is_view or index is not None,
        unique=natural and unique,
    )


def count_rows(table: Table) -> tuple[int, int]:
    """(rows, rows with a key): counted up to a limit, beyond it estimated."""
    kind = table.session.place.kind
    whole = Column("n", pa.int64(), "int8" if kind == "postgresql" else "i8")
    names = [f"{n} AS c{i}" for i, n in enumerate(table.names(table.key))]
    inner = f"SELECT {', '.join(names)} {table.from_([])} LIMIT {MOST_COUNTED + 1}"
    there = " AND ".join(f"c{i} IS NOT NULL" for i in range(len(names)))
    query = Query(
        f"SELECT count(*) AS c0, count(CASE WHEN {there} THEN 1 END) AS c1 FROM ({inner}) s"
    )
    found = table.session.select(query, [whole, replace(whole, name="keyed")])
    rows, keyed = found.column(0)[0].as_py(), found.column(1)[0].as_py()
    if rows > MOST_COUNTED:
        every = max(rows, table.relation.rows)
        return every, int(every / rows * keyed)
    return rows, keyed


def row_width(table: Table, columns: Sequence[Column], schema: pa.Schema) -> int:
    """Bytes of a row: from the first ones, the catalogue, at least what its columns suggest."""
    count = SAMPLE_ROWS
    while True:
        query = Query(f"{table.select(columns)} {table.from_([])} LIMIT {count}")
        try:
            found = table.session.select(query, columns, SAMPLE_BYTES if count > 1 else None)
        except TooBigError:
            count = max(1, count // 16)
            continue
        seen = found.nbytes // max(1, len(found))
        return int(max(seen, row_bytes(schema, 8), _known_width(table.relation, len(columns))))


def _known_width(relation: Relation, columns: int) -> int:
    """What the catalogue says, for the columns that are read; the first rows may be narrower than
    most. Of small tables it knows little more than one block."""
    if relation.rows < WELL_KNOWN_ROWS:
        return 0
    return relation.row_bytes * columns // (len(relation.columns) + len(relation.refused))


def _index_on(relation: Relation, key: Sequence[str]) -> Any:
    """An index whose first columns are the key's; an ordered one if there is."""
    found = [i for i in relation.indexes if set(i.columns[: len(key)]) == set(key)]
    found = [i for i in found if i.ordered or len(i.columns) == len(key)]
    return max(found, key=lambda i: i.ordered, default=None)


def _is_unique(relation: Relation, key: Sequence[str]) -> bool:
    return any(i.unique and set(i.columns) <= set(key) for i in relation.indexes)


def _primary(relation: Relation) -> tuple[Column, ...] | None:
    """The primary key's columns, if all can be bound."""
    names = next((i.columns for i in relation.indexes if i.primary), ())
    if not names or any(n in relation.refused for n in names):
        return None
    columns = tuple(relation.column(n) for n in names)
    return columns if all(c.bind for c in columns) else None
