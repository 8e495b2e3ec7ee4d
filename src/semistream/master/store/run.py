"""Runs: pages that are written together, by one process or by many, and what they claim."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import DamagedError
from ...kernels.arrays import I64
from ...rows.layout import layouts
from ...rows.sort import Sorter
from ...safety import SealError, checksum, not_written, seal, unseal
from ..storage import DATA, Place
from . import format as fmt
from .write import Progress, ShardWriter, StoreDesign, plain_batch

NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Part:
    """A shard of a run, as its writer leaves it."""

    shard: fmt.Shard
    index: pa.Table  # of its pages; those of NULL keys come last
    null_pages: int
    unique: bool
    claims: pa.Table = field(default_factory=fmt.CLAIMS.empty_table)  # in code order

    @property
    def first(self) -> float:
        """Its place among the others: they have ranges of codes to themselves."""
        keyed = self.index.num_rows > self.null_pages
        return self.index["first"][0].as_py() if keyed else np.inf


class PartWriter:
    """Writes rows that come in code order as one shard; keeps track of what it claims."""

    def __init__(self, data: Path, name: str, design: StoreDesign, kind: str) -> None:
        self._shard = ShardWriter(data, name, design)
        self._claiming = kind != "base"
        self._codes: list[I64] = []
        self._rows: list[I64] = []
        self._nulls = 0

    def add(self, codes: I64, rows: pa.RecordBatch) -> None:
        """All rows of a code come in one call, unless it is for a base."""
        self._shard.add(codes, rows)
        if self._claiming:
            distinct, count = np.unique(codes, return_counts=True)
            self._codes.append(distinct)
            self._rows.append(count)

    def claim(self, codes: I64) -> None:
        """These have no rows any more."""
        self._codes.append(codes)
        self._rows.append(np.zeros(len(codes), np.int64))

    def add_null_keys(self, rows: pa.RecordBatch) -> None:
        self._nulls += self._shard.add_null_keys(rows)

    def finish(self) -> Part:
        shard, index = self._shard.close()
        return Part(shard, index, self._nulls, self._shard.unique, self._claims())

    def _claims(self) -> pa.Table:
        every = np.concatenate([NOTHING, *self._codes])
        rows = np.concatenate([NOTHING, *self._rows])
        codes, which = np.unique(every, return_inverse=True)
        count = np.bincount(which, weights=rows, minlength=len(codes))
        columns = [pa.array(codes), pa.array(np.minimum(count, 2**31 - 1).astype(np.int32))]
        return pa.Table.from_arrays(columns, schema=fmt.CLAIMS)

    def abort(self) -> None:
        self._shard.abort()


class RunWriter(PartWriter):
    """Writes a whole run as one shard."""

    def __init__(self, place: Place, design: StoreDesign, kind: str = "base") -> None:
        self._place, self._design, self._kind = place, design, kind
        self.id = uuid.uuid4().hex
        super().__init__(place.data, f"{self.id}-00000.arrow", design, kind)

    def close(self) -> fmt.Run:
        part = self.finish()
        with not_written(self._place.data):
            self._place.deliver([part.shard.name])
        return join_parts(self._place, self.id, self._design, self._kind, [part])

    def abort(self) -> None:
        super().abort()
        for name in (f"{self.id}.index", f"{self.id}.claims"):
            (self._place.data / name).unlink(missing_ok=True)


def join_parts(
    place: Place, run: str, design: StoreDesign, kind: str, parts: Sequence[Part]
) -> fmt.Run:
    """Shards that are in the store already become a run: their indexes one after another in code
    order, pages of NULL keys last, and beside it what the run claims, if it is a change."""
    parts = sorted(parts, key=lambda part: part.first)
    keyed, nulls = [], []
    for number, part in enumerate(parts):
        numbers = pa.array(np.full(part.index.num_rows, number, np.int64))
        at = part.index.column_names.index("shard")
        table = part.index.set_column(at, part.index.schema.field(at), numbers)
        keyed.append(table.slice(0, table.num_rows - part.null_pages))
        nulls.append(table.slice(table.num_rows - part.null_pages))
    width = sum(column.buffers for column in layouts(design.stored))
    index = pa.concat_tables([fmt.index_schema(width).empty_table(), *keyed, *nulls])
    index = index.combine_chunks()
    sizes = [_write_table(place.data, f"{run}.index", index), (0, 0)]
    claims = pa.concat_tables([fmt.CLAIMS.empty_table(), *(part.claims for part in parts)])
    if kind != "base":
        claims = claims.sort_by("code").combine_chunks()
        sizes[1] = _write_table(place.data, f"{run}.claims", claims)
    length = np.asarray(index["length"])
    joined = fmt.Run(
        kind=kind,
        id=run,
        rows=int(np.asarray(index["rows"]).sum()),
        pages=index.num_rows,
        null_pages=sum(part.null_pages for part in parts),
        unique=all(part.unique for part in parts),
        max_page_bytes=int(length.max(initial=0)),
        page_bytes=int(length.sum()),
        index_bytes=sizes[0][0],
        index_crc=sizes[0][1],
        shards=[part.shard for part in parts],
        claims=claims.num_rows,
        claims_bytes=sizes[1][0],
        claims_crc=sizes[1][1],
    )
    shards = {part.shard.name for part in parts}
    with not_written(place.data):
        place.deliver([name for name in joined.files if name not in shards])
    return joined


def _write_table(data: Path, name: str, table: pa.Table) -> tuple[int, int]:
    """An Arrow file of one record batch, durable; returns its size and checksum. The checksum is of
    what was to be written, not of what can be read back."""
    memory = pa.BufferOutputStream()
    with pa.ipc.new_file(memory, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, table.num_rows))
    content = memory.getvalue()
    temporary = data / f".{name}.{uuid.uuid4().hex}.tmp"
    try:
        with not_written(data / name), open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with not_written(data / name):
            os.rename(temporary, data / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return content.size, checksum(content)


PART = "part"  # what the seal of a task's table says


def save_table(data: Path, name: str, table: pa.Table) -> None:
    """A table that a task leaves for the driver, sealed: it is no part of the store."""
    memory = pa.BufferOutputStream()
    with pa.ipc.new_file(memory, table.schema) as writer:
        writer.write_table(table)
    with not_written(data / name), open(data / name, "wb") as file:
        file.write(seal(PART, memory.getvalue().to_pybytes()))


def take_table(place: Place, name: str) -> pa.Table:
    """Such a table, read and removed. FileNotFoundError where it is not there."""
    content = place.read(f"{DATA}/{name}")
    try:
        table = pa.ipc.open_file(unseal(PART, content)).read_all()
    except SealError as error:
        raise DamagedError(
            f"{place}/{DATA}/{name}, which a task left, is damaged: {error}; nothing was changed: "
            "check the disk, and try again"
        ) from error
    place.remove(f"{DATA}/{name}")
    return table


def write_run(
    place: Place,
    design: StoreDesign,
    batches: Iterable[pa.RecordBatch],
    spill_bytes: int,
    progress: Progress | None = None,
) -> fmt.Run:
    """Sort and write all rows as the base of a new store."""
    sorter = Sorter(design.schema, design.key, spill_bytes, place.data)
    writer = RunWriter(place, design)
    done = 0
    try:
        for batch in batches:
            sorter.add(plain_batch(batch, design.schema))
        for codes, rows in sorter.pieces(1 << 18):
            writer.add(codes, rows)
            done += len(codes)
            if progress is not None:
                progress(done)
        for rows in sorter.null_rows:
            writer.add_null_keys(rows)
        return writer.close()
    except BaseException:
        writer.abort()
        raise
    finally:
        sorter.close()
