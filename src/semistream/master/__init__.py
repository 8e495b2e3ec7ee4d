"""Tables to join with, wherever they are: ordered pages of rows, at one version."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from ..errors import MasterError, SpecError
from .base import Master, MasterInfo, Pages, TooBigError, no_order
from .facts import facts
from .find import find_rows, page_blocks
from .parquet import DeltaMaster, ParquetMaster, is_delta
from .sql import SqlMaster, is_database, sql_spec
from .storage import open_files, place_at
from .store import Store, is_store
from .table import TableMaster
from .wrapped import WrappedMaster

Source: TypeAlias = "Master | pa.Table | pa.RecordBatch | str | os.PathLike[str]"
__all__ = [
    "Master",
    "MasterInfo",
    "Pages",
    "Source",
    "Store",
    "TooBigError",
    "WrappedMaster",
    "facts",
    "find_rows",
    "from_locator",
    "no_order",
    "open_master",
    "page_blocks",
]


def open_master(
    source: Source,
    key: str | Sequence[str] | None = None,
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    table: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    ttl: str | float | None = None,
    updated_at: str | None = None,
    password_file: str | None = None,
    unique: bool = False,
) -> Master:
    """Open a master table: a store's path, a Parquet file or folder, a Delta table, an Arrow table,
    or a table in a database (postgresql://, mysql://, mariadb://). Files may lie in an object store
    (s3://...), with `storage_options` as for fsspec.

    A store knows its key; anything else needs `key`. `version` is that of a store or Delta table;
    without it the latest. A database also needs `table`; the other arguments are for databases too
    (docs/databases.md). `where` is SQL and passed on as it is: never build it from words of
    strangers.

    `unique=True`: a key with two rows is a DuplicateKeyError, at once where the master can tell
    (an Arrow table), else when a join meets such a key.
    """
    only: dict[str, Any] = {"table": table, "columns": columns, "where": where, "ttl": ttl}
    only |= {"updated_at": updated_at, "password_file": password_file}
    if is_database(source):
        named = _need_key(key, "a table in a database")
        opened: Master = SqlMaster(sql_spec(str(source), named, **only))
    else:
        for name, value in only.items():
            if value is not None:
                raise SpecError(f"{name}= is for databases (postgresql://, mysql://); leave it out")
        opened = _open(source, key, version, storage_options)
    if version is None or opened.describe().version == version:
        if unique:
            opened.require_unique()
        return opened
    if opened.describe().version is None:
        raise SpecError(
            f"version={version}: the master {opened.describe().name} has no versions; leave it "
            "out, or build a store from it with Store.create"
        )
    opened = from_locator(opened.locator() | {"version": version})
    if unique:
        opened.require_unique()
    return opened


def _open(
    source: Source,
    key: str | Sequence[str] | None,
    version: int | None,
    storage_options: Mapping[str, Any] | None,
) -> Master:
    if isinstance(source, Master):
        return _check_key(source, key)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return TableMaster(source, _need_key(key, "an Arrow table"))
    if not isinstance(source, str | os.PathLike):
        raise SpecError(
            f"a master is a path, a pyarrow Table or a Store, not {type(source).__name__}"
        )
    place = place_at(source, storage_options)
    if is_store(place):
        return _check_key(Store.open(place, version), key)
    files = open_files(source, storage_options)
    if is_delta(files):
        known = _need_key(key, f"the Delta table {files.name}")
        return DeltaMaster(source, known, version, storage_options)
    if version is not None:
        raise SpecError(f"version={version}: {files.name} is neither a store nor a Delta table")
    return ParquetMaster(
        source, _need_key(key, f"the Parquet master {files.name}"), storage_options
    )


def from_locator(locator: dict[str, Any]) -> Master:
    """Open the master that `Master.locator` described, in another process; with the version None,
    at its newest one."""
    kind = locator["kind"]
    if kind == "store":
        place = place_at(locator["path"], locator.get("options"))
        store = Store.open(place, locator["version"], io=locator["io"])
        version, published = locator.get("published", (None, None))
        other = store.version == version and store.manifest.id != published
        if store.manifest.store != locator["store"] or other:
            raise MasterError(f"{store.place} was rebuilt since the query began; start it again")
        return store
    if kind == "delta":
        return DeltaMaster.from_locator(locator)
    if kind == "sql":
        return SqlMaster(locator["spec"])
    if kind == "parquet":
        return ParquetMaster.from_locator(locator)
    with pa.ipc.open_stream(pa.py_buffer(locator["table"])) as reader:
        return TableMaster(reader.read_all(), locator["key"])


def _need_key(key: str | Sequence[str] | None, what: str) -> str | Sequence[str]:
    if key is None:
        raise SpecError(f'{what} does not know its key; say key="column" or key=["a", "b"]')
    return key


def _check_key(master: Master, key: str | Sequence[str] | None) -> Master:
    has = master.describe().key
    asked = [key] if isinstance(key, str) else list(key or [])
    if key is not None and sorted(has) != sorted(asked):
        raise SpecError(f"the master {master.describe().name} has key {list(has)}, not {key!r}")
    return master
