"""What writing from Spark runs inside its Python workers. Imports nothing of pyspark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import SpecError, StoreError
from ...kernels.arrays import I64
from ...master import Store
from ...master.storage import DATA, Place, place_at
from ...master.store import (
    CODE_COLUMN,
    Part,
    PartWriter,
    Shard,
    StoreDesign,
    save_table,
    take_table,
    write_piece,
)
from ...rows.keys import codes_of, not_null
from .open import SHARED, open_in_task, writing_to

RESULT = "result string"


@dataclass(frozen=True)
class CodeTask:
    """Adds the code column; NULL where the key has a NULL."""

    plan: StoreDesign
    places: tuple[int, ...]  # of the key's columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        key = [self.plan.schema.field(name) for name in self.plan.key]
        for batch in batches:
            arrays = [_cast(batch.column(i), f) for i, f in zip(self.places, key, strict=True)]
            valid = not_null(arrays)
            code = pa.array(codes_of(arrays), mask=None if valid is None else ~valid)
            names = [*batch.schema.names, CODE_COLUMN]
            yield pa.RecordBatch.from_arrays([*batch.columns, code], names=names)


@dataclass(frozen=True)
class ShardTask:
    """Writes the rows of one partition, which come sorted by code, as a shard of a run."""

    place: dict[str, Any]  # its locator
    run: str
    plan: StoreDesign
    kind: str = "base"
    locator: dict[str, Any] | None = None  # of the version that is to be changed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = place_at(self.place["path"], self.place.get("options"))
        # The name is unique per attempt, so a repeated task never meets its predecessor's file.
        shard = _Shard(self, place, f"{self.run}-{uuid.uuid4().hex[:12]}")
        try:
            for codes, rows in _whole_codes(batches, self._schema, self.kind == "base"):
                with writing_to(str(place.data)):
                    shard.add(codes, rows)
            with writing_to(str(place.data)):
                result = shard.finish()
        except BaseException:
            shard.abort()
            raise
        yield pa.record_batch({"result": [json.dumps(result)]})

    @property
    def _schema(self) -> pa.Schema:
        if self.kind != "delete":
            return self.plan.schema
        # A key that has a NULL is in no store, so there is nothing to delete.
        return pa.schema([self.plan.schema.field(n).with_nullable(True) for n in self.plan.key])


class _Shard:
    """The shard of one task, from its first row on."""

    def __init__(self, task: ShardTask, place: Place, name: str) -> None:
        self._task, self._place, self._name = task, place, name
        self._writer: PartWriter | None = None
        self._store: Store | None = None
        self._more = self._nulls = 0

    def add(self, codes: I64 | None, rows: pa.RecordBatch) -> None:
        """Rows in code order; those without a code (None) come last."""
        task = self._task
        if codes is None:
            self._nulls += len(rows)
            if task.kind in ("base", "append"):
                self._open().add_null_keys(rows)
        elif task.locator is None:
            self._open().add(codes, rows)
            self._more += len(rows)
        else:
            if self._store is None:
                opened = open_in_task(task.locator, remedy="")
                assert isinstance(opened, Store)
                self._store = opened
            self._more += write_piece(self._store, task.kind, self._open(), codes, rows)

    def _open(self) -> PartWriter:
        if self._writer is None:
            task, name = self._task, f"{self._name}.arrow"
            self._writer = PartWriter(self._place.data, name, task.plan, task.kind)
        return self._writer

    def finish(self) -> dict[str, Any]:
        """Bring what was written to the store; returns what the driver must know of it."""
        result: dict[str, Any] = {"more": self._more, "nulls": self._nulls, "shard": None}
        if self._writer is not None:
            part = self._writer.finish()
            files = [f"{self._name}.part", f"{self._name}.claimed"]
            for file, table in zip(files, (part.index, part.claims), strict=True):
                save_table(self._place.data, file, table)
            self._place.deliver([part.shard.name, *files])
            result |= {"shard": asdict(part.shard), "files": files}
            result |= {"null_pages": part.null_pages, "unique": part.unique}
        self._close()
        return result

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        self._close()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()


def part_of(place: Place, result: dict[str, Any]) -> Part | None:
    """A task's shard, from its result: on the driver."""
    if result["shard"] is None:
        return None
    tables = []
    for file in result["files"]:
        try:
            tables.append(take_table(place, file))
        except FileNotFoundError:
            raise StoreError(
                f"a task has written {place}/{DATA}/{file}, and the driver has no such file: "
                f"{SHARED}"
            ) from None
    index, claims = tables
    shard = Shard(**result["shard"])
    return Part(shard, index, result["null_pages"], result["unique"], claims)


def _whole_codes(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, divided: bool
) -> Iterator[tuple[I64 | None, pa.RecordBatch]]:
    """Rows with their codes, which are the last column; all rows of a code together, unless it may
    be `divided`. Then those without a code."""
    held: list[tuple[I64, pa.RecordBatch]] = []  # one code's rows, so far
    for batch in batches:
        *columns, code = batch.columns
        rows = _as_stored(columns, schema)
        keyed = len(batch) - code.null_count
        if keyed:
            codes = np.asarray(code.slice(0, keyed).to_numpy(zero_copy_only=False), np.int64)
            begin = keyed if divided else int(np.searchsorted(codes, codes[-1], "left"))
            if held and held[0][0][0] != codes[0]:
                yield _joined(held)
                held = []
            if begin:
                held.append((codes[:begin], rows.slice(0, begin)))
                yield _joined(held)
                held = []
            if begin < keyed:
                held.append((codes[begin:], rows.slice(begin, keyed - begin)))
        if keyed < len(batch):
            if held:
                yield _joined(held)
                held = []
            yield None, rows.slice(keyed)
    if held:
        yield _joined(held)


def _as_stored(columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Columns by position, in the types of a store."""
    for array, field in zip(columns, schema, strict=True):
        if array.null_count and not field.nullable:
            raise SpecError(
                f"column {field.name!r} has a NULL, and the store's is declared without (NOT NULL "
                "where the store was made); fill it, or drop these rows"
            )
    arrays = [_cast(array, field) for array, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    """In the store's type: zone, large strings, and types that Spark lacks, such as uint32."""
    try:
        return array.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise SpecError(
            f"column {field.name!r} has a value that the store's {field.type} cannot hold "
            f"({error}); leave out or change these rows, or make a store with a wider type"
        ) from None


def _joined(held: list[tuple[I64, pa.RecordBatch]]) -> tuple[I64, pa.RecordBatch]:
    if len(held) == 1:
        return held[0]
    rows = pa.concat_batches([rows for _, rows in held])
    return np.concatenate([codes for codes, _ in held]), rows
