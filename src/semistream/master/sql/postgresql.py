"""PostgreSQL: types, keys and the catalogue. How values travel is in postgresql_wire.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import MasterError
from ...kernels.arrays import Mask
from .columns import Column, Relation
from .dialect import KEYS, Dialect, group_indexes, integers, refusal
from .postgresql_wire import WIDTHS, PostgreSQLConnection, pack
from .session import Driver, Query, Session

_DATES = -2_440_588, 2_145_042_905  # what a date can be, in days since 1970
_TIMES = -210_866_803_200_000_000, 2**63 - 1  # and a timestamp, in microseconds
_TYPES: dict[str, tuple[pa.DataType, str]] = {
    "smallint": (pa.int16(), "int2"),
    "integer": (pa.int32(), "int4"),
    "bigint": (pa.int64(), "int8"),
    "real": (pa.float32(), "float4"),
    "double precision": (pa.float64(), "float8"),
    "boolean": (pa.bool_(), "bool"),
    "date": (pa.date32(), "date"),
    "time without time zone": (pa.time64("us"), "time"),
    "timestamp without time zone": (pa.timestamp("us"), "timestamp"),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), "timestamptz"),
}
_TEXTS = {"text": "text", "character varying": "text", "character": "bpchar", "uuid": "uuid"}
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class PostgreSQL(Dialect):
    extra = "postgresql"

    def driver(self) -> Driver:
        return PostgreSQLConnection()

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    # --- keys ----------------------------------------------------------------------------------

    def bind(self, query: Query, column: Column, value: pa.Array) -> str:
        return f"({self._array(query, column, value)})[1]"

    def match(
        self, query: Query, relation: Relation, columns: Sequence[Column], keys: list[pa.Array]
    ) -> str:
        if len(columns) == 1:
            name = self.quote(columns[0].name)
            array = self._array(query, columns[0], keys[0])
            return f"FROM {self.table(relation)} WHERE t.{name} = ANY({array})"
        arrays, equal = [], []
        for i, (column, values) in enumerate(zip(columns, keys, strict=True)):
            text = column.bind not in WIDTHS and column.bind != "bytea"
            arrays.append(self._array(query, column, values, cast=not text))
            name = f"t.{self.quote(column.name)}"
            equal.append(f"{name} = w.{KEYS}{i}" + (f"::{column.bind}" if text else ""))
            if pa.types.is_string(column.type):  # each row for its own key only
                equal.append(f'{name}::text COLLATE "C" = w.{KEYS}{i} COLLATE "C"')
        names = ", ".join(f"{KEYS}{i}" for i in range(len(columns)))
        return (
            f"FROM unnest({', '.join(arrays)}) AS w({names}) "
            f"JOIN {self.table(relation)} ON {' AND '.join(equal)} WHERE true"
        )

    def usable(self, column: Column, array: pa.Array) -> Mask | None:
        if column.bind in ("date", "timestamp", "timestamptz"):
            low, high = _DATES if column.bind == "date" else _TIMES
            values = integers(array)
            inside: Mask = (values >= low) & (values <= high)
            return None if inside.all() else inside
        if column.bind == "uuid":
            return np.asarray(pc.match_substring_regex(array, _UUID))
        if pa.types.is_string(array.type):
            found = np.asarray(pc.invert(pc.match_substring(array, "\0")))
            return None if found.all() else found
        return None

    def _array(self, query: Query, column: Column, values: pa.Array, cast: bool = True) -> str:
        """Bind values as a binary array of the column's type, or of text that is cast to it."""
        goal = column.bind or ""
        kind = goal if goal in WIDTHS or goal == "bytea" else "text"
        query.params.append(pack(kind, values))
        number = f"${len(query.params)}::{kind}[]"
        return number if goal == kind or not cast else f"{number}::{goal}[]"

    # --- the catalogue -------------------------------------------------------------------------

    def relation(self, session: Session, schema: str | None, name: str) -> Relation | None:
        query = Query()
        who = self.bind(query, _text("name"), pa.array([name]))
        where = "pg_table_is_visible(c.oid)"
        if schema is not None:
            where = f"n.nspname = {self.bind(query, _text('schema'), pa.array([schema]))}"
        query.text = (
            "SELECT c.oid::text AS c0, n.nspname::text AS c1, c.relname::text AS c2, "
            "c.relkind::text AS c3, c.reltuples::bigint::text AS c4, "
            "current_setting('server_encoding') AS c5, "
            "(pg_table_size(c.oid) / greatest(c.reltuples, 1))::bigint::text AS c6 "
            "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.relname = {who} AND {where} AND c.relkind IN ('r','p','v','m','f')"
        )
        found = _rows(session, query, 7)
        if not found:
            return None
        oid, schema, name, kind, estimate, encoding, width = found[0]
        if encoding != "UTF8":
            raise MasterError(
                f"{session.place.shown} keeps text as {encoding}; only UTF8 databases are supported"
            )
        columns, refused = self._columns(session, oid)
        return Relation(
            schema, name, columns, refused, self._indexes(session, oid), max(0, int(estimate)),
            kind in "vf", int(width) if int(estimate) > 0 else 0,
        )  # fmt: skip

    def _columns(self, session: Session, oid: str) -> tuple[tuple[Column, ...], dict[str, str]]:
        query = Query()
        table = self.bind(query, _text("oid"), pa.array([oid]))
        query.text = (
            "SELECT a.attname::text AS c0, CASE WHEN t.typtype = 'd' THEN "
            "format_type(t.typbasetype, t.typtypmod) ELSE format_type(a.atttypid, a.atttypmod) END "
            "AS c1, t.typtype::text AS c2, a.attnotnull::int::text AS c3, t.typname::text AS c4, "
            "t.oid::regtype::text AS c5 "
            "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            f"WHERE a.attrelid = {table}::oid AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum"
        )
        columns, refused = [], {}
        for name, declared, kind, not_null, internal, full in _rows(session, query, 6):
            made = _column(name, declared, kind, not_null == "1", internal, full)
            if isinstance(made, str):
                refused[name] = made
            else:
                columns.append(made)
        return tuple(columns), refused

    def _indexes(self, session: Session, oid: str) -> tuple[Any, ...]:
        query = Query()
        table = self.bind(query, _text("oid"), pa.array([oid]))
        query.text = (
            "SELECT i.indexrelid::text AS c0, a.attname::text AS c1, i.indisunique::int::text AS "
            "c2, i.indisprimary::int::text AS c3, (m.amname = 'btree')::int::text AS c4 "
            "FROM pg_catalog.pg_index i "
            "CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS p(at) "
            "JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid "
            "JOIN pg_catalog.pg_am m ON m.oid = x.relam "
            "JOIN pg_catalog.pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at] "
            f"WHERE i.indrelid = {table}::oid AND i.indisvalid AND i.indpred IS NULL "
            "AND i.indexprs IS NULL AND m.amname IN ('btree', 'hash') "
            "ORDER BY i.indexrelid, p.at"
        )
        return group_indexes(_rows(session, query, 5))


def _text(name: str) -> Column:
    return Column(name, pa.string(), "var", bind="text")


def _rows(session: Session, query: Query, count: int) -> list[tuple[Any, ...]]:
    batch = session.select(query, [_text(f"c{i}") for i in range(count)])
    return list(zip(*(c.to_pylist() for c in batch.columns), strict=True))


def _column(
    name: str, declared: str, kind: str, not_null: bool, internal: str, full: str
) -> Column | str:
    """A column from the catalogue's words; a string says why it cannot be read."""
    base = re.sub(r"\([^)]*\)", "", declared)
    if base in _TYPES:
        t, wired = _TYPES[base]
        key = None if wired.startswith("float") else wired
        return Column(name, t, wired, "{}", key, not not_null, declared)
    if base == "bytea":
        return Column(name, pa.binary(), "var", "{}", "bytea", not not_null, declared)
    if base in _TEXTS:
        return Column(name, pa.string(), "var", "{}::text", _TEXTS[base], not not_null, declared)
    if internal == "citext":
        return Column(name, pa.string(), "var", "{}::text", full, not not_null, declared)
    if base in ("json", "jsonb", "name") or kind == "e":
        return Column(name, pa.string(), "var", "{}::text", None, not not_null, declared)
    if base == "numeric":
        return _decimal(name, declared, not_null)
    return refusal(name, declared, "cast it to text in a view")


def _decimal(name: str, declared: str, not_null: bool) -> Column | str:
    match = re.search(r"\((\d+),(-?\d+)\)", declared)
    digits, scale = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < digits <= 76 or not 0 <= scale <= digits:
        why = "numeric without limits" if not match else declared
        return refusal(name, why, "cast it to numeric(p,s) of at most 76 digits in a view")
    t = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    return Column(name, t, "var", "{}::text", "numeric", not not_null, declared)
