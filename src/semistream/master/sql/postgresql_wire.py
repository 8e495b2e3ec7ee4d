"""PostgreSQL's binary arrays: one per column comes back, one per key column goes in.

A query is wrapped so that the server sends `array_agg` of every column: one value per column and
not one per row and column, which kernels read in one go (kernels/wire.py). Where the caller has
room for so many bytes only, the server adds up first and sends nothing if there are more.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import MasterError
from ...kernels import wire
from ...kernels.arrays import U8, Mask
from .address import Address, Secret
from .columns import Column, fixed_array, no_value, var_array
from .dialect import integers
from .session import Driver, FailedError, Query, TooBigError

HEADER = 20
EPOCH_DAYS, EPOCH_MICROS = 10_957, 946_684_800_000_000  # 2000-01-01, where PostgreSQL's time begins
WIDTHS = {"int2": 2, "int4": 4, "int8": 8, "float4": 4, "float8": 8, "bool": 1, "date": 4}
WIDTHS |= {"time": 8, "timestamp": 8, "timestamptz": 8}
_OIDS = {"int2": (21, 1005), "int4": (23, 1007), "int8": (20, 1016), "bool": (16, 1000)}
_OIDS |= {"date": (1082, 1182), "time": (1083, 1183), "timestamp": (1114, 1115)}
_OIDS |= {"timestamptz": (1184, 1185), "text": (25, 1009), "bytea": (17, 1001)}
_AGAIN = {"57P01", "57P02", "57P03", "40001", "40P01", "53300"}
_REMEDIES = {
    "57014": "ask for less, or give it more time: ...?statement_timeout=5min",
    "42501": "grant SELECT on it to this user",
    "28P01": "check user and password",
    "42601": "check where=, which is passed on as it is",
    "42703": "check where=, which is passed on as it is",
}


def pack(kind: str, values: pa.Array) -> tuple[int, bytes]:
    """Values as a binary array: (type of the array, its bytes). What is not of a fixed width goes
    as text, or as bytes."""
    if kind in WIDTHS:
        data = _pack_fixed(kind, values)
    else:
        data = _pack_var(values if kind == "bytea" else values.cast(pa.string()))
    element, oid = _OIDS[kind]
    return oid, struct.pack(">iiiii", 1, 0, element, len(values), 1) + data


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


class PostgreSQLConnection(Driver):
    def open(self, place: Address, password: Secret | None) -> None:
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
        return pa.nulls(0, column.type)
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


def _shift(column: Column, data: U8, valid: Mask) -> None:
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
