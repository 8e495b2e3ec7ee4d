"""What was asked for of a database, as plain data: it travels to other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import SpecError
from .dialect import names_of
from .url import Place, parse_url, seconds


@dataclass(frozen=True)
class SqlSpec:
    """What was asked for. `repr` shows no password (sql_url.Secret)."""

    place: Place
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
