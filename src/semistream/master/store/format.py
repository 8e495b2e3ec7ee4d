"""The store's files: an immutable manifest per version, and runs of pages that it names.

    products/
      manifests/00000001.json    version 1: schema, key, runs; ends with its own checksum
      newest/00000001.ID         the newest version is 1, and its manifest has this id
      data/RUN-00000.arrow       a shard: Arrow IPC file, every record batch is a page
      data/RUN.index             Arrow IPC file: one row per page of the run
      data/RUN.claims            Arrow IPC file: one row per code that the run has the last word on
      writers/WRITER.lock        someone is at work, or died (writers.py)

The first run of a version is its base; later ones are changes. The newest run that claims a code
has all rows of it, however many runs are older. docs/store-format.md describes every field. A
manifest is created only if it is absent: that is the commit. Nothing is ever changed in place.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from ...errors import ConflictError, DamagedError, StoreError
from ...safety import not_written
from ..storage import MANIFESTS, NEWEST, FileInfo, Place
from .manifest import CODE_COLUMN, FORMAT_VERSION, Keep, Manifest, Run, Shard, from_json

__all__ = [
    "CLAIMS",
    "CODE_COLUMN",
    "EXPIRED",
    "FORMAT_VERSION",
    "INDEX_FIELDS",
    "Keep",
    "Manifest",
    "Run",
    "Shard",
    "conflict",
    "highest",
    "index_schema",
    "is_store",
    "manifest_if_there",
    "manifest_name",
    "newest",
    "newest_manifest",
    "note",
    "noted_version",
    "number_of",
    "publish",
    "read_manifest",
    "versions",
]
EXPIRED = b"expired\n"  # what is left of the manifest of a version that has
_MANIFEST = re.compile(r"([0-9]{8,18})\.json", re.ASCII)
_NEWEST = re.compile(r"([0-9]{8,18})\.([0-9a-f]{1,32})", re.ASCII)


# --- which versions there are ---------------------------------------------------------------------


def manifest_name(version: int) -> str:
    return f"{MANIFESTS}/{version:08d}.json"


def number_of(file: FileInfo) -> int | None:
    """The version whose manifest a file in the folder of manifests is; None: it is no manifest."""
    match = _MANIFEST.fullmatch(file.name)
    if match is None or manifest_name(int(match[1])) != f"{MANIFESTS}/{file.name}":
        return None
    return int(match[1])


def versions(place: Place) -> list[int]:
    """Published versions that have not expired, ascending. An expired one is told by its size, for
    which a manifest is far too short; the latest does not expire, whatever its size."""
    found = {number_of(file): file.bytes for file in place.list(MANIFESTS)}
    numbers = sorted((n, size) for n, size in found.items() if n is not None)
    return [n for n, size in numbers if size != len(EXPIRED) or n == numbers[-1][0]]


@dataclass(frozen=True)
class _Noted:
    """A second witness of the newest version: a file whose name says all. It is made after the
    manifest, so it never speaks of a version that was not published; and whoever looks for the
    newest version need not list all of them."""

    version: int = 0
    id: str = ""

    @property
    def name(self) -> str:
        return f"{NEWEST}/{self.version:08d}.{self.id}"


def _noted(place: Place) -> _Noted:
    matches = [_NEWEST.fullmatch(file.name) for file in place.list(NEWEST)]
    return max((_Noted(int(m[1]), m[2]) for m in matches if m), key=_order, default=_Noted())


def _order(noted: _Noted) -> tuple[int, str]:
    return noted.version, noted.id


def noted_version(place: Place) -> int:
    return _noted(place).version


def note(place: Place, manifest: Manifest) -> None:
    """Write down that this version is the newest. It is published already: what fails here leaves
    the store as sound as a writer that dies now would, and the next one notes its own version."""
    mine = _Noted(manifest.version, manifest.id)
    with suppress(OSError, StoreError):
        place.mark(mine.name)
        for file in place.list(NEWEST):
            match = _NEWEST.fullmatch(file.name)
            if match and int(match[1]) < manifest.version:
                place.remove(f"{NEWEST}/{file.name}")


def highest(place: Place) -> int:
    """The highest number that a version ever had, as far as it can be known; 0: no store. Its
    manifest may be gone."""
    return _highest(place, _noted(place))


def _highest(place: Place, noted: _Noted) -> int:
    """From the noted version on, numbers follow each other without a gap: names of versions that
    expire are only given up below it."""
    number = noted.version
    if number == 0 or place.size(manifest_name(number)) is None:
        number = max([number, *versions(place)])
    while place.size(manifest_name(number + 1)) is not None:
        number += 1
    return number


def newest(place: Place) -> int:
    """The number of the newest version; 0 where there is no store. DamagedError: its manifest was
    published, and is not there any more; what is older must not pass for it."""
    number = highest(place)
    while number:
        size = place.size(manifest_name(number))
        if size is not None and size >= 0:
            break
        before, number = number, highest(place)
        if number == before:  # else it was replaced meanwhile, and expired at once
            raise _missing(place, number, size is None)
    return number


def _missing(place: Place, number: int, gone: bool) -> DamagedError:
    older = [n for n in versions(place) if n < number]
    other = (
        f"; or go on from an older one: Store.open(path, {older[-1]}).restore()" if older else ""
    )
    what = "is missing, and version" if gone else "is not a file, and version"
    return DamagedError(
        f"{place}/{manifest_name(number)} {what} {number} was published: restore the file{other}"
    )


def is_store(place: Place) -> bool:
    """Whether there is a store, be it one that is damaged."""
    return highest(place) > 0


def newest_manifest(place: Place) -> Manifest | None:
    """The newest version; None where there is no store."""
    while True:
        noted = _noted(place)
        number = newest(place)
        if number == 0:
            return None
        try:
            manifest = read_manifest(place, number)
        except StoreError:
            if highest(place) == number:
                raise
            continue  # it was replaced meanwhile, and expired at once
        if noted.version == number and noted.id != manifest.id:
            raise DamagedError(
                f"{place}/{manifest_name(number)} is not the manifest that was published as "
                f"version {number}: its id is {manifest.id}, not {noted.id}; restore the file"
            )
        return manifest


# --- reading and publishing -----------------------------------------------------------------------


def read_manifest(place: Place, version: int) -> Manifest:
    where = f"{place}/{manifest_name(version)}"
    try:
        content = place.read(manifest_name(version))
    except FileNotFoundError:
        raise StoreError(f"{where} is not there: no such version of the store") from None
    except OSError as error:
        raise StoreError(
            f"{where} cannot be read: {error.strerror or error}; restore the file, or ask for the "
            "right to read it"
        ) from error
    try:
        manifest = from_json(where, content)
        if manifest.version != version:
            raise ValueError(f"it says it is version {manifest.version}")
        return manifest
    except (
        ValueError, KeyError, TypeError, OSError, OverflowError, RecursionError, pa.ArrowException,
    ) as error:  # fmt: skip
        raise DamagedError(f"the manifest {where} is damaged: {error}; restore it") from error


def manifest_if_there(place: Place, version: int) -> Manifest | None:
    """A manifest, or None where the version has expired since it was listed."""
    try:
        return read_manifest(place, version)
    except StoreError:
        if version in versions(place):
            raise
        return None


def publish(place: Place, manifest: Manifest) -> Manifest:
    """Create the manifest if it is absent, all of it or nothing: this is the commit. What others
    published meanwhile may have expired, too: its number is as good as taken, or this version would
    lie below theirs, unseen. Returns it with the id it got."""
    published = replace(manifest, id=uuid.uuid4().hex)
    name = manifest_name(manifest.version)
    if highest(place) != manifest.version - 1:
        raise conflict(place, manifest.version)
    try:
        with not_written(f"{place}/{name}"):
            place.create(name, published.to_json())
    except FileExistsError:
        raise conflict(place, manifest.version) from None
    except StoreError as error:
        found = manifest_if_there(place, manifest.version)
        if found is None or found.id != published.id:
            raise
        raise StoreError(
            f"version {manifest.version} of {place} is there and can be read, but it may be gone "
            f"after a loss of power: {error.__cause__ or error}; do not repeat the change: open "
            "the store again, and check the disk"
        ) from error
    note(place, published)
    return published


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
