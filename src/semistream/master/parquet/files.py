"""Files of others: finding them, telling whether they have changed, opening them.

Paths are relative to a root, with "/" between their parts; "" is the root itself where that is one
file. A file's `mark` differs after every change of it: a time on a local disk, a tag elsewhere.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ...errors import MasterError, SpecError

HIDDEN = "***"


class Options(dict[str, Any]):
    """Storage options, which may hold secrets: never shown."""

    def __repr__(self) -> str:
        return f"Options({sorted(self)})"

    __str__ = __repr__

    def hide(self, text: object) -> str:
        """Some words of a library, without the values of these options."""
        shown = str(text)
        for secret in sorted(_texts(self), key=len, reverse=True):
            shown = shown.replace(secret, HIDDEN)
        return shown


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in _texts(one)]
    # Shorter ones are no secrets ("1", "true", "s3"), and would riddle the message.
    return [value] if isinstance(value, str) and len(value) >= 6 and "://" not in value else []


@dataclass(frozen=True)
class Found:
    """A file as it was when it was looked at."""

    path: str
    size: int
    mark: str


class Files(ABC):
    """A root with files under it. Errors are MasterErrors that name the file."""

    name: str  # the root, for people
    buffer_bytes: int  # what to read at once
    check_pages: bool  # whether an open file may change under its reader
    gone: str = "open the master again as it is now"  # the remedy where a file is missing

    @abstractmethod
    def walk(self) -> list[Found]:
        """All files under the root, sorted by path; the root itself where it is a file."""

    @abstractmethod
    def look(self, path: str) -> Found:
        """One file as it is now."""

    @abstractmethod
    def open(self, found: Found) -> pa.NativeFile:
        """Open a file that was found earlier; an error if it is another one now."""

    @abstractmethod
    def is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def table_around(self, mark: str) -> str | None:
        """The nearest folder above the root that has a folder of this name."""

    def locator(self) -> dict[str, Any]:
        return {"path": self.name}

    def full(self, path: str) -> str:
        return f"{self.name.rstrip('/')}/{path}" if path else self.name

    def check(self, found: Found) -> None:
        """Raise if a file is not the one that was found earlier."""
        self._compare(self.look(found.path), found)

    def _compare(self, now: Found, found: Found) -> None:
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
        self.name = str(self._root)

    def walk(self) -> list[Found]:
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

    def look(self, path: str) -> Found:
        try:
            state = os.stat(self._root / path)
        except OSError as error:
            raise self.failed(path, error) from error
        return Found(path, state.st_size, str(state.st_mtime_ns))

    def open(self, found: Found) -> pa.NativeFile:
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
        self.options = Options(options or {})
        self.name = root.rstrip("/")
        self._system = import_fsspec(root, self.options)
        self._root = self._system._strip_protocol(self.name)

    def locator(self) -> dict[str, Any]:
        return {"path": self.name, "options": self.options}

    def hide(self, text: object) -> str:
        return self.options.hide(text)

    def walk(self) -> list[Found]:
        try:
            self._system.invalidate_cache()
            listed = self._system.find(self._root, detail=True)
        except Exception as error:
            raise self._failed("", error) from None
        start = len(self._root) + 1
        found = [_found(path[start:], info) for path, info in listed.items()]
        return sorted((f for f in found if not f.path.endswith("/")), key=lambda one: one.path)

    def look(self, path: str) -> Found:
        try:
            return _found(path, self._system.info(self._path(path), refresh=True))
        except Exception as error:
            raise self._failed(path, error) from None

    def open(self, found: Found) -> pa.NativeFile:
        try:
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
        except MasterError:
            raise
        except Exception as error:
            raise self._failed(found.path, error) from None

    def is_folder(self, path: str) -> bool:
        try:
            return bool(self._system.isdir(self._path(path)))
        except Exception as error:
            raise self._failed(path, error) from None

    def table_around(self, mark: str) -> str | None:
        names = self._root.split("/")
        above = ["/".join(names[:i]) for i in range(len(names) - 1, 0, -1)]
        try:
            return next((p for p in above if self._system.isdir(f"{p}/{mark}")), None)
        except Exception as error:
            raise self._failed("", error) from None

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _failed(self, path: str, error: Exception) -> MasterError:
        """Chained errors are shown whole, secrets included, so callers raise this from None."""
        return self.failed(path, error)


def _found(path: str, info: Mapping[str, Any]) -> Found:
    for name in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created"):
        if info.get(name) is not None:
            return Found(path, int(info["size"]), str(info[name]))
    return Found(path, int(info["size"]), "")


def import_fsspec(root: str, options: Options) -> Any:
    """The file system behind a URL."""
    try:
        import fsspec  # late: only whoever reads from object stores needs it

        # Listings must be fresh: the point is to see what others have changed.
        protocol = root.split("://", 1)[0]
        return fsspec.filesystem(protocol, **{"use_listings_cache": False, **options})
    except ImportError as error:
        raise _needs_extra(root, error) from error
    except Exception as error:
        raise MasterError(f"{root} cannot be reached: {options.hide(error)}") from None


def _needs_extra(root: str, error: ImportError) -> MasterError:
    return MasterError(
        f"{root} needs a package that is not installed ({error}); install 'semistream[s3]', or "
        "for other stores the fsspec package of that store"
    )


def open_files(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Files:
    """Where some files live."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    if "://" in text:
        return RemoteFiles(text, options)
    if options:
        raise SpecError(f"storage_options are for paths such as s3://..., not for {text!r}")
    return LocalFiles(text)
