"""A store in an object store, through fsspec: s3://bucket/prefix and so on.

Files are written to a local scratch folder and uploaded when they are complete. A version is
published by a put that demands absence, so two writers cannot both win; where a store cannot do
that, or only seems to, it is refused as a home for stores.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import DamagedError, StoreError
from ...safety import address
from .files import StorageOptions, import_fsspec
from .place import DATA, MANIFESTS, FileInfo, Place, StoreFile

UPLOADS = 4
# Their fsspec packages map mode="create" to a put that fails where the object exists.
EXCLUSIVE = ("s3", "s3a", "gs", "gcs", "memory")
T = TypeVar("T")


class RemotePlace(Place):
    remote = True

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url = url.rstrip("/")
        self.name = address(self._url)
        self.options = StorageOptions(options or {})
        self._protocol = url.split("://", 1)[0]
        self._system = import_fsspec(url, self.options)
        self._root = self._system._strip_protocol(self._url)
        self._scratch: Path | None = None
        self._checked = False

    @property
    def data(self) -> Path:  # type: ignore[override]
        """A scratch folder of this process, made when it is needed."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="semistream-upload-"))
            weakref.finalize(self, shutil.rmtree, self._scratch, True)
        return self._scratch

    def _try(self, what: str, call: Callable[[], T]) -> T:
        """Errors of the object store become ours, without what the options hold. They are not
        chained, not even as what was being handled: theirs may have secrets in it."""
        problem: Exception
        try:
            return call()
        except FileExistsError:
            problem = FileExistsError(what)
        except FileNotFoundError:
            problem = FileNotFoundError(what)
        except Exception as error:
            problem = StoreError(f"{what} failed: {self.options.hide(error)}")
        raise problem

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def list(self, folder: str) -> list[FileInfo]:
        def listed() -> Any:
            self._system.invalidate_cache()
            with suppress(FileNotFoundError):
                return self._system.ls(self._path(folder), detail=True)
            return []

        found = self._try(f"listing {self.name}/{folder}", listed)
        return [_info(entry) for entry in found if entry["type"] == "file"]

    def size(self, name: str) -> int | None:
        path = self._path(name)

        def look() -> Any:
            self._system.invalidate_cache()
            return self._system.info(path)

        try:
            found = self._try(f"looking at {self.name}/{name}", look)
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else -1

    def mark(self, name: str) -> None:
        self.replace(name, b"")

    def read(self, name: str) -> bytes:
        path = self._path(name)
        return bytes(self._try(f"reading {self.name}/{name}", lambda: self._system.cat_file(path)))

    def create(self, name: str, content: bytes) -> None:
        self._check_exclusive()
        try:
            self._put_new(name, content)
        except FileExistsError:
            # A put that succeeded, whose answer was lost and that was tried again, is our own.
            if self.read(name) != content:
                raise

    def _put_new(self, name: str, content: bytes) -> None:
        path, what = self._path(name), f"writing {self.name}/{name}"
        try:
            self._try(what, lambda: self._system.pipe_file(path, content, mode="create"))
        except FileNotFoundError:
            raise StoreError(f"{what} failed: there is no such bucket; make it first") from None

    def _check_exclusive(self) -> None:
        """Some servers ignore the demand for absence: find out before anything depends on it."""
        if self._checked:
            return
        if self._protocol not in EXCLUSIVE:
            raise self._not_exclusive(f"{self._protocol}:// is not known to offer that")
        probe = f"{MANIFESTS}/.{uuid.uuid4().hex}.probe"
        self._put_new(probe, b"1")
        try:
            self._put_new(probe, b"2")
        except FileExistsError:
            self._checked = True
        finally:
            self.remove(probe)
        if not self._checked:
            raise self._not_exclusive("this server wrote over an object in spite of If-None-Match")

    def _not_exclusive(self, why: str) -> StoreError:
        return StoreError(
            f"{self.name} cannot be written to: publishing a version needs a put that fails where "
            f"the object exists, and {why}; write the store to a local path or to S3"
        )

    def load(self, name: str, size: int) -> pa.Buffer:
        try:
            content = self.read(name)
        except FileNotFoundError:
            raise DamagedError(f"{self.name}/{name} is missing; restore the file") from None
        if len(content) != size:
            found = len(content)
            raise DamagedError(
                f"{self.name}/{name} has {found} bytes instead of {size}; restore it"
            )
        return pa.py_buffer(content)

    def open(self, name: str, size: int, io: str) -> StoreFile:
        return RemoteFile(self, name, size)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        path, what = self._path(name), f"reading {self.name}/{name}"
        try:
            return bytes(self._try(what, lambda: self._system.cat_file(path, start=start, end=end)))
        except FileNotFoundError:
            raise DamagedError(f"{self.name}/{name} is missing; restore the file") from None

    def deliver(self, names: Sequence[str]) -> None:
        def upload(name: str) -> None:
            local = self.data / name
            if local.exists():
                target = self._path(f"{DATA}/{name}")
                self._try(
                    f"uploading {self.name}/{DATA}/{name}",
                    lambda: self._system.put_file(str(local), target),
                )
                local.unlink()

        with ThreadPoolExecutor(UPLOADS) as pool:
            list(pool.map(upload, names))

    def remove(self, name: str) -> None:
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._try(f"deleting {self.name}/{name}", lambda: self._system.rm_file(path))

    def replace(self, name: str, content: bytes) -> None:
        path = self._path(name)
        self._try(f"writing {self.name}/{name}", lambda: self._system.pipe_file(path, content))

    def prepare(self) -> None:
        """There are no folders to make; but what cannot be published should not be begun."""
        self._check_exclusive()

    def tidy(self) -> None:
        return

    def locator(self) -> dict[str, Any]:
        return {"path": self._url, "options": self.options}


class RemoteFile(StoreFile):
    """An object of known size, read by ranges."""

    def __init__(self, place: RemotePlace, name: str, size: int) -> None:
        self.path = f"{place.name}/{name}"
        self.size = size
        self._place, self._name = place, name

    def read_into(self, offset: int, target: memoryview) -> None:
        if len(target) == 0:
            return
        content = self._place.read_range(self._name, offset, offset + len(target))
        if len(content) != len(target):
            raise DamagedError(
                f"{self.path} ends at byte {offset + len(content)}; restore the file"
            )
        target.cast("B")[:] = content

    def close(self) -> None:
        return


def _info(entry: Mapping[str, Any]) -> FileInfo:
    changed: Any = entry.get("LastModified") or entry.get("mtime") or entry.get("created")
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed or time.time()
    return FileInfo(entry["name"].rsplit("/", 1)[-1], int(entry["size"]), float(seconds))
