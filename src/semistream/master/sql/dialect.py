"""What differs between databases: names, types, how keys are bound, what the catalogue says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import MasterError, SpecError
from ...kernels.arrays import I64, Mask
from .columns import Column, Index, Relation
from .session import Driver, Query, Session

KEYS = "semistream_key_"  # names of bound keys; the user's own condition must not meet them


class Dialect(ABC):
    extra: str  # what pip has to install

    @abstractmethod
    def driver(self) -> Driver: ...

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def relation(self, session: Session, schema: str | None, name: str) -> Relation | None:
        """What the catalogue knows about a table; None: there is none."""

    @abstractmethod
    def bind(self, query: Query, column: Column, value: pa.Array) -> str:
        """An expression for one value of a column, bound."""

    @abstractmethod
    def match(
        self, query: Query, relation: Relation, columns: Sequence[Column], keys: list[pa.Array]
    ) -> str:
        """FROM and WHERE for the rows whose key is among `keys`, which are bound; the table is `t`.
        The database's equality may be wider than ours, never narrower; but no row comes twice
        because two keys are equal to the database."""

    def table(self, relation: Relation) -> str:
        return f"{self.quote(relation.schema)}.{self.quote(relation.name)} AS t"

    def usable(self, column: Column, array: pa.Array) -> Mask | None:
        """Which values the column's type could hold at all (None: all): the others have no match,
        and binding them would be an error."""
        return None


def integers(array: pa.Array) -> I64:
    """Values of a natural key type as int64 (uint64 keeps its bits)."""
    t = array.type
    if pa.types.is_boolean(t):
        return np.asarray(array.cast(pa.int8())).astype(np.int64)
    if pa.types.is_temporal(t):
        array = array.view(pa.int32() if t.bit_width == 32 else pa.int64())
    values: I64 = np.asarray(array).astype(np.int64, copy=False)
    return values


def choose_columns(
    relation: Relation, key: Sequence[str], wanted: Sequence[str] | None, name: str
) -> list[Column]:
    """The columns to read, the key's among them; each must exist and be of a type we can read."""
    there = [c.name for c in relation.columns] + list(relation.refused)
    asked = there if wanted is None else list(dict.fromkeys([*key, *wanted]))
    for one in [*key, *asked]:
        if one not in there:
            raise SpecError(f"column {one!r} does not exist in {name}; it has {there}")
        if one in relation.refused:
            raise MasterError(f"{name}: {relation.refused[one]}")
    for one in key:
        column = relation.column(one)
        if column.bind is None:
            raise SpecError(
                f"key column {one!r} of {name} is {column.declared}, which cannot be a key; use an "
                "integer, text, bytes, date, time, decimal or uuid column"
            )
    order = {c.name: c for c in relation.columns}
    return [order[c] for c in there if c in set(asked)]


def refusal(name: str, declared: str, remedy: str = "") -> str:
    return (
        f"column {name!r} is {declared}, which cannot be read; "
        f"{remedy + ', or ' if remedy else ''}leave it out with columns=[...]"
    )


def group_indexes(rows: list[tuple[Any, ...]]) -> tuple[Index, ...]:
    """From rows (index, column, unique, primary, ordered) in the order of the index's columns."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return tuple(
        Index(tuple(r[1] for r in some), some[0][2] == "1", some[0][3] == "1", some[0][4] == "1")
        for some in found.values()
    )
