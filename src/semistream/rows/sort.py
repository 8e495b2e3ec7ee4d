"""Sort any number of rows by code in bounded memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from ..errors import DamagedError
from ..kernels.arrays import I64, Mask
from ..safety import UNREADABLE, checksum, not_written
from .chunks import Chunks
from .keys import codes_of, not_null

PIECE_BYTES = 256 << 20  # far below what fits into a text column of one batch


@dataclass
class SortedRun:
    codes: I64
    loc: I64  # where each row is, in the order of `codes`


class Spill:
    """Batches in a file without a name: nobody else can open it, and it is gone with this process,
    however that ends. They are mapped, and checked before they are used for the first time."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        with not_written(folder):
            self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - see close
        self._parts: list[tuple[int, int, int]] = []  # offset, size and checksum of each batch
        self._map = pa.py_buffer(b"")
        self._checked: Mask = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._parts)

    def write(self, batch: pa.RecordBatch) -> None:
        message = batch.serialize()
        with not_written(self._folder):
            self._parts.append((self.file.tell(), message.size, checksum(message)))
            self.file.write(message)

    def batches(self) -> list[pa.RecordBatch]:
        """All that were written, where they lie: `check` before their values are looked at."""
        with not_written(self._folder):
            self.file.flush()
            size = self.file.tell()
            self._map = pa.py_buffer(mmap.mmap(self.file.fileno(), size, prot=mmap.PROT_READ))
        self._checked = np.zeros(len(self), np.bool_)
        try:
            return [pa.ipc.read_record_batch(self._part(i), self._schema) for i in range(len(self))]
        except UNREADABLE as error:
            raise self._damaged() from error

    def _part(self, i: int) -> pa.Buffer:
        offset, size, _ = self._parts[i]
        return self._map.slice(offset, size)

    def check(self, numbers: I64) -> None:
        """Raise if one of these batches is not as it was written."""
        whole = os.fstat(self.file.fileno()).st_size >= self._map.size
        for i in numbers[~self._checked[numbers]]:
            whole = whole and checksum(self._part(i)) == self._parts[i][2]
            self._checked[i] = whole
        if not whole:
            raise self._damaged()

    def _damaged(self) -> DamagedError:
        return DamagedError(
            f"rows that were sorted in a temporary file in {self._folder} came back with other "
            "bytes; nothing was changed: check the disk, and try again"
        )

    def close(self) -> None:
        with suppress(OSError):  # what cannot be written cannot be flushed either
            self.file.close()


class Sorter:
    """Sorts any number of rows by code in bounded memory: sorted runs are spilled to a file and
    mapped; each output piece is a range of codes, gathered from all runs at once."""

    def __init__(
        self, schema: pa.Schema, key: Sequence[str], spill_bytes: int, scratch: Path
    ) -> None:
        self._schema, self._key, self._spill_bytes = schema, key, spill_bytes
        self._scratch = scratch
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._chunks = Chunks(schema)
        self._runs: list[SortedRun] = []
        self._spilled: Spill | None = None  # its batches are the first chunks
        self.null_rows: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        valid = not_null([batch.column(name) for name in self._key])
        if valid is not None:
            self.null_rows.append(batch.filter(pa.array(~valid)))
            batch = batch.filter(pa.array(valid))
        if len(batch):
            self._pending.append(batch)
            self._pending_bytes += batch.nbytes
            if self._pending_bytes >= self._spill_bytes:
                self._spill()

    def _sorted(self, chunks: Chunks, first: int) -> SortedRun:
        """Sort the pending batches, which are chunks `first`... of `chunks`."""
        codes, loc = [], []
        for i, batch in enumerate(self._pending):
            codes.append(codes_of([batch.column(name) for name in self._key]))
            loc.append((np.int64(first + i) << 32) | np.arange(len(batch), dtype=np.int64))
        every = np.concatenate(codes) if codes else np.zeros(0, np.int64)
        order = np.argsort(every, kind="stable")
        where = np.concatenate(loc) if loc else np.zeros(0, np.int64)
        return SortedRun(every[order], where[order])

    def _spill(self) -> None:
        run = self._sorted(chunks := Chunks.of(*self._pending, schema=self._schema), 0)
        if self._spilled is None:
            self._spilled = Spill(self._scratch, self._schema)
        loc, step = [], 1 << 16
        for at in range(0, len(run.loc), step):
            some = run.loc[at : at + step]
            for a, b in _cuts(chunks.widths(some), np.arange(len(some))):
                first = np.int64(len(self._spilled)) << 32
                loc.append(first | np.arange(b - a, dtype=np.int64))
                rows = chunks.gather(some[a:b])
                self._spilled.write(pa.RecordBatch.from_arrays(rows, schema=self._schema))
        self._runs.append(SortedRun(run.codes, np.concatenate(loc)))
        self._pending, self._pending_bytes = [], 0

    def pieces(self, piece_rows: int) -> Iterator[tuple[I64, pa.RecordBatch]]:
        """All rows in code order, about `piece_rows` or PIECE_BYTES at a time, whole codes."""
        if self._spilled is not None:
            self._chunks.extend(self._spilled.batches())
        if self._pending:
            first = len(self._chunks)
            self._chunks.extend(self._pending)
            self._runs.append(self._sorted(self._chunks, first))
        every = [run.codes[:: max(1, piece_rows // 16)] for run in self._runs]
        sample = np.unique(np.concatenate(every)) if every else np.zeros(0, np.int64)
        bounds = sample[:: 16 * max(1, len(self._runs))][1:]
        cuts = [np.searchsorted(run.codes, bounds, "left") for run in self._runs]
        starts = [np.concatenate([[0], c]) for c in cuts]
        ends = [np.append(c, len(r.codes)) for c, r in zip(cuts, self._runs, strict=True)]
        for i in range(len(bounds) + 1):
            parts = [(r, s[i], e[i]) for r, s, e in zip(self._runs, starts, ends, strict=True)]
            codes = np.concatenate([r.codes[a:b] for r, a, b in parts] or [np.zeros(0, np.int64)])
            loc = np.concatenate([r.loc[a:b] for r, a, b in parts] or [np.zeros(0, np.int64)])
            self._check(loc)
            order = np.argsort(codes, kind="stable")
            codes, loc = codes[order], loc[order]
            heads = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
            for a, b in _cuts(self._chunks.widths(loc), heads):
                rows = self._chunks.gather(loc[a:b])
                yield codes[a:b], pa.RecordBatch.from_arrays(rows, schema=self._schema)

    def _check(self, loc: I64) -> None:
        """Chunks that were on disk, before their rows are used."""
        if self._spilled is not None:
            chunks = np.unique(loc >> 32)
            self._spilled.check(chunks[chunks < len(self._spilled)])

    def close(self) -> None:
        if self._spilled is not None:
            self._spilled.close()


def _cuts(ends: I64, heads: I64) -> Iterator[tuple[int, int]]:
    """Rows [a, b) of at most PIECE_BYTES, as `ends` counts them, that begin at one of `heads`."""
    every = np.append(heads, len(ends) - 1)
    at = 0
    while at < len(heads):
        full = int(np.searchsorted(ends, ends[every[at]] + PIECE_BYTES, "right")) - 1
        stop = max(at + 1, int(np.searchsorted(every, full, "right")) - 1)
        yield int(every[at]), int(every[stop])
        at = stop
