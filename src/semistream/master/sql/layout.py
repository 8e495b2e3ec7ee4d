"""How a table in a database is read: how many rows, how wide, in which order, in how many pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ...rows.keys import is_natural
from ...rows.layout import row_bytes
from .columns import Column, Relation
from .pages import Segment, Table
from .session import Query, TooBigError

MOST_COUNTED = 2_000_000  # rows that are counted; beyond, the catalogue's estimate will do
WELL_KNOWN_ROWS = 10_000  # of a table whose statistics say something
SAMPLE_ROWS, SAMPLE_BYTES = 256, 4 << 20


@dataclass(frozen=True)
class Layout:
    main: Segment  # rows with a key, or all rows where the order is the primary key's
    null: Segment  # rows without one
    ranges: bool  # pages are in the order of codes
    scans: bool  # there is an order to read all rows in
    exact: bool  # a page ends where its last key ends
    indexed: bool
    unique: bool

    @property
    def pages(self) -> int:
        return self.main.pages + self.null.pages


def lay_out(table: Table, rows: int, keyed: int, page_rows: int) -> Layout:
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
    return Layout(
        main=Segment(table, True if ranges else None, order, count, rows - nulls),
        null=Segment(table, False, primary or (), more, nulls),
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
