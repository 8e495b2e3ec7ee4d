"""What has changed in a table, by a column that says when each row was last written.

Asked at most once per interval. A transaction may commit later than the moment it wrote into the
column, so times are asked for again from a little before the newest one seen: naming a key twice
is harmless. Deleted rows are in no table and show up here never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SpecError
from ...kernels.arrays import I64
from ...rows.keys import codes_of, not_null
from .columns import Column
from .session import Query

if TYPE_CHECKING:
    from .pages import Table

NOTHING: I64 = np.zeros(0, np.int64)
INTERVAL = 1.0  # seconds between two polls
OVERLAP = 10  # seconds that are asked for again
MOST = 100_000  # changed keys that are named; more: forget everything


class Changes:
    """`table` is without the user's condition: a row that has left it has changed as well."""

    def __init__(self, table: Table, column: str | None, clock: Callable[[], float]) -> None:
        self._table, self.clock = table, clock
        self._column = _checked(table, column) if column is not None else None
        self._mark: pa.Array | None = None  # of the newest change seen, as an array of one
        self._next = clock() + INTERVAL
        if self._column is not None:
            self._mark = self._newest(self._column)

    def _newest(self, column: Column) -> pa.Array | None:
        name = self._table.names([column])[0]
        query = Query(
            f"SELECT {column.select.format(f'max({name})')} AS c0 {self._table.from_([])}"
        )
        found = self._table.session.select(query, [column]).column(0)
        return found if found.null_count == 0 else None

    def poll(self) -> I64 | None:
        """Codes that have changed since the last call, if it is time to ask again."""
        if self._column is None or self.clock() < self._next:
            return NOTHING
        codes, mark = self._changed(self._column, self._mark)
        self._mark = mark if mark is not None else self._mark
        self._next = self.clock() + INTERVAL
        return codes

    def since(self, older: Changes) -> I64 | None:
        """Codes that have changed since `older` was last asked; None: any may have."""
        if self._column is None:
            return None
        return self._changed(self._column, older._mark)[0]

    def _changed(self, column: Column, mark: pa.Array | None) -> tuple[I64 | None, pa.Array | None]:
        table, query = self._table, Query()
        name = table.names([column])[0]
        conditions = [f"{name} IS NOT NULL"]
        if mark is not None:
            conditions.append(f"{name} >= {table.dialect.bind(query, column, _earlier(mark))}")
        wanted = [*table.key, column]
        query.text = f"{table.select(wanted)} {table.from_(conditions)} LIMIT {MOST + 1}"
        found = table.session.select(query, wanted)
        if len(found) == 0:
            return NOTHING, None
        if len(found) > MOST:
            return None, self._newest(column)
        keys = [found.column(i) for i in range(len(table.key))]
        codes, valid = codes_of(keys), not_null(keys)
        newest: Any = pc.max(found.column(len(table.key)))
        return np.unique(codes if valid is None else codes[valid]), pa.array(
            [newest.as_py()], column.type
        )


def _checked(table: Table, name: str) -> Column:
    column = next((c for c in table.relation.columns if c.name == name), None)
    if column is None:
        have = [c.name for c in table.relation.columns]
        raise SpecError(f"updated_at={name!r} does not exist; the table has {have}")
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        raise SpecError(
            f"updated_at={name!r} is {column.declared}; it must be a timestamp, or an integer that "
            "grows with every change"
        )
    return column


def _earlier(mark: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(mark.type):
        return mark
    raw = mark.cast(pa.int64())
    return pc.subtract(raw, OVERLAP * 1_000_000).cast(mark.type)
