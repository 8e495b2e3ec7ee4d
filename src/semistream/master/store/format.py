"""The store's files: an immutable manifest per version, and runs of pages that it names.

    products/
      manifests/00000001.json    version 1: schema, key, runs; ends with its own checksum
      data/RUN-00000.arrow       a shard: Arrow IPC file, every record batch is a page
      data/RUN.index             Arrow IPC file: one row per page of the run
      data/RUN.claims            Arrow IPC file: one row per code that the run has the last word on

The first run of a version is its base; later ones are changes. The newest run that claims a code
has all rows of it, however many runs are older. docs/store-format.md describes every field. A
manifest is created only if it is absent: that is the commit. Nothing is ever changed in place.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

import google_crc32c
import pyarrow as pa

from ...errors import ConflictError, DamagedError, StoreError
from ...keys import HASH
from .place import MANIFESTS, Place

FORMAT = "semistream-store"
FORMAT_VERSION = 2
READABLE = (1, 2)  # format 1 had one run, and no claims
KINDS = ("base", "append", "upsert", "delete", "merged")
EXPIRED = b"expired\n"  # what is left of the manifest of a version that has
CODE_COLUMN = "__semistream_code"


@dataclass(frozen=True)
class Shard:
    name: str
    bytes: int
    frame_crc: int  # of everything in the file that is not a page


@dataclass(frozen=True)
class Run:
    """Pages written together. A base holds rows; other kinds have the last word on codes."""

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
    claims: int = 0  # codes, those without rows included
    claims_bytes: int = 0
    claims_crc: int = 0

    @property
    def files(self) -> list[str]:
        """Names in the data folder."""
        claims = [] if self.kind == "base" else [f"{self.id}.claims"]
        return [f"{self.id}.index", *claims, *(shard.name for shard in self.shards)]


@dataclass(frozen=True)
class Manifest:
    version: int
    schema: pa.Schema
    key: list[str]
    code: str  # "value": the key column itself; "column": the extra code column
    hash: str | None  # how codes are made; None where the code is the key's value
    runs: list[Run]
    rows: int  # that can be seen
    created: int = 0  # seconds since 1970
    operation: str = "create"
    writers: dict[str, int] = field(default_factory=dict)  # the last batch of each streaming writer
    page_bytes: int = 64 << 10  # what writers aim at
    store: str = ""  # the same for all versions of a store, another one if it is built anew

    def to_json(self) -> bytes:
        body: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "store": self.store,
            "created": self.created,
            "operation": self.operation,
            "rows": self.rows,
            "page_bytes": self.page_bytes,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "columns": [f"{f.name}: {f.type}" for f in self.schema],
            "key": self.key,
            "code": self.code,
            "hash": self.hash,
            "runs": [asdict(run) for run in self.runs],
            "writers": self.writers,
        }
        body["crc32c"] = _json_crc(body)
        return json.dumps(body, indent=1).encode()


def _json_crc(body: dict[str, Any]) -> int:
    plain = {k: v for k, v in body.items() if k != "crc32c"}
    return crc(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def crc(data: bytes | pa.Buffer) -> int:
    return int(google_crc32c.value(data))


# --- manifests -----------------------------------------------------------------------------------


def manifest_name(version: int) -> str:
    return f"{MANIFESTS}/{version:08d}.json"


def versions(place: Place) -> list[int]:
    """Published versions that have not expired, ascending. An expired one is told by its size, for
    which a manifest is far too short; the latest does not expire, whatever its size."""
    files = {file.name[:-5]: file for file in place.list(MANIFESTS) if file.name.endswith(".json")}
    numbers = sorted((int(stem), file.bytes) for stem, file in files.items() if stem.isdigit())
    return [n for n, size in numbers if size != len(EXPIRED) or n == numbers[-1][0]]


def read_manifest(place: Place, version: int) -> Manifest:
    where = f"{place}/{manifest_name(version)}"
    try:
        body = json.loads(place.read(manifest_name(version)))
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ValueError("not a manifest of a store")
        if body["format_version"] not in READABLE:
            raise StoreError(
                f"{where} has store format {body['format_version']!r}; this release reads formats "
                f"up to {FORMAT_VERSION}: upgrade semistream, or rebuild the store"
            )
        if body["crc32c"] != _json_crc(body):
            raise ValueError("its checksum does not fit its content")
        manifest = _manifest(body)
        if manifest.version != version:
            raise ValueError(f"it says it is version {manifest.version}")
        _check_known(where, manifest)
        return manifest
    except FileNotFoundError:
        raise StoreError(f"{where} is not there: no such version of the store") from None
    except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise DamagedError(f"the manifest {where} is damaged: {error}; restore it") from error


def manifest_if_there(place: Place, version: int) -> Manifest | None:
    """A manifest, or None where the version has expired since it was listed."""
    try:
        return read_manifest(place, version)
    except StoreError:
        if version in versions(place):
            raise
        return None


def _manifest(body: dict[str, Any]) -> Manifest:
    runs = [Run(**{**r, "shards": [Shard(**s) for s in r["shards"]]}) for r in body["runs"]]
    names = [name for run in runs for name in run.files] + [run.id for run in runs]
    if any(name != os.path.basename(name) or name in ("", ".", "..") for name in names):
        raise ValueError("a file name in it leaves the store's folder")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
    if not body["key"] or not set(body["key"]) <= set(schema.names):
        raise ValueError(f"its key {body['key']} is not among its columns")
    rows = body.get("rows", sum(run.rows for run in runs))
    return Manifest(
        body["version"], schema, body["key"], body["code"], body["hash"], runs, rows,
        body.get("created", 0), body.get("operation", "create"), body.get("writers", {}),
        body.get("page_bytes", 64 << 10), body.get("store", runs[0].id if runs else ""),
    )  # fmt: skip


def _check_known(where: str, manifest: Manifest) -> None:
    """A newer release may write what this one cannot read: say so rather than misread it."""
    strange = [f"a run of kind {run.kind!r}" for run in manifest.runs if run.kind not in KINDS]
    if manifest.code not in ("value", "column"):
        strange.append(f"code {manifest.code!r}")
    if manifest.hash not in (None, HASH):
        strange.append(f"hash {manifest.hash!r}")
    if [run.kind == "base" for run in manifest.runs] != [True] + [False] * (len(manifest.runs) - 1):
        strange.append(f"runs {[run.kind for run in manifest.runs]}")
    if strange:
        raise StoreError(f"{where} has {', '.join(strange)}, unknown to this release: upgrade it")


def publish(place: Place, manifest: Manifest) -> None:
    """Create the manifest if it is absent, all of it or nothing: this is the commit. What others
    published meanwhile may have expired, too: its number is as good as taken, or this version would
    lie below theirs, unseen."""
    if max(versions(place), default=0) >= manifest.version:
        raise conflict(place, manifest.version)
    try:
        place.create(manifest_name(manifest.version), manifest.to_json())
    except FileExistsError:
        raise conflict(place, manifest.version) from None


def conflict(place: Place, version: int) -> ConflictError:
    return ConflictError(
        f"version {version} of the store {place} was published by someone else meanwhile; nothing "
        "was changed: open the store again and retry"
    )


# --- indexes and claims --------------------------------------------------------------------------

INDEX_FIELDS = ("first", "last", "shard", "offset", "length", "rows", "crc")
CLAIMS = pa.schema([pa.field("code", pa.int64()), pa.field("rows", pa.int32())])


def index_schema(buffers: int) -> pa.Schema:
    """One row per page: codes of its first and last row, where it lies, and where each buffer of
    each column starts within it (-1: no such buffer)."""
    fields = [pa.field(name, pa.int64()) for name in INDEX_FIELDS]
    return pa.schema([*fields, pa.field("buffers", pa.list_(pa.int64(), max(1, buffers)))])
