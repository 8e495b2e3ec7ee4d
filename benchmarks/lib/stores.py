"""Stores of products, made once and kept in a folder for the next run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import semistream as ss
from benchmarks.lib import workload

BATCH = 100_000  # rows


def store_of(folder: Path, rows: int, text_key: bool) -> Path:
    """A store of `rows` products; `text_key` adds a string key, as another store."""
    path = folder / f"products-{rows}{'-text' if text_key else ''}"
    if not (path / "manifests").exists():
        print(f"  making {path.name} ...", flush=True)
        key = "code" if text_key else workload.KEY
        ss.Store.create(path, _master(rows, text_key), key, spill_bytes=4 << 30)
    return path


def _master(rows: int, text_key: bool) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH):
        table = workload.master_table(first, min(BATCH, rows - first))
        yield from (with_text(table) if text_key else table).to_batches()


def with_text(table: pa.Table) -> pa.Table:
    """The same rows with a string key."""
    codes = pa.array([f"SKU-{k:012d}" for k in table.column(workload.KEY).to_pylist()])
    place = table.schema.get_field_index(workload.KEY)
    return table.set_column(place, "code", codes)
