"""Rows from files, a batch at a time, and rows into a file that appears whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..errors import SemiStreamError
from ..master.storage import sync_dir

BATCH_ROWS = 1 << 16
GROUP_BYTES = 16 << 20  # joined rows gathered for one row group
_ARROW = (".arrow", ".feather", ".ipc")
_PARQUET = (".parquet", ".parq")


@dataclass(frozen=True)
class Rows:
    """Columns of an input, its batches (to be read once), and how many rows if that is known."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    count: int | None


def read_rows(path: Path) -> Rows:
    """Parquet (a file or a folder of files), Arrow (file or stream format) or CSV."""
    if path.is_dir():
        return _read_parquet(_parquet_files(path))
    with _named(path), open(path, "rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1":
        return _read_parquet([path])
    with _named(path):
        if magic == b"ARROW1":
            return _read_arrow(path)
        if path.suffix == ".csv":
            reader = pacsv.open_csv(path)
            return _rows(path, reader.schema, reader, None)
        if magic[:4] == b"\xff\xff\xff\xff":
            reader = pa.ipc.open_stream(pa.memory_map(str(path)))
            return _rows(path, reader.schema, reader, None)
    raise SemiStreamError(f"{path} is neither Parquet nor Arrow, and its name does not end in .csv")


def _read_arrow(path: Path) -> Rows:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    return _rows(path, reader.schema, batches, None)


def _read_parquet(paths: list[Path]) -> Rows:
    schemas, count = [], 0
    for path in paths:
        with _named(path), _parquet(path) as file:
            schemas.append(file.schema_arrow.remove_metadata())
            count += file.metadata.num_rows
        if schemas[-1].names != schemas[0].names or schemas[-1].types != schemas[0].types:
            raise SemiStreamError(
                f"{path} has other columns than {paths[0]}: {_show(schemas[-1])} instead of "
                f"{_show(schemas[0])}; all files of a folder must be alike"
            )

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with _named(path), _parquet(path) as file:
                yield from _plain(file.iter_batches(BATCH_ROWS))

    return Rows(schemas[0], batches(), count)


def _parquet(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, memory_map=True, pre_buffer=False)


def _parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below a folder, without those that Spark and others hide there."""
    inside = [f.relative_to(folder) for f in sorted(folder.rglob("*")) if f.suffix in _PARQUET]
    shown = [f for f in inside if not any(p.startswith(("_", ".")) for p in f.parts)]
    if not shown:
        raise SemiStreamError(f"the folder {folder} holds no Parquet files (*.parquet)")
    if any("=" in part for f in shown for part in f.parent.parts):
        raise SemiStreamError(
            f"{folder} is partitioned (column=value folders), and those columns are not in the "
            "files; use semistream.spark, which reads them"
        )
    return [folder / f for f in shown]


def _rows(path: Path, schema: pa.Schema, batches: Any, count: int | None) -> Rows:
    def guarded() -> Iterator[pa.RecordBatch]:
        with _named(path):
            yield from _plain(batches)

    return Rows(schema.remove_metadata(), guarded(), count)


def _plain(batches: Any) -> Iterator[pa.RecordBatch]:
    """Batches of moderate size, without the metadata of whoever wrote the file."""
    for batch in batches:
        batch = batch.replace_schema_metadata(None)
        for at in range(0, len(batch), BATCH_ROWS):
            yield batch.slice(at, BATCH_ROWS)


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Failures to read say which file it was."""
    try:
        yield
    except FileNotFoundError:
        raise SemiStreamError(f"{path} does not exist") from None
    except (OSError, pa.ArrowException) as error:
        raise SemiStreamError(f"{path} cannot be read: {error}") from error


# --- writing ------------------------------------------------------------------------------------


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a target before hours are spent on what to write there."""
    if path.suffix not in _PARQUET + _ARROW:
        known = ", ".join(_PARQUET[:1] + _ARROW)
        raise SemiStreamError(f"OUT is {path}: its name must end in one of {known}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise SemiStreamError(f"{path} exists; name another file, or say --overwrite")
    if not path.parent.is_dir():
        raise SemiStreamError(f"the folder {path.parent} does not exist; make it first")


class Sink:
    """Writes batches in groups, since joins give small ones."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer, self._schema = writer, schema
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table.combine_chunks())
        self._waiting, self._bytes = [], 0


@contextmanager
def write_rows(path: Path, schema: pa.Schema) -> Iterator[Sink]:
    """A sink for `path`. Only a body that ends well makes the file appear, whole."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            make = pq.ParquetWriter if path.suffix in _PARQUET else pa.ipc.new_file
            with make(file, schema) as writer:
                sink = Sink(writer, schema)
                yield sink
                sink.flush()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
