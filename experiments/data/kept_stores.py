"""Stores that are made once, kept in a folder and used again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from semistream import Store
from semistream.errors import ConflictError, StoreError

PAGE_BYTES = 8192
"""Pages of the papers' databases. Masters of products have larger ones (products.py)."""


def kept(path: Path, build: Callable[[Path], object]) -> Path:
    """The store at `path`, built by `build(path)` if it is not there. Building is atomic, so
    whatever is there is whole; its name must say everything that its rows depend on."""
    if not is_store(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(ConflictError):  # another run has made the same one meanwhile
            build(path)
    return path


def kept_table(
    path: Path,
    rows: Callable[[], pa.Table | pa.RecordBatchReader],
    key: str | tuple[str, ...],
    page_bytes: int,
) -> Path:
    """A store of rows that are only read, or made, if it is not there yet."""
    names = [key] if isinstance(key, str) else list(key)
    return kept(path, lambda to: Store.create(to, rows(), names, page_bytes=page_bytes))


def is_store(path: Path) -> bool:
    """Is a whole store there? One that is damaged raises: it is not to be used, nor replaced."""
    if not path.exists():
        return False
    try:
        Store.open(path)
    except StoreError as error:
        if "is not a store" in str(error):
            return False
        raise
    return True
