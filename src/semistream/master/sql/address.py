"""Where a database is and how to log in, without ever showing the password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from ...errors import MasterError, SpecError
from ...safety import HIDDEN, address, scrub

SCHEMES = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql"}
SCHEMES |= {"mariadb": "mysql"}
PORTS = {"postgresql": 5432, "mysql": 3306}
_TIMES = ("connect_timeout", "statement_timeout", "deadline")
_COMMON = ("password_env", "password_file", "table", *_TIMES)
OPTIONS = {  # what may stand after the "?", besides the common ones; passed on to the driver
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey", "application_name"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"),
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]*)(?::([0-9]{1,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OPTION, _VARIABLE = re.compile(r"[a-z_]{1,40}"), re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


class Secret:
    """A password that does not show: not in repr, str, format, nor in errors that print it.
    It can be pickled, for that is how it reaches the workers of Spark."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "'***'"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (Secret, (self._value,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def scrub(self, text: str) -> str:
        """The text without the password, should a driver have put it there."""
        return scrub(text, [self._value])


@dataclass(frozen=True)
class Address:
    """A database and how to log in."""

    kind: str  # postgresql or mysql
    host: str
    port: int
    database: str
    user: str | None
    secret: Secret | None = None  # the password, where it stood in the URL
    password_env: str | None = None
    password_file: str | None = None
    table: str | None = None
    connect_timeout: float = 10.0
    statement_timeout: float = 30.0
    deadline: float = 60.0
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """For messages: everything but the password."""
        user = self.user or ""
        who = f"{HIDDEN if ':' in user else user}@" if user else ""  # u%3Apassword is escaped wrong
        return f"{self.kind}://{who}{self.host}:{self.port}/{self.database}"

    def password(self) -> Secret | None:
        """The password, from where it was said to be. None: the driver's own ways (PGPASSWORD,
        ~/.pgpass), or none is needed."""
        if self.secret is not None:
            return self.secret
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise MasterError(
                    f"the password of {self.shown} should be in the environment variable "
                    f"{self.password_env}, which is not set in this process; set it, on Spark also "
                    f"for the executors (spark.executorEnv.{self.password_env})"
                )
            return Secret(value)
        if self.password_file is not None:
            return self._in_file(Path(self.password_file))
        found = os.environ.get("MYSQL_PWD") if self.kind == "mysql" else None
        return Secret(found) if found else None

    def _in_file(self, file: Path) -> Secret:
        content, problem = "", ""
        try:
            content = file.read_bytes().decode().rstrip("\r\n")
        except OSError as error:
            problem = error.strerror or type(error).__name__
        except ValueError:
            problem = "it is not UTF-8"
        if problem:  # not while the error of a decoder is at hand: it holds all of the file
            raise MasterError(
                f"the password of {self.shown} should be in the file {file}, which cannot be read: "
                f"{problem}"
            )
        return _secret(content, self.shown)


def is_database(source: object) -> bool:
    scheme, mark, _ = source.partition("://") if isinstance(source, str) else ("", "", "")
    return bool(mark) and scheme.lower() in SCHEMES


def parse_url(url: str, password_file: str | None = None) -> Address:
    """postgresql://user:password@host:port/database?option=value, or mysql://, mariadb://.

    What cannot be read with certainty is refused: a password with an unescaped character must not
    be taken for a host, an option or a database, and shown as such."""
    scheme, _, rest = url.partition("://")
    kind = SCHEMES[scheme.lower()]
    head, _, query = rest.partition("?")
    authority, _, path = head.partition("/")
    who, _, where = authority.rpartition("@")
    host = _HOST.fullmatch(where)
    port = int(host[2] or PORTS[kind]) if host else 0
    if not port < 1 << 16 or "#" in rest or "@" in path + query or _CONTROL.search(rest):
        host = None
    if host is None:
        raise SpecError(
            f"the address of the database ({address(url)}) cannot be read; write "
            f"{kind}://user@host:port/database, special characters of the password as %XX: "
            "@ %40, / %2F, ? %3F, # %23, : %3A, % %25"
        )
    database = unquote(path)
    if not host[1] or not database or "/" in database:
        raise SpecError(
            f"{address(url)} names no host or no database; write {kind}://user@host:port/database"
        )
    user, password = (unquote(part) for part in who.partition(":")[::2])
    secret = _secret(password, address(url)) if password else None
    if "\0" in user + database:
        raise _zero_byte(address(url))
    place = Address(kind, host[1].strip("[]").lower(), port, database, user or None, secret)
    options = dict(parse_qsl(query, keep_blank_values=True))
    return _with_options(place, options, password_file)


def _secret(value: str, what: str) -> Secret:
    if "\0" in value:
        raise _zero_byte(what)
    return Secret(value)


def _zero_byte(what: str) -> SpecError:
    """For a driver all would end there, also what comes after it: the host."""
    return SpecError(f"user, password or database of {what} has a zero byte in it; leave it out")


def _with_options(place: Address, options: Mapping[str, str], password_file: str | None) -> Address:
    known = (*_COMMON, *OPTIONS[place.kind])
    for name in options:
        if name not in known:
            shown = repr(name) if _OPTION.fullmatch(name) else HIDDEN
            raise SpecError(
                f"the option {shown} of {place.shown} is not known; there are {', '.join(known)}"
            )
    variable = options.get("password_env")
    if variable is not None and not _VARIABLE.fullmatch(variable):
        raise SpecError(
            f"password_env of {place.shown} is not the name of an environment variable; name the "
            "one that holds the password"
        )
    file = password_file or options.get("password_file")  # other processes have other folders
    times = {name: seconds(options[name], name) for name in _TIMES if name in options}
    return replace(
        place,
        password_env=variable,
        password_file=os.path.abspath(file) if file else None,
        table=options.get("table"),
        options={k: v for k, v in options.items() if k not in _COMMON},
        **times,  # type: ignore[arg-type]
    )


def seconds(text: str | float, name: str) -> float:
    """60, "60s", "500ms", "5min" or "1h" as seconds."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(text))
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise SpecError(f'{name}={text!r} is not a length of time; write "60s", "500ms" or "5min"')
    return float(match[1]) * _UNITS[match[2]]


# --- a table there, as it is asked for ---------------------------------------------------------


@dataclass(frozen=True)
class SqlSpec:
    """What was asked for. `repr` shows no password (sql_url.Secret)."""

    place: Address
    table: str | tuple[str, str]
    key: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    where: str | None = None
    ttl: float | None = None
    updated_at: str | None = None


def sql_spec(
    url: str,
    key: str | Sequence[str],
    table: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    where: str | None,
    ttl: str | float | None,
    updated_at: str | None,
    password_file: str | None,
) -> SqlSpec:
    """The arguments of `open_master`, checked as far as that needs no connection."""
    place = parse_url(url, password_file)
    named = table if table is not None else place.table
    schema, name = names_of(named)
    if isinstance(columns, str):
        raise SpecError(f"columns={columns!r} is one string; give a list of column names")
    return SqlSpec(
        place,
        name if schema is None else (schema, name),
        (key,) if isinstance(key, str) else tuple(key),
        tuple(columns) if columns is not None else None,
        where,
        seconds(ttl, "ttl") if ttl is not None else None,
        updated_at,
    )


def names_of(table: str | Sequence[str] | None) -> tuple[str | None, str]:
    """(schema, table) from "table", "schema.table" or a pair, for names that have dots."""
    if table is None:
        raise SpecError('a database needs table="name", or "schema.name"')
    parts = table.split(".") if isinstance(table, str) else list(table)
    if not 1 <= len(parts) <= 2 or not all(isinstance(p, str) and p for p in parts):
        raise SpecError(
            f'table={table!r} is no name; write "name", "schema.name", or ("schema", "name") where '
            "a name has a dot"
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])
