"""What build_store runs inside Spark's Python workers. Imports nothing of pyspark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..keys import codes_of, not_null
from ..master import store_format as fmt
from ..master.place import sync_dir
from ..master.store_write import Design, ShardWriter


@dataclass(frozen=True)
class CodeTask:
    """Adds the code column; NULL where the key has a NULL."""

    plan: Design

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            types = [self.plan.schema.field(name).type for name in self.plan.key]
            arrays = [batch.column(n).cast(t) for n, t in zip(self.plan.key, types, strict=True)]
            valid = not_null(arrays)
            code = pa.array(codes_of(arrays), mask=None if valid is None else ~valid)
            names = [*batch.schema.names, fmt.CODE_COLUMN]
            yield pa.RecordBatch.from_arrays([*batch.columns, code], names=names)


@dataclass(frozen=True)
class ShardTask:
    """Writes the rows of one partition, which come sorted by code, as a shard."""

    data: str
    run: str
    plan: Design

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The name is unique per attempt, so a repeated task never meets its predecessor's file.
        name = f"{self.run}-{uuid.uuid4().hex[:12]}"
        writer: ShardWriter | None = None
        null_pages = 0
        try:
            for batch in batches:
                if writer is None:
                    writer = ShardWriter(Path(self.data), f"{name}.arrow", self.plan)
                null_pages += self._write(writer, batch)
            if writer is None:
                return
            shard, index = writer.close()
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        part = f"{name}.part"
        with pa.ipc.new_file(str(Path(self.data) / part), index.schema) as sink:
            sink.write_table(index)
        sync_dir(Path(self.data))
        yield pa.record_batch(
            {
                "shard": [shard.name],
                "bytes": [shard.bytes],
                "frame_crc": [shard.frame_crc],
                "index": [part],
                "null_pages": pa.array([null_pages], pa.int32()),
                "unique": [writer.unique],
            }
        )

    def _write(self, writer: ShardWriter, batch: pa.RecordBatch) -> int:
        """Rows with a code go into pages in order; those without come last. Returns null pages."""
        code = batch.column(fmt.CODE_COLUMN)
        rows = batch.select(self.plan.schema.names).cast(self.plan.schema)  # zone, large strings
        keyed = len(batch) - code.null_count
        codes = np.asarray(code.slice(0, keyed).to_numpy(zero_copy_only=False), np.int64)
        if keyed:
            writer.add(codes, rows.slice(0, keyed))
        return writer.add_null_keys(rows.slice(keyed)) if keyed < len(batch) else 0
