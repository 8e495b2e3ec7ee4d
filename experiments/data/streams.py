"""Streams of the experiments. Each is a pure function of its seed, and has no end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa

from benchmarks.lib import workload
from semistream import Workload
from semistream.planning.workload import sketch_stream

MADE = 200_000  # rows that are made at a time
SAMPLE = 200_000  # rows that a sketch is made of


class Stream(Protocol):
    @property
    def key(self) -> str | tuple[str, ...]: ...
    @property
    def schema(self) -> pa.Schema: ...
    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of so many rows, without end."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class ZipfStream:
    """Keys 0 .. keys - 1 with Zipf popularity, 20 bytes a row. Popular keys lie scattered over the
    master, or (`ordered`) at its beginning."""

    keys: int
    skew: float
    ordered: bool = False

    key = workload.KEY
    schema = workload.STREAM_SCHEMA

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(seed)
        size = max(rows, MADE // rows * rows)
        while True:
            some = workload.stream_table(rng, size, self.keys, self.skew, ordered=self.ordered)
            yield from some.combine_chunks().to_batches(max_chunksize=rows)


@lru_cache(maxsize=64)
def known(stream: Stream, seed: int, batch_rows: int, keys: int) -> Workload:
    """The stream in numbers: as it is made, or else what a sketch of its beginning tells."""
    first = next(stream.batches(seed, 1000))
    width, columns = max(1, round(first.nbytes / len(first))), first.num_columns
    if isinstance(stream, ZipfStream):
        return Workload(
            stream.skew,
            row_bytes=width,
            columns=columns,
            batch_rows=batch_rows,
            ordered=stream.ordered,
        )
    sample = next(stream.batches(seed, SAMPLE))
    found = sketch_stream(pa.Table.from_batches([sample]), stream.key, keys=keys)
    return Workload(
        found.skew,
        found.skew_error,
        width,
        columns,
        batch_rows,
        popularity=found.popularity,
    )
