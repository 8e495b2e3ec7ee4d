"""The paged store: the default home of a master table.

A version is a base and the changes since (change.py). Files are never changed, so whoever
reads a version keeps it while others publish new ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SpecError, StoreError
from ..base import NOTHING, Master
from . import format as fmt
from .change import change, compact, is_latest, publish
from .expire import expire, writing
from .files import Rows, as_batches
from .place import Place, place_at
from .read import StorePages
from .run import write_run
from .verify import verify
from .write import PAGE_BYTES, Progress, design

I64 = NDArray[np.int64]


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
        page_bytes: int = PAGE_BYTES,
        spill_bytes: int = 1 << 30,
        progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Store:
        """Sort `data` by key and write it as version 1 of a new store, in a local folder or in an
        object store (s3://..., with `storage_options` as for fsspec). Rows beyond `spill_bytes`
        are sorted on disk. A crash before the end leaves no store behind."""
        place = place_at(path, storage_options)
        if fmt.versions(place):
            raise StoreError(f"{place} is a store already; choose another path or delete it first")
        schema, batches = as_batches(data)
        plan = design(schema, key, page_bytes)
        with place.new_store(), writing(place, new=True):
            run = write_run(place, plan, batches, spill_bytes, progress)
            publish(place, plan.manifest([run]), [run])
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
        """Open the latest version, or a given one. `io`: "map", "pread", or "auto"."""
        place = place_at(path, storage_options)
        if io not in ("auto", "map", "pread"):
            raise SpecError(f'io={io!r}: choose "auto", "map" or "pread"')
        if io == "map" and place.remote:
            raise SpecError(f'io="map": {place} is not a local folder; choose "pread" or "auto"')
        how = ("pread" if place.remote else "map") if io == "auto" else io
        while True:
            number = _version(place, version)
            try:
                return cls(place, fmt.read_manifest(place, number), how)
            except StoreError:
                if number in fmt.versions(place):
                    raise  # else it expired meanwhile: take a newer one, or say it is gone

    @property
    def version(self) -> int:
        return self.manifest.version

    def __repr__(self) -> str:
        return f"Store({str(self.place)!r}, version={self.version}, rows={self.manifest.rows})"

    def locator(self) -> dict[str, Any]:
        # `store` tells it from another that was built in its place later.
        return {
            "kind": "store",
            **self.place.locator(),
            "version": self.version,
            "store": self.manifest.store,
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

    def expire(
        self,
        older_than: float | str = "7d",
        *,
        keep: int = 1,
        pins: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ) -> list[int]:
        """Delete versions that were replaced longer ago than `older_than`, and their files. The
        last `keep` versions stay, and those that pin files in the folders `pins` name. Returns the
        numbers of the versions that went. Who reads one of these may fail."""
        folders = [pins] if isinstance(pins, str | os.PathLike) else list(pins)
        return expire(self.place, older_than, keep, folders)

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
        return self if manifest is None else Store(self.place, manifest, self.io)

    def verify(self, progress: Progress | None = None) -> int:
        """Check every byte of this version's files, and that rows lie where readers look for them.
        Returns the number of pages; raises DamagedError at the first fault."""
        return verify(self, progress)

    # --- versions ------------------------------------------------------------------------------

    def identity(self) -> str:
        return self.manifest.store

    def newest(self) -> Store:
        return self if is_latest(self) else Store.open(self.place, io=self.io)

    def changed_since(self, older: Master) -> I64 | None:
        """All that runs which the older version did not have claim; runs that were merged claim
        what their parts did. After a compaction nothing is known."""
        if older is self:
            return NOTHING
        runs = self.manifest.runs
        if not isinstance(older, Store) or older.manifest.runs[0].id != runs[0].id:
            return None
        had = {run.id for run in older.manifest.runs}
        if older.version > self.version or self.index.claims is None:
            return None
        new = [i for i, run in enumerate(runs) if i and run.id not in had]
        codes = [self.index.claims.codes(i) for i in new]
        return np.unique(np.concatenate([NOTHING, *codes]))


def _version(place: Place, wanted: int | None) -> int:
    known = fmt.versions(place)
    if not known:
        raise StoreError(f"{place} is not a store: it has no manifest; make one: Store.create")
    if wanted is not None and wanted not in known:
        raise StoreError(f"{place} has no version {wanted}; it has {_ranges(known)}")
    return known[-1] if wanted is None else wanted


def _ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] as people write it: 1-3, 7."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ", ".join("-".join(map(str, part)) for part in parts)
