"""Files of others: finding them, telling whether they have changed, opening them.

Paths are relative to a root, with "/" between their parts; "" is the root itself where that is one
file. A file's `mark` differs after every change of it: a time on a local disk, a tag elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from ...errors import MasterError, SpecError
from ...safety import address, check_address, check_path, scrub

T = TypeVar("T")
_SECRET = re.compile("secret|password|passwd|token|key|credential|sas|auth|header", re.IGNORECASE)


class StorageOptions(dict[str, Any]):
    """Storage options, which may hold secrets: never shown."""

    def __repr__(self) -> str:
        return f"StorageOptions({sorted(self)})"

    __str__ = __repr__

    def hide(self, text: object) -> str:
        """Some words of a library, without the values of these options."""
        return scrub(text, _texts(self, False))

    def mark(self) -> str:
        """Tells them from other options, and nothing about them."""
        return hashlib.sha256(repr(sorted(self.items())).encode()).hexdigest()


def _texts(value: Any, secret: bool) -> Iterator[str]:
    """The values that are hidden. Short ones are no secrets ("1", "true", "s3") unless they are
    called so, and would riddle the message; addresses are shown as far as they may be."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(one, secret or bool(_SECRET.search(str(name))))
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts(one, secret)
    elif isinstance(value, bytes):
        yield from _texts(value.decode("utf-8", "replace"), secret)
    elif isinstance(value, str) and len(value) >= (3 if secret else 6) and not _is_plain(value):
        yield value


def _is_plain(value: str) -> bool:
    return "://" in value and address(value) == value


@dataclass(frozen=True)
class FoundFile:
    """A file as it was when it was looked at."""

    path: str
    size: int
    mark: str


class Files(ABC):
    """A root with files under it. Errors are MasterErrors that name the file."""

    path: str  # the root
    name: str  # the same for people, without what may be a secret
    buffer_bytes: int  # what to read at once
    check_pages: bool  # whether an open file may change under its reader
    gone: str = "open the master again as it is now"  # the remedy where a file is missing

    @abstractmethod
    def walk(self) -> list[FoundFile]:
        """All files under the root, sorted by path; the root itself where it is a file."""

    @abstractmethod
    def look(self, path: str) -> FoundFile:
        """One file as it is now."""

    @abstractmethod
    def open(self, found: FoundFile) -> pa.NativeFile:
        """Open a file that was found earlier; an error if it is another one now."""

    @abstractmethod
    def is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def table_around(self, mark: str) -> str | None:
        """The nearest folder above the root that has a folder of this name."""

    def locator(self) -> dict[str, Any]:
        return {"path": self.path}

    def full(self, path: str) -> str:
        return f"{self.name.rstrip('/')}/{path}" if path else self.name

    def check(self, found: FoundFile) -> None:
        """Raise if a file is not the one that was found earlier."""
        self._compare(self.look(found.path), found)

    def _compare(self, now: FoundFile, found: FoundFile) -> None:
        if now != found:
            raise MasterError(
                f"{self.full(found.path)} was replaced while it was in use: {found.size} bytes "
                f"then, {now.size} now; open the master again, and write changes as new files"
            )

    def failed(self, path: str, error: Exception) -> MasterError:
        if isinstance(error, FileNotFoundError):
            return MasterError(f"{self.full(path)} does not exist (any more); {self.gone}")
        return MasterError(f"{self.full(path)} cannot be read: {self.hide(error)}")

    def hide(self, text: object) -> str:
        return str(text)


class LocalFiles(Files):
    # Read, not mapped: a mapped file that someone cuts short kills its readers, and programs do
    # write over files in place. With a small buffer it is as fast.
    buffer_bytes = 16 << 10
    check_pages = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self.path = self.name = str(self._root)

    def walk(self) -> list[FoundFile]:
        if self._root.is_file():
            return [self.look("")]
        if not self._root.is_dir():
            raise MasterError(
                f"{self.name} does not exist; name a store, a Parquet file or a folder of them"
            )

        def fail(error: OSError) -> None:  # otherwise os.walk leaves out what it may not list
            raise self.failed(os.path.relpath(error.filename, self._root), error) from error

        found = []
        for folder, _, names in os.walk(self._root, onerror=fail, followlinks=True):
            at = Path(folder).relative_to(self._root)
            found += [self.look((at / name).as_posix()) for name in names]
        return sorted(found, key=lambda one: one.path)

    def look(self, path: str) -> FoundFile:
        try:
            state = os.stat(self._root / path)
        except OSError as error:
            raise self.failed(path, error) from error
        return FoundFile(path, state.st_size, str(state.st_mtime_ns))

    def open(self, found: FoundFile) -> pa.NativeFile:
        self.check(found)
        try:
            return pa.OSFile(str(self._root / found.path))
        except OSError as error:
            raise self.failed(found.path, error) from error

    def is_folder(self, path: str) -> bool:
        return (self._root / path).is_dir()

    def table_around(self, mark: str) -> str | None:
        return next((str(p) for p in self._root.parents if (p / mark).is_dir()), None)


class RemoteFiles(Files):
    """Anything fsspec knows: s3://bucket/folder and so on."""

    buffer_bytes = 1 << 20
    check_pages = False  # reads of an open object demand its tag, or are of one version

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        self.options = StorageOptions(options or {})
        self.path = root.rstrip("/")
        self.name = address(self.path)
        self._system = import_fsspec(root, self.options)
        self._root = self._system._strip_protocol(self.path)

    def locator(self) -> dict[str, Any]:
        return {"path": self.path, "options": self.options}

    def hide(self, text: object) -> str:
        return self.options.hide(text)

    def _try(self, path: str, call: Callable[[], T]) -> T:
        """Errors of the file system become ours. They are not chained, not even as what was being
        handled: theirs may have secrets in it."""
        try:
            return call()
        except MasterError:
            raise
        except Exception as error:
            problem = self.failed(path, error)
        raise problem

    def walk(self) -> list[FoundFile]:
        start = len(self._root) + 1

        def listed() -> list[FoundFile]:
            self._system.invalidate_cache()
            every = self._system.find(self._root, detail=True)
            return [_found(path[start:], info) for path, info in every.items()]

        found = [one for one in self._try("", listed) if not one.path.endswith("/")]
        return sorted(found, key=lambda one: one.path)

    def look(self, path: str) -> FoundFile:
        at = self._path(path)
        return self._try(path, lambda: _found(path, self._system.info(at, refresh=True)))

    def open(self, found: FoundFile) -> pa.NativeFile:
        def opened() -> pa.NativeFile:
            # The buffer is pyarrow's; a second one here would read far too much.
            file = self._system.open(self._path(found.path), "rb", cache_type="none")
            now = _found(found.path, getattr(file, "details", None) or {"size": -1})
            if now.size < 0:
                now = self.look(found.path)
            self._compare(now, found)  # the one that was opened, without another journey
            if found.size <= self.buffer_bytes:
                with file:
                    return pa.BufferReader(file.read())
            return pa.PythonFile(file, mode="r")

        return self._try(found.path, opened)

    def is_folder(self, path: str) -> bool:
        at = self._path(path)
        return self._try(path, lambda: bool(self._system.isdir(at)))

    def table_around(self, mark: str) -> str | None:
        names = self._root.split("/")
        above = ["/".join(names[:i]) for i in range(len(names) - 1, 0, -1)]

        def found() -> str | None:
            return next((p for p in above if self._system.isdir(f"{p}/{mark}")), None)

        return self._try("", found)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _found(path: str, info: Mapping[str, Any]) -> FoundFile:
    if info.get("size") is None:
        raise OSError("nobody says how large it is")
    for name in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created"):
        if info.get(name) is not None:
            return FoundFile(path, int(info["size"]), str(info[name]))
    return FoundFile(path, int(info["size"]), "")


def import_fsspec(root: str, options: StorageOptions) -> Any:
    """The file system behind a URL, which has no credentials in it."""
    check_address(root)
    protocol = root.split("://", 1)[0]
    if protocol.lower() in ("http", "https"):
        raise MasterError(
            f"{address(root)} cannot be a master: web servers do not say which files there are and "
            "when they change; copy them to a folder or to an object store"
        )
    try:
        import fsspec  # late: only whoever reads from object stores needs it

        # Listings must be fresh: the point is to see what others have changed.
        return fsspec.filesystem(protocol, **{"use_listings_cache": False, **options})
    except ImportError as error:
        problem = (
            f"{address(root)} needs a package that is not installed ({error}); install "
            "'semistream[s3]', or for other stores the fsspec package of that store"
        )
    except Exception as error:
        problem = f"{address(root)} cannot be reached: {options.hide(error)}"
    raise MasterError(problem)


def open_files(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Files:
    """Where some files live."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    if "://" in text:
        return RemoteFiles(text, options)
    check_path(text)
    if options:
        raise SpecError(f"storage_options are for paths such as s3://..., not for {text!r}")
    return LocalFiles(text)
