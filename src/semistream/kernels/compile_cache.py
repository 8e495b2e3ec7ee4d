"""Compiled code, kept between processes in a private folder that depends on what the kernels are.

Numba's own folders depend on the path of the source. Spark unpacks a shipped package or environment
under another path for every application, and each of them would compile everything again; of a
zip file Numba would not even ask NUMBA_CACHE_DIR. Nor does it notice a change in a function
that another file compiles into its own. So: one folder for each content of all kernels.

What is kept are pickles and machine code: whoever can write there runs code as us. So the folder is
private, or nothing is kept. A file for each function and signature, sealed: one that was damaged is
compiled anew, and so is one that could not be written.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.serialize import dumps

from ..safety import (
    SINGLE_USER,
    SealError,
    cache_home,
    own_name,
    private_folder,
    read_private,
    seal,
    temporary_home,
    unseal,
    why_not,
    write_private,
)

LOG = logging.getLogger("semistream.kernels")


@functools.cache
def _stamp() -> str:
    found = hashlib.sha256()
    for entry in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            found.update(entry.read_bytes())
    return found.hexdigest()


@functools.cache
def code_folder() -> Path | None:
    """Where compiled code is kept, looked for once in a process; None: nowhere is private."""
    asked = Path(config.CACHE_DIR) if config.CACHE_DIR else None
    refused = ["there is no folder for caches or temporary files"]
    for base in (asked, cache_home(), temporary_home()):
        if base is None:
            continue
        try:
            folder = private_folder(base, own_name(), f"kernels-{_stamp()[:16]}")
        except OSError as error:
            refused.append(why_not(error))
            if base is asked:
                LOG.warning("NUMBA_CACHE_DIR=%s is not used: %s", asked, refused[-1])
        else:
            return folder
    LOG.warning(
        "compiled code is not kept, so every process compiles anew: %s; set NUMBA_CACHE_DIR to a "
        "folder of this user alone, or %s=1 where nobody else is on this machine",
        refused[-1],
        SINGLE_USER,
    )
    return None


class _Locator(_CacheLocator):  # type: ignore[misc]
    """What Numba asks for; its answers name files that are never made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        return cls(function)

    def ensure_cache_path(self) -> None:
        """It is there."""

    def get_cache_path(self) -> str:
        return str(code_folder())

    def get_source_stamp(self) -> str:
        return _stamp()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Content(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]  # noqa: RUF012 - as in the base class


class _Files:
    """The compiled forms of one function, in the place of Numba's index and its data files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def load(self, key: Any) -> Any:
        """What was saved under this key; None: compile it."""
        try:
            return pickle.loads(unseal("kernel", read_private(self._file(key))))
        except (OSError, SealError):
            return None

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):  # of a disk that is full
            write_private(self._file(key), seal("kernel", dumps(data)))

    def flush(self) -> None:
        """Nothing is held back."""

    def _file(self, key: Any) -> Path:
        """Signature, processor and the function's own code are in the key."""
        which = hashlib.sha256(repr((numba.__version__, key)).encode()).hexdigest()
        return self._folder / f"{self._name}.{which[:32]}.kernel"


class ContentCache(FunctionCache):  # type: ignore[misc]
    """What `cache=True` would give a dispatcher, in our folder."""

    _impl_class = _Content

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        super().__init__(function)
        self._cache_file = _Files(folder, self._impl.filename_base)
