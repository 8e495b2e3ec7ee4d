"""A store whose every row names the version that wrote it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss

KEYS = 100


def said(key: int, version: int) -> str:
    return f"{key} in version {version}"


def rows(version: int, keys: range = range(KEYS), name: str = "name") -> pa.Table:
    """What the master says in a version; each row names the version that wrote it."""
    return pa.table({"id": pa.array(keys, pa.int64()), name: [said(k, version) for k in keys]})


@pytest.fixture
def store(tmp_path) -> Path:
    ss.Store.create(tmp_path / "store", rows(1), key="id", page_bytes=1024).close()
    return tmp_path / "store"


def publish(path: Path, keys: range = range(KEYS)) -> int:
    store = ss.Store.open(path)
    newer = store.upsert(rows(store.version + 1, keys))
    return newer.version
