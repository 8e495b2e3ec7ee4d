"""PostgreSQL, through psycopg: one binary array per column, in and out.

A query is wrapped so that the server sends `array_agg` of every column: one value per column and
not one per row and column, which kernels read in one go (kernels/wire.py). Where the caller has
room for so many bytes only, the server adds up first and sends nothing if there are more.
"""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import MasterError
from ..kernels import wire
from .sql_columns import Column, Relation, fixed_array, no_value, var_array
from .sql_dialect import KEYS, Dialect, group_indexes, integers, refusal
from .sql_session import Driver, FailedError, Query, Session, TooBigError
from .sql_url import Place, Secret

Mask = NDArray[np.bool_]
HEADER = 20
EPOCH_DAYS, EPOCH_MICROS = 10_957, 946_684_800_000_000  # 2000-01-01, where PostgreSQL's time begins
_DATES = -2_440_588, 2_145_042_905  # what a date can be, in days since 1970
_TIMES = -210_866_803_200_000_000, 2**63 - 1  # and a timestamp, in microseconds
WIDTHS = {"int2": 2, "int4": 4, "int8": 8, "float4": 4, "float8": 8, "bool": 1, "date": 4}
WIDTHS |= {"time": 8, "timestamp": 8, "timestamptz": 8}
_OIDS = {"int2": (21, 1005), "int4": (23, 1007), "int8": (20, 1016), "bool": (16, 1000)}
_OIDS |= {"date": (1082, 1182), "time": (1083, 1183), "timestamp": (1114, 1115)}
_OIDS |= {"timestamptz": (1184, 1185), "text": (25, 1009), "bytea": (17, 1001)}
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
_AGAIN = {"57P01", "57P02", "57P03", "40001", "40P01", "53300"}
_REMEDIES = {
    "57014": "ask for less, or give it more time: ...?statement_timeout=5min",
    "42501": "grant SELECT on it to this user",
    "28P01": "check user and password",
    "42601": "check where=, which is passed on as it is",
    "42703": "check where=, which is passed on as it is",
}


class PostgreSQL(Dialect):
    extra = "postgresql"

    def driver(self) -> Driver:
        return _Connection()

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
            if pa.types.is_string(
                column.type
            ):  # each row for its own key only: see `Dialect.match`
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
        goal = kind = column.bind or ""
        if kind in WIDTHS:
            data = _pack_fixed(kind, values)
        else:
            data = _pack_var(values if kind == "bytea" else values.cast(pa.string()))
            kind = "bytea" if kind == "bytea" else "text"
        element, oid = _OIDS[kind]
        head = struct.pack(">iiiii", 1, 0, element, len(values), 1)
        query.params.append((oid, head + data))
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


def _pack_fixed(kind: str, values: pa.Array) -> bytes:
    width = WIDTHS[kind]
    numbers = integers(values)
    if kind == "date":
        numbers = numbers - EPOCH_DAYS
    elif kind in ("timestamp", "timestamptz"):
        numbers = numbers - EPOCH_MICROS
    packed = np.empty(len(numbers), np.dtype([("n", ">i4"), ("v", f">i{width}")]))
    packed["n"], packed["v"] = width, numbers
    return packed.tobytes()


def _pack_var(values: pa.Array) -> bytes:
    if values.offset:
        values = pa.concat_arrays([values])
    _, ends_buffer, data = values.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, len(values) + 1).astype(np.int64)
    out = np.empty(4 * len(values) + int(ends[-1] - ends[0]), np.uint8)
    wire.pg_pack(data.address if data is not None else 0, ends, out.ctypes.data)
    return out.tobytes()


class _Connection(Driver):
    def open(self, place: Place, password: Secret | None) -> None:
        psycopg = _import()
        settings = (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; SET timezone = 'UTC'; "
            f"SET statement_timeout = {max(1, int(1000 * place.statement_timeout))}; "
            "SET client_encoding = 'UTF8'; SET jit = off"
        )
        arguments: dict[str, Any] = {"application_name": "semistream", **place.options}
        if password is not None:
            arguments["password"] = password.reveal()
        try:
            self._connection = psycopg.connect(
                host=place.host, port=place.port, dbname=place.database, user=place.user,
                connect_timeout=max(1, round(place.connect_timeout)), autocommit=True, **arguments,
            )  # fmt: skip
            self._connection.execute(settings)
        except psycopg.Error as error:
            raise _connect_failure(error) from None
        self._connection.pgconn.nonblocking = 1

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()

    def select(
        self, query: Query, columns: Sequence[Column], limit: int | None, within: float
    ) -> list[pa.Array]:
        size = " + ".join(
            ["count(*) * " + str(sum(WIDTHS.get(c.wire, 8) for c in columns) or 1)]
            + [
                f"coalesce(sum(octet_length(c{i})), 0)"
                for i, c in enumerate(columns)
                if not c.fixed
            ]
        )
        arrays = [f"array_agg(c{i})" for i in range(len(columns))]
        if limit is not None:
            arrays = [f"CASE WHEN {size} <= {int(limit)} THEN {a} END" for a in arrays]
        head = f"count(*), ({size})::bigint" if limit is not None else "count(*), 0::bigint"
        text = f"SELECT {head}, {', '.join(arrays)} FROM ({query.text}) AS q"
        result = self._run(text.encode(), query.params, time.monotonic() + within)
        count = int.from_bytes(result.get_value(0, 0), "big")
        if limit is not None and int.from_bytes(result.get_value(0, 1), "big") > limit:
            raise TooBigError
        return [_array(c, count, result.get_value(0, i + 2)) for i, c in enumerate(columns)]

    def _run(self, text: bytes, params: list[tuple[int, bytes]], end: float) -> Any:
        psycopg = _import()
        pgconn = self._connection.pgconn
        try:
            pgconn.send_query_params(
                text, [data for _, data in params], param_types=[oid for oid, _ in params],
                param_formats=[1] * len(params), result_format=1,
            )  # fmt: skip
            result = last = self._result(pgconn, end)
            while last is not None:  # up to None, the end of this query
                last = self._result(pgconn, end)
        except psycopg.Error as error:
            raise FailedError(
                f"the connection was lost: {_first_line(error)}", again=True
            ) from None
        if result is None or result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise _failure(psycopg, result)
        return result

    def _result(self, pgconn: Any, end: float) -> Any:
        """The next result, waiting until `end` for it."""
        unsent = pgconn.flush()
        while unsent or pgconn.is_busy():
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            ready = poll.poll(max(0.0, 1000 * (end - time.monotonic())))
            if not ready:
                raise FailedError("the server does not answer", again=True)
            if ready[0][1] & ~select.POLLOUT:
                pgconn.consume_input()
            unsent = pgconn.flush()
        return pgconn.get_result()


def _array(column: Column, count: int, value: bytes | None) -> pa.Array:
    if not count or value is None:
        return pa.array([], column.type)
    source = np.frombuffer(value, np.uint8).ctypes.data + HEADER
    valid = np.empty(count, np.bool_)
    if not column.fixed:
        ends, data = np.empty(count + 1, np.int64), np.empty(len(value) - HEADER, np.uint8)
        nulls = wire.pg_var(source, count, ends, data.ctypes.data, valid)
        return var_array(column, ends, data[: ends[-1]], valid, nulls)
    width = WIDTHS[column.wire]
    data = np.empty(width * count, np.uint8)
    nulls = wire.pg_fixed(source, count, width, data.ctypes.data, valid)
    if nulls < 0:
        raise MasterError(f"column {column.name!r} came in another width than {column.declared}")
    _shift(column, data, valid)
    return fixed_array(column.type, data, valid, nulls)


def _shift(column: Column, data: NDArray[np.uint8], valid: Mask) -> None:
    """From PostgreSQL's epoch to ours, in place. Infinity has no place in Arrow."""
    if column.wire not in ("date", "timestamp", "timestamptz"):
        return
    values: Any = data.view(np.int32 if column.wire == "date" else np.int64)
    limits = np.iinfo(values.dtype)
    by = EPOCH_DAYS if column.wire == "date" else EPOCH_MICROS
    if (valid & ((values > limits.max - by) | (values == limits.min))).any():
        raise no_value(column, "infinity, or a moment too far away")
    values += by


def _connect_failure(error: Any) -> FailedError:
    """Servers say FATAL when they refuse; of these, only some will not for long."""
    text = _first_line(error)
    state = getattr(error, "sqlstate", None)
    passing = ("starting up", "shutting down", "too many clients", "recovery mode", "terminating")
    again = state in _AGAIN or "FATAL" not in str(error) or any(w in str(error) for w in passing)
    remedy = "" if again else "check user, password and the name of the database"
    return FailedError(f"no connection: {text}", again, remedy)


def _failure(psycopg: Any, result: Any) -> FailedError | TooBigError:
    if result is None:
        return FailedError("the connection was lost", again=True)
    field = psycopg.pq.DiagnosticField
    state = (result.error_field(field.SQLSTATE) or b"").decode()
    text = (result.error_field(field.MESSAGE_PRIMARY) or result.error_message).decode(
        "utf-8", "replace"
    )
    if state == "54000" or "invalid memory alloc request size" in text:
        return TooBigError()
    again = state in _AGAIN or state[:2] == "08" or not state
    return FailedError(
        text.strip() + (f" ({state})" if state else ""), again, _REMEDIES.get(state, "")
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _import() -> Any:
    try:
        import psycopg
    except ImportError:
        raise MasterError(
            "PostgreSQL masters need psycopg, which is not installed; "
            "pip install 'semistream[postgresql]'"
        ) from None
    return psycopg
