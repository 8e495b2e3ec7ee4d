"""How a store is laid out, and its shards: rows in code order, cut into pages."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import SpecError, StoreError
from ...kernels.arrays import I64
from ...rows.chunks import Chunks
from ...rows.keys import HASH, check_key_type, is_natural, is_raw
from ...rows.layout import Layout, addresses, check_columns, layouts, plain, plain_type
from ...safety import checksum, not_written
from ..storage import StoreFile
from . import format as fmt
from .duplicates import Duplicates

Progress = Callable[[int], None]
PAGE_BYTES = 64 << 10


@dataclass(frozen=True)
class StoreDesign:
    """What all shards of a store share: columns, key, and how codes are kept."""

    schema: pa.Schema
    key: tuple[str, ...]
    page_bytes: int = PAGE_BYTES
    unique: bool = False  # no key may have two rows

    @property
    def raw(self) -> bool:
        return is_raw([self.schema.field(name).type for name in self.key])

    @property
    def natural(self) -> bool:
        return is_natural([self.schema.field(name).type for name in self.key])

    @property
    def stored(self) -> pa.Schema:
        """The schema on disk: with the code column where the key is not its own code."""
        if self.raw:
            return self.schema
        return self.schema.append(pa.field(fmt.CODE_COLUMN, pa.int64(), nullable=False))

    def manifest(self, runs: list[fmt.Run]) -> fmt.Manifest:
        """Of a new store."""
        code = "value" if self.raw else "column"
        hashed = None if self.natural else HASH
        rows, now = sum(run.rows for run in runs), int(time.time())
        return fmt.Manifest(
            1, self.schema, list(self.key), code, hashed, runs, rows, now,
            page_bytes=self.page_bytes, store=uuid.uuid4().hex, unique=self.unique,
        )  # fmt: skip


def design_of(manifest: fmt.Manifest) -> StoreDesign:
    return StoreDesign(manifest.schema, tuple(manifest.key), manifest.page_bytes, manifest.unique)


def design(
    schema: pa.Schema,
    key: str | Sequence[str],
    page_bytes: int = PAGE_BYTES,
    unique: bool = False,
) -> StoreDesign:
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise SpecError("key=() names no columns; name the master's key")
    if len(set(names)) != len(names):
        raise SpecError(f"key={list(names)} names a column twice; name each one once")
    if len(set(schema.names)) != len(schema.names):
        raise SpecError(f"columns {schema.names} have a name twice; rename one")
    for name in names:
        if name not in schema.names:
            raise SpecError(f"key column {name!r} does not exist; there are {schema.names}")
        check_key_type(schema.field(name).type, name, "master")
    if fmt.CODE_COLUMN in schema.names:
        raise SpecError(f"the column name {fmt.CODE_COLUMN!r} is reserved; rename the column")
    if page_bytes < 256:
        raise SpecError(f"page_bytes={page_bytes}: pages of less than 256 bytes are refused")
    check_columns(schema, "master")
    plain_schema = pa.schema([pa.field(f.name, plain_type(f.type), f.nullable) for f in schema])
    return StoreDesign(plain_schema, names, page_bytes, unique)


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in a store's column types and order; other columns or types are an error that
    names them."""
    if not isinstance(batch, pa.RecordBatch):
        raise SpecError(f"rows must come in pyarrow RecordBatches, not in {type(batch).__name__}")
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        missing = [name for name in schema.names if name not in names]
        other = [name for name in names if name not in schema.names]
        raise SpecError(
            f"a batch has columns {names}, expected {schema.names}: missing are {missing}, not "
            f"expected {other}; select and rename its columns"
        )
    arrays = [plain(batch.column(name)) for name in schema.names]
    for array, f in zip(arrays, schema, strict=True):
        if array.type != f.type:
            raise SpecError(
                f"column {f.name!r} is {array.type} in a batch, not {f.type}; cast it first"
            )
        if array.null_count and not f.nullable:
            raise SpecError(
                f"column {f.name!r} has {array.null_count} NULLs in a batch, and is declared "
                "without: fill them, or drop these rows"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ShardWriter:
    """Writes rows that arrive in code order as one shard; rows with NULL keys come last."""

    def __init__(self, data: Path, name: str, design: StoreDesign, number: int = 0) -> None:
        self._design, self._number = design, number
        self._final = data / name
        self._temporary = data / f".{name}.{uuid.uuid4().hex}.tmp"
        self._layouts = layouts(design.stored)
        self._doubles = Duplicates(design) if design.unique else None
        with not_written(self._final):
            self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed in close/abort
        self._writer = pa.ipc.new_file(self._file, design.stored)
        self._carry: tuple[I64, pa.RecordBatch] | None = None
        self._last: int | None = None
        self.unique = True
        self.pages: dict[str, list[object]] = {n: [] for n in (*fmt.INDEX_FIELDS, "buffers")}

    def add(self, codes: I64, batch: pa.RecordBatch) -> None:
        if len(codes) == 0:
            return
        if (self._last is not None and codes[0] < self._last) or (codes[1:] < codes[:-1]).any():
            raise StoreError("rows for a shard did not arrive in code order; this is a bug")
        repeats = bool((codes[1:] == codes[:-1]).any()) or codes[0] == self._last
        self.unique = self.unique and not repeats
        self._last = int(codes[-1])
        if self._doubles is not None and self._doubles.seen(codes, batch):
            return  # it cannot be finished any more: go on only to say how many there are
        if self._carry is not None:
            before, rows = self._carry
            codes = np.concatenate([before, codes])
            batch = pa.concat_batches([rows, batch])
        cuts = self._cut(batch)
        for a, b in pairwise(cuts[:-1]):
            self._page(codes[a:b], batch.slice(a, b - a))
        a = cuts[-2]
        self._carry = codes[a:], batch.slice(a)

    def add_null_keys(self, batch: pa.RecordBatch) -> int:
        """Rows that can never match: kept, in pages of their own after all others. Returns how
        many pages."""
        self._flush()
        cuts = self._cut(batch)
        for a, b in pairwise(cuts):
            rows = batch.slice(a, b - a)
            self._page(np.zeros(len(rows), np.int64), rows)
        return len(cuts) - 1

    def _cut(self, batch: pa.RecordBatch) -> list[int]:
        """Row numbers where pages begin, by bytes; a row wider than a page gets its own."""
        ends = Chunks.of(batch).widths(np.arange(len(batch), dtype=np.int64))
        cuts = [0]
        while cuts[-1] < len(batch):
            full = np.searchsorted(ends, ends[cuts[-1]] + self._design.page_bytes, "right") - 1
            cuts.append(max(cuts[-1] + 1, int(full)))
        return cuts

    def _flush(self) -> None:
        if self._carry is not None:
            codes, rows = self._carry
            self._carry = None
            self._page(codes, rows)

    def _page(self, codes: I64, rows: pa.RecordBatch) -> None:
        if len(rows) == 0:
            return
        columns = [pa.concat_arrays([c]) for c in rows.columns]
        if not self._design.raw:
            columns.append(pa.array(codes))
        page = pa.RecordBatch.from_arrays(columns, schema=self._design.stored)
        message = page.serialize()
        with not_written(self._final):
            self._writer.write_batch(page)
            offset = self._file.tell() - message.size
        entry = (codes[0], codes[-1], self._number, offset, message.size, len(rows))
        for name, value in zip(fmt.INDEX_FIELDS, (*entry, checksum(message)), strict=True):
            self.pages[name].append(int(value))
        self.pages["buffers"].append(buffer_offsets(message, self._design.stored, self._layouts))

    def close(self) -> tuple[fmt.Shard, pa.Table]:
        """Finish the file; returns its description and the index of its pages."""
        if self._doubles is not None:
            self._doubles.check()
        self._flush()
        with not_written(self._final):
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._final)
        width = sum(column.buffers for column in self._layouts)
        index = pa.Table.from_pydict(self.pages, schema=fmt.index_schema(width))
        file = StoreFile(self._final, self._final.stat().st_size, "pread")
        crc = frame_crc(file, np.asarray(index["offset"]), np.asarray(index["length"]))
        file.close()
        return fmt.Shard(self._final.name, file.size, crc), index

    def abort(self) -> None:
        with suppress(OSError):  # what cannot be written cannot be flushed either
            self._file.close()
        for path in (self._temporary, self._final):
            path.unlink(missing_ok=True)


def buffer_offsets(message: pa.Buffer, stored: pa.Schema, columns: list[Layout]) -> list[int]:
    """Where each buffer of a page lies within it; -1: nowhere. The data of strings that are all
    empty lies in a place of Arrow's own."""
    read = pa.ipc.read_record_batch(message, stored)
    result: list[int] = []
    for j, column in enumerate(columns):
        if column.buffers:
            found = [a - message.address for a in addresses(read.column(j), column)]
            result += [at if 0 <= at <= message.size else -1 for at in found]
    return result or [-1]


def frame_crc(file: StoreFile, offset: I64, length: I64) -> int:
    """Checksum of the file's bytes outside its pages: magic, schema, footer."""
    begin = int(offset[0]) if len(offset) else file.size
    end = int(offset[-1] + length[-1]) if len(offset) else begin
    frame = bytearray(begin + file.size - end)
    view = memoryview(frame)
    file.read_into(0, view[:begin])
    file.read_into(end, view[begin:])
    return checksum(bytes(frame))
