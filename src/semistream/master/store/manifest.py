"""What the manifest of a version says, to JSON and back. What comes back is looked at before anyone
counts on it: whoever wrote the file chose every number and name in it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import SemiStreamError, StoreError
from ...rows.keys import HASH, check_key_type, is_natural, is_raw
from ...rows.layout import plain_type
from ...safety import checksum

FORMAT = "semistream-store"
FORMAT_VERSION = 2
READABLE = (1, 2)  # format 1 had one run, and no claims
KINDS = ("base", "append", "upsert", "delete", "merged")
CODE_COLUMN = "__semistream_code"
LAST_SECOND = 253_402_300_799  # of the year 9999
_T = TypeVar("_T")


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
class Keep:
    """Which versions stay when a new one is published; the others expire then."""

    versions: int  # so many of the last
    seconds: float = 0.0  # and those that were replaced less long ago
    pins: list[str] = field(default_factory=list)  # and those that pins in these folders name


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
    id: str = ""  # another one for every manifest that is published
    unique: bool = False  # no change may give a key a second row
    keep: Keep | None = None  # None: versions stay until someone lets them expire

    def to_json(self) -> bytes:
        body: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "id": self.id,
            "store": self.store,
            "created": self.created,
            "operation": self.operation,
            "rows": self.rows,
            "unique": self.unique,
            "keep": None if self.keep is None else asdict(self.keep),
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


def _json_crc(body: Mapping[str, Any]) -> int:
    plain = {k: v for k, v in body.items() if k != "crc32c"}
    return checksum(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


# --- reading --------------------------------------------------------------------------------------


def from_json(where: str, content: bytes) -> Manifest:
    """The manifest in a file. ValueError and its like: this is not what a writer left there;
    StoreError: a newer release wrote it."""
    body = json.loads(content)
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
    _check_known(where, manifest)
    _check_columns(manifest)
    return manifest


def _manifest(body: dict[str, Any]) -> Manifest:
    runs = [_run(run) for run in _a(list, body["runs"])]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(_a(str, body["schema"]))))
    keep, writers = body.get("keep"), _a(dict, body.get("writers", {}))
    hashed, created = body["hash"], _count(body.get("created", 0))
    if created > LAST_SECOND:
        raise ValueError(f"it says it was made {created} seconds after 1970")
    return Manifest(
        version=_count(body["version"]),
        schema=schema,
        key=[_a(str, name) for name in _a(list, body["key"])],
        code=_a(str, body["code"]),
        hash=None if hashed is None else _a(str, hashed),
        runs=runs,
        rows=_count(body.get("rows", sum(run.rows for run in runs))),
        created=created,
        operation=_a(str, body.get("operation", "create")),
        writers={name: _whole(number) for name, number in writers.items()},
        page_bytes=_count(body.get("page_bytes", 64 << 10)),
        store=_a(str, body.get("store", runs[0].id if runs else "")),
        id=_a(str, body.get("id", f"{body['crc32c']:08x}")),
        unique=_a(bool, body.get("unique", False)),
        keep=None if keep is None else _keep(keep),
    )


def _run(body: Any) -> Run:
    shards = [_record(Shard, shard, {}) for shard in _a(list, _a(dict, body)["shards"])]
    run = _record(Run, body, {"shards": shards})
    names = [run.id, *run.files]
    if any("/" in name or "\0" in name or name in ("", ".", "..") for name in names):
        raise ValueError("a file name in it leaves the store's folder")
    for name in names:
        name.encode()  # half a surrogate pair is no name
    if run.null_pages > run.pages:
        raise ValueError(f"{run.null_pages} of the {run.pages} pages of a run are to have no key")
    return run


def _keep(body: Any) -> Keep:
    pins = [_a(str, folder) for folder in _a(list, _a(dict, body)["pins"])]
    seconds = body["seconds"]
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValueError(f"it keeps versions for {seconds!r} seconds")
    keep = _record(Keep, body, {"pins": pins, "seconds": float(seconds)})
    if keep.versions < 1:
        raise ValueError(f"it keeps the last {keep.versions} versions")
    return keep


def _record(kind: type[_T], body: Any, known: dict[str, Any]) -> _T:
    """An object of numbers, names and switches, each of the type that `kind` declares."""
    found = dict(_a(dict, body)) | known
    declared: Any = kind
    for one in fields(declared):
        if one.name in found and one.name not in known:
            check = {"int": _count, "str": _string, "bool": _switch}[str(one.type)]
            found[one.name] = check(found[one.name])
    return kind(**found)


def _a(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind):
        raise ValueError(f"{str(value)[:40]!r} is there where a {kind.__name__} belongs")
    return value


def _string(value: Any) -> str:
    return _a(str, value)


def _switch(value: Any) -> bool:
    return _a(bool, value)


def _whole(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is there where a 64-bit integer belongs")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(f"{value} is there where nothing negative can be")
    return int(value)


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


def _check_columns(manifest: Manifest) -> None:
    """Where a page keeps its codes follows from the key's types, and what the kernels read as
    8-byte codes must be that."""
    schema, key = manifest.schema, manifest.key
    names = [*schema.names, CODE_COLUMN]
    if len(set(names)) != len(names):
        raise ValueError(f"its columns {schema.names} have a name twice, or a reserved one")
    if not key or len(set(key)) != len(key) or not set(key) <= set(schema.names):
        raise ValueError(f"its key {key} is not among its columns")
    for column in schema:
        if plain_type(column.type) != column.type:
            raise ValueError(f"its column {column.name!r} is {column.type}, which pages never are")
    types = [schema.field(name).type for name in key]
    try:
        for name, t in zip(key, types, strict=True):
            check_key_type(t, name, "master")
    except SemiStreamError as error:
        raise ValueError(str(error)) from None
    made = ("value" if is_raw(types) else "column", None if is_natural(types) else HASH)
    if (manifest.code, manifest.hash) != made:
        raise ValueError(f"codes of the key {key} are {made}, not {(manifest.code, manifest.hash)}")
