"""MySQL and MariaDB: types, keys and the catalogue.

Many keys are bound as one JSON text, which JSON_TABLE makes a table that is joined first: one
parameter and one plan however many keys there are. Text and bytes travel as hexadecimal digits, so
that no character needs an escape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...errors import MasterError
from ...kernels.arrays import Mask
from .columns import Column, Relation
from .dialect import KEYS, Dialect, group_indexes, integers, refusal
from .mysql_wire import MySQLConnection
from .session import Driver, Query, Session

_INTEGERS = {"tinyint": ("i1", 8), "smallint": ("i2", 16), "mediumint": ("i4", 32)}
_INTEGERS |= {"int": ("i4", 32), "bigint": ("i8", 64)}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_YEARS = -62_135_596_800_000_000, 253_402_300_799_999_999  # 0001 to 9999, in microseconds
_SPAN = (838 * 3600 + 59 * 60 + 59) * 1_000_000 + 999_999
_LEAST = {"MariaDB": (10, 6), "MySQL": (8, 0)}


class MySQL(Dialect):
    extra = "mysql"

    def driver(self) -> Driver:
        return MySQLConnection()

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    # --- keys ----------------------------------------------------------------------------------

    def bind(self, query: Query, column: Column, value: pa.Array) -> str:
        query.params.append(_texts(column, value)[0].encode())
        if column.bind in ("text", "bytes"):
            return _key(column, "?")
        return f"CAST(? AS {_sql_type(column)})"

    def match(
        self, query: Query, relation: Relation, columns: Sequence[Column], keys: list[pa.Array]
    ) -> str:
        texts = [_texts(c, k) for c, k in zip(columns, keys, strict=True)]
        rows = (
            texts[0] if len(columns) == 1 else ['","'.join(row) for row in zip(*texts, strict=True)]
        )
        if len(columns) > 1:
            json = '[["' + '"],["'.join(rows) + '"]]'
        elif columns[0].bind in ("signed", "unsigned"):
            json = f"[{','.join(rows)}]"
        else:
            json = '["' + '","'.join(rows) + '"]'
        query.params.append((json if rows else "[]").encode())
        paths = ["$"] if len(columns) == 1 else [f"$[{i}]" for i in range(len(columns))]
        shown = [
            f"{KEYS}{i} {_sql_type(c, True)} PATH '{path}'"
            for i, (c, path) in enumerate(zip(columns, paths, strict=True))
        ]
        equal = []
        for i, column in enumerate(columns):
            name, value = f"t.{self.quote(column.name)}", f"w.{KEYS}{i}"
            equal.append(f"{name} = {_key(column, value)}")
            if column.bind == "text":  # found by its collation, but each row for its own key only
                same = name if _charset(column) == "utf8mb4" else f"CONVERT({name} USING utf8mb4)"
                equal.append(f"CAST({same} AS BINARY) = UNHEX({value})")
        return (
            f"FROM JSON_TABLE(?, '$[*]' COLUMNS({', '.join(shown)})) AS w STRAIGHT_JOIN "
            f"{self.table(relation)} ON {' AND '.join(equal)} WHERE true"
        )

    def usable(self, column: Column, array: pa.Array) -> Mask | None:
        if column.wire not in ("date", "moment", "span"):
            return None
        values = integers(array)
        low, high = (-_SPAN, _SPAN) if column.wire == "span" else _YEARS
        if column.wire == "date":
            low, high = low // 86_400_000_000, high // 86_400_000_000
        inside: Mask = (values >= low) & (values <= high)
        return None if inside.all() else inside

    # --- the catalogue -------------------------------------------------------------------------

    def relation(self, session: Session, schema: str | None, name: str) -> Relation | None:
        query = Query()
        where = self._where(query, session, schema, name)
        query.text = (
            "SELECT CAST(table_schema AS CHAR) AS c0, CAST(table_name AS CHAR) AS c1, "
            "CAST(table_type AS CHAR) AS c2, CAST(COALESCE(table_rows, 0) AS CHAR) AS c3, "
            "CAST(version() AS CHAR) AS c4, CAST(COALESCE(avg_row_length, 0) AS CHAR) AS c5 "
            f"FROM information_schema.tables {where}"
        )
        found = _rows(session, query, 6)
        if not found:
            return None
        schema, name, kind, estimate, version, width = found[0]
        _check_version(session, version)
        columns, refused = self._columns(session, schema, name)
        return Relation(
            schema, name, columns, refused, self._indexes(session, schema, name), int(estimate),
            "VIEW" in kind, int(width),
        )  # fmt: skip

    def _where(self, query: Query, session: Session, schema: str | None, name: str) -> str:
        query.params += [(schema or session.place.database).encode(), name.encode()]
        text = "CONVERT(? USING utf8mb4)"
        return f"WHERE table_schema = {text} AND table_name = {text}"

    def _columns(
        self, session: Session, schema: str, name: str
    ) -> tuple[tuple[Column, ...], dict[str, str]]:
        query = Query()
        where = self._where(query, session, schema, name)
        query.text = (
            "SELECT CAST(column_name AS CHAR) AS c0, CAST(data_type AS CHAR) AS c1, "
            "CAST(column_type AS CHAR) AS c2, CAST(is_nullable AS CHAR) AS c3, "
            "CAST(COALESCE(collation_name, '') AS CHAR) AS c4 "
            f"FROM information_schema.columns {where} ORDER BY ordinal_position"
        )
        columns, refused = [], {}
        for column, kind, declared, nullable, collation in _rows(session, query, 5):
            made = _column(column, kind.lower(), declared, nullable == "YES", collation)
            if isinstance(made, str):
                refused[column] = made
            else:
                columns.append(made)
        return tuple(columns), refused

    def _indexes(self, session: Session, schema: str, name: str) -> tuple[Any, ...]:
        query = Query()
        where = self._where(query, session, schema, name)
        query.text = (
            "SELECT CAST(index_name AS CHAR) AS c0, CAST(column_name AS CHAR) AS c1, "
            "CAST(1 - non_unique AS CHAR) AS c2, CAST(index_name = 'PRIMARY' AS CHAR) AS c3, "
            "CAST(index_type = 'BTREE' AS CHAR) AS c4, CAST(sub_part IS NULL AS CHAR) AS c5 "
            f"FROM information_schema.statistics {where} AND index_type IN ('BTREE', 'HASH') "
            "ORDER BY index_name, seq_in_index"
        )
        found = _rows(session, query, 6)
        partly = {row[0] for row in found if row[1] is None or row[5] != "1"}
        return group_indexes([row for row in found if row[0] not in partly])


def _sql_type(column: Column, table: bool = False) -> str:
    """The type of a bound value: in JSON_TABLE's columns, or for CAST."""
    kind = column.bind
    if kind == "signed":
        return "BIGINT" if table else "SIGNED"
    if kind == "unsigned":
        return "BIGINT UNSIGNED" if table else "UNSIGNED"
    if kind in ("text", "bytes"):
        return "LONGTEXT CHARACTER SET ascii"
    return {"date": "DATE", "moment": "DATETIME(6)", "span": "TIME(6)"}.get(kind or "", kind or "")


def _key(column: Column, value: str) -> str:
    """A key as the column has it; text and bytes came as hexadecimal digits of UTF-8. A character
    that the column's character set lacks becomes a question mark, which finds rows that are not
    equal in bytes."""
    if column.bind == "bytes":
        return f"UNHEX({value})"
    if column.bind != "text":
        return value
    text = f"CONVERT(UNHEX({value}) USING utf8mb4)"
    if _charset(column) != "utf8mb4":
        text = f"CONVERT({text} USING {_charset(column)})"
    return f"{text} COLLATE {column.collation}"


def _charset(column: Column) -> str:
    return column.collation.split("_")[0]


def _texts(column: Column, values: pa.Array) -> list[str]:
    """Values as text without a character that JSON or SQL would take for something else."""
    if column.bind == "bytes":
        return [v.hex() for v in values.to_pylist()]
    if column.bind == "text":
        return [v.encode().hex() for v in values.to_pylist()]
    if column.bind in ("signed", "unsigned"):
        return list(map(str, values.to_pylist()))
    if column.bind == "span":
        return [_clock(int(v)) for v in integers(values)]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us"))
    result: list[str] = values.cast(pa.string()).to_pylist()
    return result


def _clock(micros: int) -> str:
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    minutes, rest = divmod(micros, 60_000_000)
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{rest // 10**6:02}.{rest % 10**6:06}"


def _rows(session: Session, query: Query, count: int) -> list[tuple[Any, ...]]:
    columns = [Column(f"c{i}", pa.string(), "var") for i in range(count)]
    batch = session.select(query, columns)
    return list(zip(*(c.to_pylist() for c in batch.columns), strict=True))


def _check_version(session: Session, version: str) -> None:
    name = "MariaDB" if "MariaDB" in version else "MySQL"
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < _LEAST[name]:
        least = ".".join(map(str, _LEAST[name]))
        raise MasterError(
            f"{session.place.shown} runs {name} {version}; {least} or newer is needed (JSON_TABLE)"
        )


def _column(name: str, kind: str, declared: str, nullable: bool, collation: str) -> Column | str:
    """A column from the catalogue's words; a string says why it cannot be read."""

    def made(t: pa.DataType, wired: str, bind: str | None, select: str = "{}") -> Column:
        return Column(name, t, wired, select, bind, nullable, declared, collation)

    if kind in _INTEGERS:
        wired, bits = _INTEGERS[kind]
        if "unsigned" in declared:
            return made(getattr(pa, f"uint{bits}")(), wired, "unsigned")
        return made(getattr(pa, f"int{bits}")(), wired, "signed")
    if kind in _TEXTS:
        plain = kind not in ("json", "enum", "set")
        return made(pa.string(), "var", "text" if plain else None)
    if kind in _BYTES:
        return made(pa.binary(), "var", "bytes")
    simple = {
        "float": (pa.float32(), "f4", None),
        "double": (pa.float64(), "f8", None),
        "date": (pa.date32(), "date", "date"),
        "datetime": (pa.timestamp("us"), "moment", "moment"),
        "timestamp": (pa.timestamp("us", "UTC"), "moment", "moment"),
        "time": (pa.duration("us"), "span", "span"),
        "year": (pa.int16(), "i2", "signed"),
    }
    if kind in simple:
        return made(*simple[kind])
    if kind in ("uuid", "inet4", "inet6"):
        return made(pa.string(), "var", None, "CAST({} AS CHAR)")
    if kind == "decimal":
        digits, scale = (int(x) for x in re.findall(r"\d+", declared)[:2])
        t = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        return made(t, "var", f"DECIMAL({digits},{scale})")
    return refusal(name, declared, "cast it to text in a view")
