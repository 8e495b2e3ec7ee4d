"""Numba's cache of compiled code, in a folder that depends on what the kernels are.

Numba's own folders depend on the path of the source. Spark unpacks a shipped package or environment
under another path for every application, and each of them would compile everything again; of a
zip file Numba would not even ask NUMBA_CACHE_DIR. Nor does it notice a change in a function
that another file compiles into its own. So: one folder for each content of all kernels.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator


@functools.cache
def _stamp() -> str:
    found = hashlib.sha256()
    for entry in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            found.update(entry.read_bytes())
    return found.hexdigest()


class _Locator(_CacheLocator):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno
        self._folder = os.path.join(config.CACHE_DIR, f"kernels-{_stamp()[:16]}")

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        locator = cls(function)
        locator.ensure_cache_path()
        return locator

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return _stamp()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Content(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]  # noqa: RUF012 - as in the base class


class ContentCache(FunctionCache):  # type: ignore[misc]
    """What `cache=True` would give a dispatcher, in our folder."""

    _impl_class = _Content
