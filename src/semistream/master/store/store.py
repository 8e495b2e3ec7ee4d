"""The paged store: the default home of a master table.

A version is a base and the changes since (change.py). Files are never changed, so whoever
reads a version keeps it while others publish new ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import SpecError, StoreError
from ...kernels.arrays import I64
from ..base import NOTHING, Master
from ..storage import Place, place_at
from . import format as fmt
from .change import change, compact, is_latest, publish, restore, retain
from .expire import Folders, as_folders, expire, keep_rule
from .input import Rows, as_batches
from .read import StorePages
from .run import write_run
from .verify import verify
from .write import PAGE_BYTES, Progress, design
from .writers import writing


class Store(StorePages):
    """A store at one version. Open it with `Store.open`, make one with `Store.create`."""

    # --- making and opening --------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        data: Rows,
        key: str | Sequence[str],
        *,
        unique: bool = False,
        keep: int | None = None,
        pins: Folders = (),
        page_bytes: int = PAGE_BYTES,
        spill_bytes: int = 1 << 30,
        progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Store:
        """Sort `data` by key and write it as version 1 of a new store, in a local folder or in an
        object store (s3://..., with `storage_options` as for fsspec). Rows beyond `spill_bytes`
        are sorted on disk. A crash before the end leaves no store behind.

        `unique=True`: no key may have two rows, now or after any change; else DuplicateKeyError.
        `keep=20`: every change lets versions before the last 20 expire, but for those that pin
        files in the folders `pins` name; see `retain`."""
        place = place_at(path, storage_options)
        if fmt.is_store(place):
            raise StoreError(f"{place} is a store already; choose another path or delete it first")
        rule = keep_rule(keep, 0, pins)
        schema, batches = as_batches(data)
        plan = design(schema, key, page_bytes, unique)
        with place.new_store(), writing(place, new=True):
            run = write_run(place, plan, batches, spill_bytes, progress)
            publish(place, replace(plan.manifest([run]), keep=rule), [run])
        return cls.open(place)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Place,
        version: int | None = None,
        *,
        io: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Store:
        """Open the latest version, or a given one. `io`: "map" (pages are looked at where they lie
        in the page cache), "pread" (they are read into memory of the join), or "auto": "map" for a
        local store that stays in memory here, be it the machine's or the container's limit."""
        place = place_at(path, storage_options)
        if io not in ("auto", "map", "pread"):
            raise SpecError(f'io={io!r}: choose "auto", "map" or "pread"')
        if io == "map" and place.remote:
            raise SpecError(f'io="map": {place} is not a local folder; choose "pread" or "auto"')
        while True:
            manifest = _manifest(place, version)
            try:
                return cls(place, manifest, io)
            except StoreError:
                if manifest.version in fmt.versions(place):
                    raise  # else it expired meanwhile: take a newer one, or say it is gone

    @property
    def version(self) -> int:
        return self.manifest.version

    def __repr__(self) -> str:
        return f"Store({str(self.place)!r}, version={self.version}, rows={self.manifest.rows})"

    def locator(self) -> dict[str, Any]:
        # `store` tells it from another that was built in its place later, `published` this version
        # from another of the same number.
        return {
            "kind": "store",
            **self.place.locator(),
            "version": self.version,
            "store": self.manifest.store,
            "published": [self.version, self.manifest.id],
            "io": self.io,
        }

    # --- changes: each publishes a new version and returns it; this one stays as it is ---------

    def append(
        self, data: Rows, *, spill_bytes: int = 1 << 30, progress: Progress | None = None
    ) -> Store:
        """Add rows to those that their keys have."""
        return self._changed("append", data, spill_bytes, progress)

    def upsert(
        self,
        data: Rows,
        *,
        spill_bytes: int = 1 << 30,
        progress: Progress | None = None,
        writer_batch: tuple[str, int] | None = None,
    ) -> Store:
        """Replace all rows of the keys in `data` by its rows; keys that are new are added.

        `writer_batch=(name, number)` makes it happen once: where this or a later batch of that
        writer is in the store already, nothing is changed."""
        return self._changed("upsert", data, spill_bytes, progress, writer_batch)

    def delete(
        self, keys: Rows, *, spill_bytes: int = 1 << 30, progress: Progress | None = None
    ) -> Store:
        """Remove all rows of some keys, a table with the key columns. Keys that are not there,
        and NULLs, change nothing."""
        return self._changed("delete", keys, spill_bytes, progress)

    def compact(self, progress: Progress | None = None) -> Store:
        """Write everything that can be seen as one base without changes: joins are faster then.
        Old versions keep their files until they expire."""
        with writing(self.place):
            return self._at(compact(self, progress))

    def restore(self, progress: Progress | None = None) -> Store:
        """Publish the rows of this version, an old one, as the newest; they are written anew:
        Store.open(path, 7).restore()"""
        with writing(self.place):
            return self._at(restore(self, progress))

    def expire(
        self, older_than: float | str = "7d", *, keep: int = 1, pins: Folders = ()
    ) -> list[int]:
        """Delete versions that were replaced longer ago than `older_than`, and their files. The
        last `keep` versions stay, and those that pin files in the folders `pins` name. Returns the
        numbers of the versions that went. Who reads one of these may fail."""
        return expire(self.place, older_than, keep, as_folders(pins))

    def retain(self, keep: int | None, *, older_than: float | str = 0, pins: Folders = ()) -> Store:
        """From now on let every change, whoever makes it, do what `expire` would: versions go that
        are not among the last `keep`, were replaced longer ago than `older_than`, and are not named
        by pins. None: versions stay until `expire`. The rule is a new version by itself."""
        rule = keep_rule(keep, older_than, pins)
        with writing(self.place):
            return self._at(retain(self, rule))

    def _changed(
        self,
        kind: str,
        data: Rows,
        spill_bytes: int,
        progress: Progress | None,
        writer_batch: tuple[str, int] | None = None,
    ) -> Store:
        if writer_batch is not None:
            name, number = writer_batch
            if self.manifest.writers.get(name, -1) >= number:
                return self
        _, batches = as_batches(data)
        with writing(self.place):
            return self._at(change(self, kind, batches, spill_bytes, writer_batch, progress))

    def _at(self, manifest: fmt.Manifest | None) -> Store:
        """The version that was just published; a newer one where it has expired at once, as where
        few versions are kept and many write."""
        if manifest is None:
            return self
        try:
            return Store(self.place, manifest, self.io, like=self)
        except StoreError:
            if manifest.version in fmt.versions(self.place):
                raise
            return Store.open(self.place, io=self.io)

    def verify(self, progress: Progress | None = None) -> int:
        """Check every byte of this version's files, and that rows lie where readers look for them.
        Returns the number of pages; raises DamagedError at the first fault."""
        return verify(self, progress)

    def require_unique(self) -> None:
        if not self.manifest.unique:  # else every change has seen to it
            super().require_unique()

    # --- versions ------------------------------------------------------------------------------

    def identity(self) -> str:
        return f"{self.manifest.store}/{self.manifest.id}"

    def newest(self) -> Store:
        return self if is_latest(self) else Store.open(self.place, io=self.io)

    def changed_since(self, older: Master) -> I64 | None:
        """All codes that a run claims which only one of the two versions has, whatever happened
        between them. After a compaction nothing is known."""
        if older is self:
            return NOTHING
        if not isinstance(older, Store) or older.manifest.runs[0].id != self.manifest.runs[0].id:
            return None
        return np.unique(np.concatenate([self._claims_beyond(older), older._claims_beyond(self)]))

    def _claims_beyond(self, other: Store) -> I64:
        """Codes that runs claim which another version does not have."""
        shared = {run.id for run in other.manifest.runs}
        new = [i for i, run in enumerate(self.manifest.runs) if run.id not in shared]
        claims = self.index.claims
        return np.concatenate([NOTHING, *([] if claims is None else map(claims.codes, new))])


def _manifest(place: Place, wanted: int | None) -> fmt.Manifest:
    """The newest version, or another one."""
    newest = fmt.newest_manifest(place) if wanted is None else None
    if newest is not None:
        return newest
    gone = (None, -1, len(fmt.EXPIRED))
    if wanted is not None and place.size(fmt.manifest_name(wanted)) not in gone:
        return fmt.read_manifest(place, wanted)
    if not fmt.is_store(place):
        raise StoreError(f"{place} is not a store: it has no manifest; make one: Store.create")
    known = fmt.versions(place)
    if wanted is not None and known[-1:] == [wanted]:
        return fmt.read_manifest(place, wanted)
    if wanted is not None and wanted == fmt.noted_version(place):
        fmt.newest(place)  # says that it was published, and is gone
    raise StoreError(f"{place} has no version {wanted}; it has {_ranges(known)}")


def _ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] as people write it: 1-3, 7."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ", ".join("-".join(map(str, part)) for part in parts)
