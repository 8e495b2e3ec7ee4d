"""The store's files: an immutable manifest per version, one index per run, shards of pages.

    products/
      manifests/00000001.json    version 1: schema, key, runs; ends with its own checksum
      data/RUN-00000.arrow       a shard: Arrow IPC file, every record batch is a page
      data/RUN.index             Arrow IPC file: one row per page of the run

docs/store-format.md describes every field. A manifest is created only if it is absent: that is the
commit. Nothing is ever changed in place.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa

from ..errors import DamagedError, StoreError
from ..keys import HASH

FORMAT = "semistream-store"
FORMAT_VERSION = 1
MANIFESTS, DATA = "manifests", "data"
CODE_COLUMN = "__semistream_code"


@dataclass(frozen=True)
class Shard:
    name: str
    bytes: int
    frame_crc: int  # of everything in the file that is not a page


@dataclass(frozen=True)
class Run:
    """Pages written together. Kind "base" holds rows; later kinds will replace or mask keys."""

    kind: str
    id: str
    rows: int
    pages: int
    null_pages: int  # pages at the end whose rows have a NULL key
    unique: bool
    max_page_bytes: int
    page_bytes: int
    index_bytes: int
    index_crc: int
    shards: list[Shard] = field(default_factory=list)


@dataclass(frozen=True)
class Manifest:
    version: int
    schema: pa.Schema
    key: list[str]
    code: str  # "value": the key column itself; "column": the extra code column
    hash: str | None  # how codes are made; None where the code is the key's value
    runs: list[Run]

    def to_json(self) -> str:
        body: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "columns": [f"{f.name}: {f.type}" for f in self.schema],
            "key": self.key,
            "code": self.code,
            "hash": self.hash,
            "runs": [asdict(run) for run in self.runs],
        }
        body["crc32c"] = _json_crc(body)
        return json.dumps(body, indent=1)


def _json_crc(body: dict[str, Any]) -> int:
    plain = {k: v for k, v in body.items() if k != "crc32c"}
    return crc(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def crc(data: bytes | pa.Buffer) -> int:
    return int(google_crc32c.value(data))


def local_path(path: str | os.PathLike[str]) -> Path:
    if "://" in str(path):
        raise StoreError(f"{str(path)!r}: only local paths are supported in this release")
    return Path(path)


def parse_manifest(path: Path) -> Manifest:
    try:
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ValueError("not a manifest of a store")
        if body["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"{path} has store format {body['format_version']!r}; this release reads format "
                f"{FORMAT_VERSION}: upgrade semistream, or rebuild the store"
            )
        if body["crc32c"] != _json_crc(body):
            raise ValueError("its checksum does not fit its content")
        manifest = _manifest(body)
        if manifest.version != int(path.stem):
            raise ValueError(f"it says it is version {manifest.version}")
        _check_known(path, manifest)
        return manifest
    except FileNotFoundError:
        raise StoreError(f"{path} is not there: no such version of the store") from None
    except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise DamagedError(f"the manifest {path} is damaged: {error}; restore this file") from error


def _manifest(body: dict[str, Any]) -> Manifest:
    runs = [Run(**{**r, "shards": [Shard(**s) for s in r["shards"]]}) for r in body["runs"]]
    names = [shard.name for run in runs for shard in run.shards] + [run.id for run in runs]
    if any(name != os.path.basename(name) or name in ("", ".", "..") for name in names):
        raise ValueError("a file name in it leaves the store's folder")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
    if not body["key"] or not set(body["key"]) <= set(schema.names):
        raise ValueError(f"its key {body['key']} is not among its columns")
    return Manifest(body["version"], schema, body["key"], body["code"], body["hash"], runs)


def _check_known(path: Path, manifest: Manifest) -> None:
    """A newer release may write what this one cannot read: say so rather than misread it."""
    strange = [run.kind for run in manifest.runs if run.kind != "base"]
    if manifest.code not in ("value", "column"):
        strange.append(f"code {manifest.code!r}")
    if manifest.hash not in (None, HASH):
        strange.append(f"hash {manifest.hash!r}")
    if len(manifest.runs) != 1:
        strange.append(f"{len(manifest.runs)} runs")
    if strange:
        raise StoreError(f"{path} has {', '.join(strange)}, unknown to this release: upgrade it")


def versions(root: Path) -> list[int]:
    """Published versions, ascending."""
    folder = root / MANIFESTS
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdigit())


def manifest_path(root: Path, version: int) -> Path:
    return root / MANIFESTS / f"{version:08d}.json"


def publish(root: Path, manifest: Manifest) -> None:
    """Create the manifest if it is absent, all of it or nothing."""
    target = manifest_path(root, manifest.version)
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, root.absolute().parent):
        sync_dir(folder)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)
    except FileExistsError:
        raise StoreError(
            f"version {manifest.version} of the store {root} was published by someone else "
            "meanwhile; open the store again and retry"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_dir(target.parent)


@contextmanager
def new_root(root: Path) -> Iterator[None]:
    """Make a store's folders; if that fails half way, leave nothing empty behind."""
    try:
        (root / DATA).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{root} cannot be made a folder: {error.strerror}") from error
    try:
        yield
    except BaseException:
        for folder in (root / DATA, root / MANIFESTS, root):
            with suppress(OSError):
                folder.rmdir()
        raise


def sync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


INDEX_FIELDS = ("first", "last", "shard", "offset", "length", "rows", "crc")


def index_schema(buffers: int) -> pa.Schema:
    """One row per page: codes of its first and last row, where it lies, and where each buffer of
    each column starts within it (-1: no such buffer)."""
    fields = [pa.field(name, pa.int64()) for name in INDEX_FIELDS]
    return pa.schema([*fields, pa.field("buffers", pa.list_(pa.int64(), max(1, buffers)))])
