"""The stream buffer: rows that have arrived and were not looked at yet, as copies of our own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...budget import CHUNK_BYTES, Ledger
from ...kernels.arrays import I64
from ...rows.chunks import Chunks
from ...rows.failures import RECOVERABLE

PARTS = 16  # of the buffer: memory comes back by such pieces


@dataclass
class _Chunk:
    rows: pa.RecordBatch  # our own copy, or what is left of it
    origin: int  # the segment they came back from; 0: the stream
    bytes: int  # held until the last of its rows has gone


class StreamBuffer:
    """Rows that have arrived and were not looked at yet, oldest first."""

    def __init__(self, ledger: Ledger) -> None:
        self.limit = self.bytes = self.rows = 0
        self._ledger = ledger
        self._chunks: deque[_Chunk] = deque()

    def set_limit(self, limit: int) -> None:
        """Bytes that it may hold from now on; what is here stays."""
        self.limit = limit

    def __len__(self) -> int:
        return self.rows

    @property
    def head(self) -> _Chunk:
        return self._chunks[0]

    @property
    def tail(self) -> _Chunk:
        return self._chunks[-1]

    def chunks(self) -> list[_Chunk]:
        return list(self._chunks)

    def room(self, mean: float) -> int:
        """Rows of `mean` bytes that an empty buffer would hold, about."""
        return int(0.9 * self.limit / max(1.0, mean))

    def add(self, rows: pa.RecordBatch, origin: int = 0) -> int:
        """Copy as many of the first rows as there is room for; returns how many. If it fails,
        nothing was copied."""
        done = 0
        while done < len(rows):
            try:
                n = self._add_some(rows.slice(done), origin)
            except RECOVERABLE:
                if done == 0:
                    raise
                break  # those that were copied are here: the caller must know
            if n == 0:
                break
            done += n
        return done

    def _add_some(self, rows: pa.RecordBatch, origin: int) -> int:
        part = fitting(rows, min(self.limit // PARTS, self.limit - self.bytes - CHUNK_BYTES))
        own = own_copy(rows.slice(0, max(1, part)))
        return len(own) if self._append(own, origin) else 0

    def _append(self, rows: pa.RecordBatch, origin: int) -> bool:
        size = rows.get_total_buffer_size() + CHUNK_BYTES
        if self.bytes + size > self.limit:
            return False
        self._count(size, len(rows))  # before it is here: this may be refused
        self._chunks.append(_Chunk(rows, origin, size))
        return True

    def _count(self, size: int, rows: int) -> None:
        self._ledger.set("stream", self.bytes + size)
        self.bytes += size
        self.rows += rows

    def pop(self, n: int) -> pa.RecordBatch:
        """The first n rows of the first chunk."""
        chunk = self.head
        taken, chunk.rows = chunk.rows.slice(0, n), chunk.rows.slice(n)
        gone = len(chunk.rows) == 0
        if gone:
            self._chunks.popleft()
        self._count(-chunk.bytes if gone else 0, -n)
        return taken

    def cut(self, n: int) -> None:
        """The last n rows of the last chunk have gone."""
        chunk = self.tail
        chunk.rows = chunk.rows.slice(0, len(chunk.rows) - n)
        gone = len(chunk.rows) == 0
        if gone:
            self._chunks.pop()
        self._count(-chunk.bytes if gone else 0, -n)

    def clear(self) -> None:
        self._chunks.clear()
        self._count(-self.bytes, -self.rows)


def fitting(rows: pa.RecordBatch, most: int) -> int:
    """How many of the first rows have at most `most` bytes."""
    if rows.nbytes <= most:
        return len(rows)
    return int(np.searchsorted(widths(rows), most, "right")) - 1


def widths(rows: pa.RecordBatch) -> I64:
    """Entry i is the bytes of the first i rows."""
    return Chunks.of(rows).widths(np.arange(len(rows), dtype=np.int64))


def own_copy(rows: pa.RecordBatch) -> pa.RecordBatch:
    every = Chunks.of(rows).gather(np.arange(len(rows), dtype=np.int64))
    return pa.RecordBatch.from_arrays(every, schema=rows.schema)
