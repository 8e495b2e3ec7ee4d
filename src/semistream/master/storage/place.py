"""Where a store's files are: a local folder, or (remote.py) a prefix in an object store.

A place can create a small file if it is absent, which is how versions are published, and takes
in data files that were written into a local folder.
"""

from __future__ import annotations

import mmap
import os
import stat
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import DamagedError, SpecError, StoreError
from ...safety import check_path

MANIFESTS, DATA, NEWEST, WRITERS = "manifests", "data", "newest", "writers"


class StoreFile:
    """A local file of known size, mapped or read by position."""

    def __init__(self, path: Path, size: int, io: str) -> None:
        self.path: Path | str = path
        self.size = size
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DamagedError(f"{path} cannot be opened: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._handle)
        found = os.fstat(self._handle).st_size
        if found != size:
            self.close()
            raise DamagedError(f"{path} has {found} bytes instead of {size}; restore the file")
        self._map: mmap.mmap | None = None
        if io == "map":
            try:
                self._map = mmap.mmap(self._handle, size, prot=mmap.PROT_READ)
            except (OSError, ValueError) as error:  # no memory for it, a folder, no bytes at all
                self.close()
                raise StoreError(f'{path} cannot be mapped: {error}; use io="pread"') from error
            self.buffer = pa.py_buffer(self._map)
            self.address = self.buffer.address

    def read_into(self, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._handle, [target[done:]], offset + done)
            except OSError as error:
                raise StoreError(f"reading {self.path} failed: {error.strerror}") from error
            if count == 0:
                raise DamagedError(f"{self.path} ends at byte {offset + done}; restore the file")
            done += count

    def close(self) -> None:
        self._close()


@dataclass(frozen=True)
class FileInfo:
    name: str
    bytes: int
    changed: float  # seconds since 1970


class Place(ABC):
    """Names are relative to the store: "manifests/00000001.json", "data/RUN.index"."""

    name: str  # for people
    data: Path  # where data files are written; a local folder in any case
    remote = False  # True: files cannot be mapped

    @abstractmethod
    def list(self, folder: str) -> list[FileInfo]:
        """Files in a folder of the store; none where there is no such folder."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is nothing of that name, -1 where it is no file."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Write a small file, all of it or nothing. FileExistsError where it exists already."""

    @abstractmethod
    def mark(self, name: str) -> None:
        """Make an empty file, if there is none, whose name alone says something."""

    @abstractmethod
    def load(self, name: str, size: int) -> pa.Buffer:
        """A whole file of known size; mapped where that is possible."""

    @abstractmethod
    def open(self, name: str, size: int, io: str) -> StoreFile:
        """A file to read pages from."""

    @abstractmethod
    def deliver(self, names: Sequence[str]) -> None:
        """These files in `data` are complete: bring them to where the store is."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Write over a small file that is there, at once."""

    @abstractmethod
    def prepare(self) -> None:
        """Make folders for a new store."""

    @abstractmethod
    def tidy(self) -> None:
        """Remove folders that are empty."""

    @abstractmethod
    def locator(self) -> dict[str, Any]:
        """Plain data from which another process finds the same place."""

    @contextmanager
    def new_store(self) -> Iterator[None]:
        """Make a store's folders; if the rest fails, leave nothing empty behind."""
        self.prepare()
        try:
            yield
        except BaseException:
            self.tidy()
            raise

    def __str__(self) -> str:
        return self.name


class LocalPlace(Place):
    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)
        self.data = root / DATA

    def list(self, folder: str) -> list[FileInfo]:
        found = []
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.root / folder) as all_,
        ):
            for entry in all_:
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        about = entry.stat()
                        found.append(FileInfo(entry.name, about.st_size, about.st_mtime))
        return found

    def size(self, name: str) -> int | None:
        try:
            found = os.lstat(self.root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else -1

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        """Linked into place when it is on disk: `link` fails where the name is taken."""
        target = self.root / name
        self._need_folder(target.parent)
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_dir(target.parent)

    def _need_folder(self, folder: Path) -> None:
        """A folder of the store; that it is there is known to be on disk where it was there."""
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for above in (self.root, self.root.absolute().parent):
                sync_dir(above)

    def mark(self, name: str) -> None:
        target = self.root / name
        self._need_folder(target.parent)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        sync_dir(target.parent)

    def load(self, name: str, size: int) -> pa.Buffer:
        file = StoreFile(self.root / name, size, "map")
        file.close()  # the map keeps the file by itself
        return file.buffer

    def open(self, name: str, size: int, io: str) -> StoreFile:
        return StoreFile(self.root / name, size, io)

    def deliver(self, names: Sequence[str]) -> None:
        """They are there already, under their names; make the names durable."""
        sync_dir(self.data)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def replace(self, name: str, content: bytes) -> None:
        target = self.root / name
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def prepare(self) -> None:
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.root.absolute().parent):
                with suppress(FileNotFoundError):  # someone who failed to make a store removed it
                    sync_dir(folder)
        except OSError as error:
            raise StoreError(f"{self.root} cannot be made a folder: {error.strerror}") from error

    def tidy(self) -> None:
        with suppress(OSError):  # a folder that is in use ends it: someone else makes a store here
            for name in (DATA, WRITERS, NEWEST, MANIFESTS, ""):
                folder = self.root / name
                with suppress(FileNotFoundError):
                    folder.rmdir()

    def locator(self) -> dict[str, Any]:
        return {"path": str(self.root.absolute())}


def place_at(
    path: str | os.PathLike[str] | Place, options: Mapping[str, Any] | None = None
) -> Place:
    """Where a store is: a local path, or a URL that fsspec knows, with its storage options."""
    if isinstance(path, Place):
        return path
    text = os.fspath(path).removeprefix("file://")
    if "://" in text:
        from .remote import RemotePlace  # late: only object stores need it

        return RemotePlace(text, options)
    check_path(text)
    if options:
        raise SpecError(f"storage_options are for paths such as s3://..., not for {text!r}")
    return LocalPlace(Path(text))


def sync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
