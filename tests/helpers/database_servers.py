"""Private PostgreSQL and MariaDB servers that the tests share, and tables in them."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from benchmarks.lib.servers import MariaDB, PostgreSQL, Server

_NUMBERS = itertools.count()
KINDS = ("postgresql", "mariadb")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with MariaDB() as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of them, one after the other."""
    found: Server = request.getfixturevalue(request.param)
    return found


def quote(server: Server, name: str) -> str:
    mark = '"' if server.kind == "postgresql" else "`"
    return mark + name.replace(mark, 2 * mark) + mark


def execute(server: Server, *statements: str, values: list | None = None) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            if values is None:
                cursor.execute(statement)
            else:
                cursor.executemany(statement, values)


def sql_type(server: Server, t: pa.DataType, key: bool) -> str:
    """A column type of a server that holds an Arrow type exactly."""
    pg = server.kind == "postgresql"
    if pa.types.is_decimal(t):
        return f"numeric({t.precision},{t.scale})" if pg else f"decimal({t.precision},{t.scale})"
    names = {
        pa.int8(): (None, "tinyint"), pa.uint8(): (None, "tinyint unsigned"),
        pa.int16(): ("smallint", "smallint"), pa.uint16(): (None, "smallint unsigned"),
        pa.int32(): ("int", "int"), pa.uint32(): (None, "int unsigned"),
        pa.int64(): ("bigint", "bigint"), pa.uint64(): (None, "bigint unsigned"),
        pa.float32(): ("real", "float"), pa.float64(): ("double precision", "double"),
        pa.bool_(): ("boolean", None),
        pa.string(): ("text", "varchar(200) character set utf8mb4 collate utf8mb4_bin"),
        pa.binary(): ("bytea", "varbinary(200)"),
        pa.date32(): ("date", "date"), pa.time64("us"): ("time", None),
        pa.duration("us"): (None, "time(6)"),
        pa.timestamp("us"): ("timestamp", "datetime(6)"),
        pa.timestamp("us", "UTC"): ("timestamptz", None),
    }  # fmt: skip
    found = names[t][0 if pg else 1]
    assert found is not None, f"{server.kind} has no {t}"
    if not pg and not key and t == pa.string():
        return "longtext character set utf8mb4"
    return found


def load(
    server: Server, table: pa.Table, key: list[str], index: str = "index", name: str | None = None
) -> str:
    """Make a table with these rows; `index` is index, unique, primary, pk (another column is the
    primary key, not shown) or none. Returns its name."""
    name = name or f"t{next(_NUMBERS)}"
    at = quote(server, name)
    columns = [
        f"{quote(server, f.name)} {sql_type(server, f.type, f.name in key)}" for f in table.schema
    ]
    keys = ", ".join(quote(server, k) for k in key)
    more = {"primary": f", PRIMARY KEY ({keys})"}.get(index, "")
    if index == "pk" and server.kind == "postgresql":
        columns.append("row_no bigint generated always as identity primary key")
    elif index == "pk":
        columns.append("row_no bigint auto_increment primary key")
    create = f"CREATE TABLE {at} ({', '.join(columns)}{more})"
    marks = ", ".join(["%s"] * table.num_columns)
    names = ", ".join(quote(server, n) for n in table.column_names)
    rows = list(zip(*(c.to_pylist() for c in table.columns), strict=True))
    execute(server, create)
    if rows:
        place = f"{at} ({names})".replace("%", "%%")
        execute(server, f"INSERT INTO {place} VALUES ({marks})", values=rows)
    if index in ("index", "unique", "pk"):
        unique = "UNIQUE" if index == "unique" else ""
        execute(server, f"CREATE {unique} INDEX {quote(server, name + '_key')} ON {at} ({keys})")
    return name


class Proxy:
    """A TCP proxy in front of a server that can hold back answers, or cut connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.flows = threading.Event()  # not set: answers are held back
        self.flows.set()
        self.cut_after: int | None = None  # bytes of answers, then the connection is cut
        self.connections = 0
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                upstream = socket.create_connection(("127.0.0.1", self._target))
                self._pairs += [client, upstream]
                threading.Thread(target=self._up, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._down, args=(upstream, client), daemon=True).start()

    def _up(self, client: socket.socket, upstream: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                upstream.sendall(data)
        _close(upstream)

    def _down(self, upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(4096):
                self.flows.wait()
                if self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        self.cut_after = None
                        break
                client.sendall(data)
        _close(client)
        _close(upstream)

    def close(self) -> None:
        self.flows.set()
        self._listener.close()
        for one in self._pairs:
            _close(one)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()
