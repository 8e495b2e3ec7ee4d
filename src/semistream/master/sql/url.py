"""Where a database is and how to log in, without ever showing the password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ...errors import MasterError, SpecError

SCHEMES = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql"}
SCHEMES |= {"mariadb": "mysql"}
PORTS = {"postgresql": 5432, "mysql": 3306}
_TIMES = ("connect_timeout", "statement_timeout", "deadline")
_COMMON = ("password_env", "password_file", "table", *_TIMES)
OPTIONS = {  # what may stand after the "?", besides the common ones; passed on to the driver
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey", "application_name"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"),
}
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
        return text.replace(self._value, "***") if self._value else text


@dataclass(frozen=True)
class Place:
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
        who = f"{self.user}@" if self.user else ""
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
            try:
                return Secret(Path(self.password_file).read_text().rstrip("\r\n"))
            except OSError as error:
                raise MasterError(
                    f"the password of {self.shown} should be in the file {self.password_file}, "
                    f"which cannot be read: {error.strerror}"
                ) from None
        found = os.environ.get("MYSQL_PWD") if self.kind == "mysql" else None
        return Secret(found) if found else None


def is_database(source: object) -> bool:
    return isinstance(source, str) and source.split("://")[0] in SCHEMES and "://" in source


def parse_url(url: str, password_file: str | None = None) -> Place:
    """postgresql://user:password@host:port/database?option=value, or mysql://, mariadb://."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SpecError(
            f"the address of the database ({_masked(url)}) cannot be read; write "
            "postgresql://user@host:port/database, special characters as %XX"
        ) from None
    kind = SCHEMES[parts.scheme]
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not database or "/" in database:
        raise SpecError(
            f"{_masked(url)} names no host or no database; write {kind}://user@host:port/database"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = (*_COMMON, *OPTIONS[kind])
    for name in options:
        if name not in known:
            raise SpecError(
                f"the option {name!r} of {_masked(url)} is not known; there are {', '.join(known)}"
            )
    file = password_file or options.get("password_file")  # other processes have other folders
    place = Place(
        kind, parts.hostname, port or PORTS[kind], database,
        unquote(parts.username) if parts.username else None,
        Secret(unquote(parts.password)) if parts.password else None,
        options.get("password_env"), os.path.abspath(file) if file else None,
        options.get("table"), options={k: v for k, v in options.items() if k not in _COMMON},
    )  # fmt: skip
    for name in _TIMES:
        if name in options:
            place = replace(place, **{name: seconds(options[name], name)})  # type: ignore[arg-type]
    return place


def seconds(text: str | float, name: str) -> float:
    """60, "60s", "500ms", "5min" or "1h" as seconds."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(text))
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise SpecError(f'{name}={text!r} is not a length of time; write "60s", "500ms" or "5min"')
    return float(match[1]) * _UNITS[match[2]]


def _masked(url: str) -> str:
    """An address for messages: whatever may be a password is left out."""
    scheme, _, rest = url.partition("://")
    rest = rest.split("?")[0]
    who, at, where = rest.rpartition("@")
    return repr(f"{scheme}://{who.split(':')[0]}{at}{where}" if at else f"{scheme}://{rest}")
