"""Rows to make a store from, in any of the shapes that they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from ...errors import SpecError

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]"


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Where there are no rows at all, their columns are to be checked nevertheless. Made when it is
    asked for: some types cannot even be empty, and are refused before."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def as_batches(data: Rows) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Schema and batches of anything that holds rows."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.Table):
        return data.schema, chain(map(_no_rows, [data.schema]), data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, chain(map(_no_rows, [data.schema]), data)
    batches: Iterator[pa.RecordBatch] = iter(data) if isinstance(data, Iterable) else iter(())
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise SpecError(
            "data must be a pyarrow Table, RecordBatch, RecordBatchReader or an iterable of at "
            f"least one RecordBatch, not {type(data).__name__} of {type(first).__name__}"
        )

    def rest() -> Iterable[pa.RecordBatch]:
        yield first
        yield from batches

    return first.schema, rest()
