"""Prepared statements of the MySQL protocol, on a connection that PyMySQL has made.

PyMySQL logs in (passwords, TLS) and then would read every value of every row in Python, and put
parameters into the text of a statement. Here parameters are bound, and the rows of the binary
protocol are read into one buffer that kernels turn into columns (kernels/wire.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import MasterError
from ...kernels import wire
from ...kernels.arrays import I64
from .address import Address, Secret
from .columns import Column, fixed_array, no_value, var_array
from .session import Driver, FailedError, Query, TooBigError

WIDTHS = {"i1": 1, "i2": 2, "i4": 4, "i8": 8, "f4": 4, "f8": 8}
CHUNK = 1 << 18
MOST_STATEMENTS = 64
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_BLOB, _VAR_STRING = 0xFC, 0xFD
_MOST_PACKET = 0xFFFFFF
# What goes by itself: too many connections, server shutting down or gone, deadlock, lock wait,
# connection killed, and the client's own "cannot connect", "gone away", "lost".
_AGAIN = {1040, 1053, 1077, 1152, 1159, 1161, 1203, 1205, 1213, 1226, 1927, 2002, 2003, 2006, 2013}
_AGAIN |= {2026, 2055, 3169, 4031}
_TIMEOUT = {1028, 1317, 1969, 3024}
_REMEDIES = {
    1045: "check user and password",
    1044: "check the user's rights, and the name of the database",
    1142: "grant SELECT on it to this user",
    1143: "grant SELECT on its columns to this user",
    1064: "check where=, which is passed on as it is",
    1054: "check where=, which is passed on as it is",
}


class MySQLConnection(Driver):
    def open(self, place: Address, password: Secret | None) -> None:
        pymysql = _import()
        ssl: dict[str, Any] = dict(place.options)
        if "ssl_verify_identity" in ssl:
            ssl["ssl_verify_identity"] = ssl["ssl_verify_identity"] in ("1", "true")
        try:
            self._connection = pymysql.connect(
                host=place.host, port=place.port, database=place.database, user=place.user,
                password=password.reveal().encode() if password is not None else b"",
                charset="utf8mb4",
                connect_timeout=max(1, round(place.connect_timeout)), autocommit=True, **ssl,
            )  # fmt: skip
            self._connection._read_timeout = place.connect_timeout
            self._settings(place)
        except (pymysql.err.MySQLError, OSError) as error:
            raise failure(error, "no connection: ") from None
        self._statements: dict[str, int] = {}

    def _settings(self, place: Address) -> None:
        """Read only, UTC, CHAR without its padding, and a limit of time in either dialect."""
        with self._connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute("SET sql_mode = REPLACE(@@sql_mode, 'PAD_CHAR_TO_FULL_LENGTH', '')")
            if "MariaDB" in self._connection.get_server_info():
                cursor.execute("SET max_statement_time = %s", [place.statement_timeout])
            else:
                limit = max(1, int(1000 * place.statement_timeout))
                cursor.execute("SET max_execution_time = %s", [limit])

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection._force_close()

    # --- one query -----------------------------------------------------------------------------

    def select(
        self, query: Query, columns: Sequence[Column], limit: int | None, within: float
    ) -> list[pa.Array]:
        pymysql = _import()
        connection = self._connection
        connection._read_timeout = within
        try:
            statement = self._statement(query.text, len(columns))
            connection._execute_command(_EXECUTE, _execute(statement, query.params))
            connection._read_packet()  # how many columns
            for _ in range(len(columns) + 1):  # what they are, and an end marker
                connection._read_packet()
            buffer, starts = self._rows(limit, time.monotonic() + within)
        except (pymysql.err.MySQLError, OSError) as error:
            raise failure(error) from None
        return _arrays(columns, buffer, starts)

    def _statement(self, text: str, columns: int) -> int:
        """The server's number of a statement, prepared once."""
        known = self._statements.get(text)
        if known is not None:
            return known
        connection = self._connection
        if len(self._statements) >= MOST_STATEMENTS:
            oldest = self._statements.pop(next(iter(self._statements)))
            connection._execute_command(_CLOSE, struct.pack("<I", oldest))
        connection._execute_command(_PREPARE, text.encode())
        head = connection._read_packet().get_all_data()
        number, found, params = struct.unpack_from("<IHH", head, 1)
        for count in (params, found):
            for _ in range(count + 1 if count else 0):
                connection._read_packet()
        if found != columns:
            raise MasterError(f"a query for {columns} columns would give {found}; this is a bug")
        self._statements[text] = int(number)
        return int(number)

    def _rows(self, limit: int | None, end: float) -> tuple[bytearray, I64]:
        """All rows as they come, and where each begins."""
        buffer, starts = bytearray(), np.empty(1024, np.int64)
        at = n = 0
        while True:
            why = 0
            if buffer:
                n, at, why = wire.mysql_packets(_address(buffer), len(buffer), at, starts, n)
            if why == 1:
                return buffer, starts[:n]
            if why == 2:
                self._raise_error(bytes(buffer[at:]))
            elif why == 4:
                starts = np.concatenate([starts, np.empty(len(starts), np.int64)])
            elif why == 3:
                starts, n, at = self._long(buffer, starts, n, at, limit, end)
            else:
                self._more(buffer, limit, end)

    def _more(self, buffer: bytearray, limit: int | None, end: float) -> None:
        if time.monotonic() > end:
            raise FailedError("the server does not answer", again=True)
        data = self._connection._rfile.read1(CHUNK)
        if not data:
            raise FailedError("the connection was lost in mid-result", again=True)
        buffer += data
        if limit is not None and len(buffer) > limit + CHUNK:
            raise TooBigError

    def _long(
        self, buffer: bytearray, starts: I64, n: int, at: int, limit: int | None, end: float
    ) -> tuple[I64, int, int]:
        """A row of 16 MB and more comes in several packets: take the headers between them out."""
        begin, here = at + 4, at
        while True:
            while len(buffer) < here + 4:
                self._more(buffer, limit, end)
            length = int.from_bytes(buffer[here : here + 3], "little")
            while len(buffer) < here + 4 + length:
                self._more(buffer, limit, end)
            if here != at:
                del buffer[here : here + 4]
                here += length
            else:
                here += 4 + length
            if length < _MOST_PACKET:
                break
        if n == len(starts):
            starts = np.concatenate([starts, np.empty(len(starts), np.int64)])
        starts[n] = begin
        return starts, n + 1, here

    def _raise_error(self, packet: bytes) -> None:
        _import().err.raise_mysql_exception(packet[4:])


def _execute(statement: int, params: list[bytes]) -> bytes:
    """The body of an execute command: every parameter is a string of bytes."""
    head = struct.pack("<IBI", statement, 0, 1)
    if not params:
        return head
    nulls = bytes((len(params) + 7) // 8)
    types = struct.pack("<BB", _VAR_STRING, 0) * len(params)
    return b"".join([head, nulls, b"\x01", types, *(_lenenc(p) + p for p in params)])


def _lenenc(data: bytes) -> bytes:
    n = len(data)
    if n < 251:
        return bytes([n])
    if n < 1 << 16:
        return b"\xfc" + struct.pack("<H", n)
    return b"\xfd" + n.to_bytes(3, "little") if n < 1 << 24 else b"\xfe" + struct.pack("<Q", n)


def _address(buffer: bytearray) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def _arrays(columns: Sequence[Column], buffer: bytearray, starts: I64) -> list[pa.Array]:
    kinds = {"var": wire.WIDTH_LENENC, "date": wire.WIDTH_TIME, "moment": wire.WIDTH_TIME}
    kinds |= {"span": wire.WIDTH_TIME} | WIDTHS
    widths = np.array([kinds[c.wire] for c in columns], np.int64)
    shape = (len(columns), len(starts))
    address, length = np.empty(shape, np.int64), np.empty(shape, np.int64)
    if len(starts):
        wire.mysql_values(_address(buffer), starts, widths, address, length)
    return [_array(c, address[i], length[i]) for i, c in enumerate(columns)]


def _array(column: Column, address: I64, length: I64) -> pa.Array:
    n = len(address)
    valid = length >= 0
    nulls = n - int(valid.sum())
    if column.wire == "var":
        ends = np.concatenate([[0], np.cumsum(np.maximum(length, 0))])
        data = np.empty(int(ends[-1]), np.uint8)
        wire.var_column(address, length, ends, data.ctypes.data)
        return var_array(column, ends, data, valid, nulls)
    if column.wire in WIDTHS:
        width = WIDTHS[column.wire]
        data = np.empty(width * n, np.uint8)
        wire.fixed_column(address, length, width, data.ctypes.data)
        return fixed_array(column.type, data, valid, nulls)
    out = np.empty(n, np.int64)
    if column.wire == "span":
        wire.mysql_spans(address, length, out)
    else:
        bad = wire.mysql_moments(address, length, out)
        if bad >= 0:
            raise no_value(column, "a date with a month or day of 0")
    days = column.wire == "date"
    values = (out // wire.DAY).astype(np.int32) if days else out
    return fixed_array(column.type, values.view(np.uint8), valid, nulls)


def failure(error: BaseException, before: str = "") -> FailedError:
    """A driver's error in our words."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if isinstance(error, OSError) and not number:
        return FailedError(f"{before}{error.strerror or text}", again=True)
    if number in _TIMEOUT:
        remedy = "ask for less, or give it more time: ...?statement_timeout=5min"
        return FailedError(f"{before}{text} ({number})", False, remedy)
    lost = number == 0 and type(error).__name__ in ("InterfaceError", "InternalError")
    again = number in _AGAIN or lost
    return FailedError(f"{before}{text} ({number})", again, _REMEDIES.get(number, ""))


def _import() -> Any:
    try:
        import pymysql
    except ImportError:
        raise MasterError(
            "MySQL and MariaDB masters need PyMySQL, which is not installed; "
            "pip install 'semistream[mysql]'"
        ) from None
    return pymysql
