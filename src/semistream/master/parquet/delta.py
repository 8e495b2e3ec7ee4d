"""A Delta table as a master, at one version: the files that the log calls current.

The log is read by the package `deltalake`; the rows by the same code as plain Parquet, with the
values of partition columns from the log. Deleted rows (deletion vectors) are left out and renamed
columns found by their names in the files. What else a table may ask of its readers is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ...errors import MasterError, SpecError
from ...safety import address
from ..base import Master
from ..storage import Files, RemoteFiles, StorageOptions, open_files
from .listing import DataFile, at_once, check_castable, missing_columns, read_footers
from .master import ParquetMaster

LOG = "_delta_log"
# What a table may ask of its readers, and this one does.
FEATURES = {"deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint"}
FEATURES |= {"vacuumProtocolCheck"}
_MAPPED = "delta.columnMapping.physicalName"
_REMEDY = "read it with Spark and build a store with semistream.spark.build_store"


class DeltaMaster(ParquetMaster):
    def __init__(
        self,
        path: str | os.PathLike[str],
        key: str | Sequence[str],
        version: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        files = open_files(path, storage_options)
        table = _open_table(files, version)
        found = table.version()
        files.gone = (
            f"it belongs to version {found} of the Delta table, whose old files a VACUUM may have "
            "removed; open a newer version"
        )
        self._pinned, self._table_id = version is not None, str(table.metadata().id)
        _check_features(files, table)
        names = _physical_names(files, table)
        arrow = pa.schema(table.schema().to_arrow()).remove_metadata()
        schema = pa.schema([one.remove_metadata() for one in arrow])
        data = list(_active_files(files, table, schema, names))
        keys = [key] if isinstance(key, str) else list(key)
        footers = read_footers(files, data, keys)
        for footer in footers:
            check_castable(files, footer, schema)
        self._set_up(files, schema, key, missing_columns(footers, schema), found)

    def locator(self) -> dict[str, Any]:
        return {
            "kind": "delta",
            **self._files.locator(),
            "key": list(self._info.key),
            "version": self._info.version,
            "table": self._table_id,
            "pinned": self._pinned,
        }

    @classmethod
    def from_locator(cls, locator: dict[str, Any]) -> Master:
        master = cls(locator["path"], locator["key"], locator["version"], locator.get("options"))
        if master._table_id != locator["table"]:
            raise MasterError(
                f"the Delta table {master._info.name} was made anew since the query began; start "
                "it again"
            )
        master._pinned = locator["pinned"]
        return master

    def newest(self) -> Master:
        """The latest version; itself where it was opened at a version of your choice."""
        if self._pinned:
            return self
        table = _open_table(self._files, None)
        if (str(table.metadata().id), table.version()) == (self._table_id, self._info.version):
            return self
        options = self._files.locator().get("options")
        return self._followed_by(DeltaMaster(self._files.path, self._info.key, None, options))


def is_delta(files: Files) -> bool:
    return files.is_folder(LOG)


def _open_table(files: Files, version: int | None) -> Any:
    try:
        from deltalake import DeltaTable  # late: only whoever reads Delta tables needs it
    except ImportError as error:
        raise MasterError(
            f"{files.name} is a Delta table, which needs the package deltalake; install "
            "'semistream[delta]'"
        ) from error
    if version is not None and (not isinstance(version, int) or version < 0):
        raise SpecError(f"version={version!r}: the versions of a Delta table are 0, 1, 2, ...")
    options = _log_options(files.options) if isinstance(files, RemoteFiles) else None
    try:
        return DeltaTable(files.path, version=version, storage_options=options)
    except Exception as error:
        said = _said(files, error)
    # Not while the library's own error is at hand, which may have secrets in it.
    which = "the newest version" if version is None else f"version {version}"
    raise MasterError(
        f"{which} of the Delta table {files.name} cannot be read: {said}; it may never have "
        "existed, or its log may have been cleaned up: name another version"
    )


def _said(files: Files, error: Exception) -> str:
    """What deltalake says, without the addresses of its functions."""
    return (files.hide(error).splitlines() or [""])[0]


def _log_options(options: StorageOptions) -> StorageOptions:
    """fsspec's options for S3 in the words of deltalake; others are passed on as they are."""
    client = options.get("client_kwargs", {})
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    words = {
        "AWS_ACCESS_KEY_ID": options.get("key"),
        "AWS_SECRET_ACCESS_KEY": options.get("secret"),
        "AWS_SESSION_TOKEN": options.get("token"),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": client.get("region_name"),
        "AWS_ALLOW_HTTP": "true" if str(endpoint).startswith("http:") else None,
        "AWS_SKIP_SIGNATURE": "true" if options.get("anon") else None,
    }
    given = {name: str(value) for name, value in words.items() if value is not None}
    return StorageOptions({**{n: v for n, v in options.items() if n.startswith("AWS_")}, **given})


def _check_features(files: Files, table: Any) -> None:
    protocol = table.protocol()
    asked = set(protocol.reader_features or [])
    if protocol.min_reader_version > 3 or asked - FEATURES:
        what = sorted(asked - FEATURES) or f"reader version {protocol.min_reader_version}"
        raise MasterError(
            f"the Delta table {files.name} asks its readers for {what}, which this one does not "
            f"know, so rows might be wrong; {_REMEDY}"
        )


def _physical_names(files: Files, table: Any) -> dict[str, str]:
    """Columns that have another name in the files: they were renamed, or have been dropped and
    added again."""
    mode = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if mode == "none":
        return {}
    fields = json.loads(table.schema().to_json())["fields"]
    nested = [one["name"] for one in fields if any(_renamed(inner) for inner in _inner(one))]
    if mode != "name" or nested:
        raise MasterError(
            f"the Delta table {files.name} has the column mapping mode {mode!r}"
            + (f" and renamed fields inside of {nested}" if nested else "")
            + f", which is not supported (mode 'name' of plain columns is); {_REMEDY}"
        )
    return {one["name"]: one["metadata"][_MAPPED] for one in fields if _renamed(one)}


def _renamed(one: Mapping[str, Any]) -> bool:
    return bool(one["metadata"].get(_MAPPED, one["name"]) != one["name"])


def _inner(part: Any) -> Iterator[Mapping[str, Any]]:
    """The fields of structs at any depth within a field or type."""
    if isinstance(part, Mapping):
        for one in part.get("fields", []):
            yield one
            yield from _inner(one)
        for name in ("type", "elementType", "keyType", "valueType"):
            yield from _inner(part.get(name))


def _active_files(
    files: Files, table: Any, schema: pa.Schema, names: Mapping[str, str]
) -> Iterator[DataFile]:
    """The files of this version, each with its partition values and its rows not deleted."""
    adds = pa.table(table.get_add_actions())
    paths = [_relative(files, text) for text in adds["path"].to_pylist()]
    found = at_once(files, files.look, paths)
    deleted = _deletion_vectors(files, table, set(paths))
    columns = {}
    if "partition" in adds.column_names and adds.num_rows:
        values = adds["partition"].combine_chunks()
        for name in [one.name for one in values.type]:
            columns[name] = values.field(name).cast(schema.field(name).type)
    for i, (one, size) in enumerate(zip(found, adds["size_bytes"].to_pylist(), strict=True)):
        if one.size != size:
            raise MasterError(
                f"{files.full(one.path)} has {one.size} bytes, but {size} in the log of the Delta "
                "table; restore it from where the table was written"
            )
        constants = {name: values[i] for name, values in columns.items()}
        yield DataFile(one, constants, names, deleted.get(one.path))


def _relative(files: Files, text: str) -> str:
    """A path below the table's folder. Whoever wrote the log does not choose what else is read."""
    path = unquote(text)
    if "://" in text or path.startswith("/") or ".." in path.split("/"):
        raise MasterError(
            f"the Delta table {files.name} has a file outside of its folder ({address(text)}), as "
            f"shallow clones do, which is not supported; make a deep clone, or {_REMEDY}"
        )
    return path


def _deletion_vectors(files: Files, table: Any, paths: set[str]) -> dict[str, pa.BooleanArray]:
    """Rows to keep, for every file that has deleted ones."""
    try:
        vectors, said = pa.table(table.deletion_vectors().read_all()), ""
    except Exception as error:
        vectors, said = None, _said(files, error) or type(error).__name__
    if said:  # not while the library's own error is at hand, which may have secrets in it
        raise MasterError(
            f"the deleted rows of the Delta table {files.name} at version {table.version()} cannot "
            f"be read: {said}; {_REMEDY}"
        )
    result: dict[str, pa.BooleanArray] = {}
    root = str(table.table_uri).rstrip("/").split("://")[-1]
    for text, keep in zip(vectors["filepath"], vectors["selection_vector"], strict=True):
        raw = text.as_py().split("://")[-1]
        spelled = [one.removeprefix(root).lstrip("/") for one in (raw, unquote(raw))]
        path = next((one for one in spelled if one in paths), None)
        if path is None:
            raise MasterError(
                f"the Delta table {files.name} has deleted rows of an unknown file ({raw})"
            )
        result[path] = pa.concat_arrays([keep.values])
    return result
