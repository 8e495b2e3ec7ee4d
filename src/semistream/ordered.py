"""ordered=True: answers leave in the order of the stream, whatever order they were found in.

Every row of the stream has a number, and every output row carries it. An answer is held until all
older rows are answered. Numbers are divided into ranges; a range leaves as a whole. What is held
counts in the budget; beyond its share the largest range is sorted into a temporary file and mapped.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import Chunks
from .memory import Ledger

I64 = NDArray[np.int64]
NUMBER = "__number"
RANGE = 4096  # stream rows in a range


@dataclass
class _Range:
    held: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    files: list[pa.RecordBatch] = field(default_factory=list)  # mapped, sorted by number


class Reorder:
    def __init__(self, schema: pa.Schema, limit: int, piece_bytes: int, ledger: Ledger) -> None:
        """`schema`: the output's columns, then the number."""
        self._schema, self._limit, self._piece, self._ledger = schema, limit, piece_bytes, ledger
        self._ranges: dict[int, _Range] = {}
        self._folder: Path | None = None
        self._written = 0
        self.rows = 0  # held

    @property
    def full(self) -> bool:
        """New rows must wait until older ones have left."""
        return 2 * self._bytes() > self._limit

    def _bytes(self) -> int:
        return sum(r.bytes for r in self._ranges.values())

    def add(self, batch: pa.RecordBatch) -> None:
        number = _numbers(batch)
        order = np.argsort(number, kind="stable")
        which = number[order] // RANGE
        cuts = np.flatnonzero(np.diff(which)) + 1
        chunks = Chunks.of(batch)
        for part in np.split(order, cuts):
            own = pa.RecordBatch.from_arrays(chunks.gather(part), schema=self._schema)
            held = self._ranges.setdefault(int(number[part[0]]) // RANGE, _Range())
            held.held.append(own)
            held.bytes += own.nbytes + 512
        self.rows += len(batch)
        while self._bytes() > self._limit:
            self._spill(max(self._ranges.values(), key=lambda r: r.bytes))
        self._ledger.set("ordered", self._bytes())

    def _spill(self, largest: _Range) -> None:
        """Sort a range into a file; mapped, it costs no memory."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="semistream-ordered-"))
        path = self._folder / f"{self._written}.arrow"
        self._written += 1
        with pa.ipc.new_file(str(path), self._schema) as writer:
            for batch in _sorted(largest.held, self._piece):
                writer.write_batch(batch)
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            largest.files += [reader.get_batch(i) for i in range(reader.num_record_batches)]
        largest.held, largest.bytes = [], 0
        path.unlink()  # the map keeps it

    def release(self, before: int) -> Iterator[pa.RecordBatch]:
        """The ranges whose numbers are all below `before`, in order; the last one as far as it was
        begun when all numbers are."""
        for number in sorted(self._ranges):
            held = self._ranges[number]
            if before < (number + 1) * RANGE and not self._begun_below(held, before):
                return
            for batch in _sorted([*held.files, *held.held], self._piece):
                self.rows -= len(batch)
                yield batch.drop_columns([NUMBER])
            del self._ranges[number]
            self._ledger.set("ordered", self._bytes())

    def _begun_below(self, held: _Range, before: int) -> bool:
        """All rows of a range that is still being filled are older than any row without answer."""
        last = max(int(_numbers(b).max()) for b in [*held.files, *held.held])
        return last < before

    def close(self) -> None:
        self._ranges.clear()
        self.rows = 0
        self._ledger.set("ordered", 0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _numbers(batch: pa.RecordBatch) -> I64:
    return np.asarray(batch.column(batch.num_columns - 1))


def _sorted(batches: list[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.RecordBatch]:
    chunks = Chunks.of(*batches)
    number = np.concatenate([_numbers(b) for b in batches])
    loc = np.concatenate(
        [(np.int64(i) << 32) | np.arange(len(b), dtype=np.int64) for i, b in enumerate(batches)]
    )
    loc = loc[np.argsort(number, kind="stable")]
    step = max(1, piece_bytes * len(loc) // max(1, sum(b.nbytes for b in batches)))
    for at in range(0, len(loc), step):
        yield pa.RecordBatch.from_arrays(chunks.gather(loc[at : at + step]), schema=chunks.schema)
