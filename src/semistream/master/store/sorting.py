"""Sort any number of rows by code in bounded memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...columns import Chunks
from ...keys import codes_of, not_null

I64 = NDArray[np.int64]
PIECE_BYTES = 256 << 20  # far below what fits into a text column of one batch


@dataclass
class SortedRun:
    codes: I64
    loc: I64  # where each row is, in the order of `codes`


class Sorter:
    """Sorts any number of rows by code in bounded memory: sorted runs are spilled as Arrow files
    and mapped; each output piece is a range of codes, gathered from all runs at once."""

    def __init__(
        self, schema: pa.Schema, key: Sequence[str], spill_bytes: int, scratch: Path
    ) -> None:
        self._schema, self._key, self._spill_bytes = schema, key, spill_bytes
        self._scratch = scratch
        self._folder: Path | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._chunks = Chunks(schema)
        self._runs: list[SortedRun] = []
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
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=".sort-", dir=self._scratch))
        path = self._folder / f"{len(self._runs)}.arrow"
        step = 1 << 16
        with pa.ipc.new_file(str(path), self._schema) as writer:
            for at in range(0, len(run.loc), step):
                some = run.loc[at : at + step]
                for a, b in _cuts(chunks.widths(some), np.arange(len(some))):
                    rows = chunks.gather(some[a:b])
                    writer.write_batch(pa.RecordBatch.from_arrays(rows, schema=self._schema))
        mapped = pa.ipc.open_file(pa.memory_map(str(path)))
        loc = []
        for i in range(mapped.num_record_batches):
            batch = mapped.get_batch(i)
            c = self._chunks.append(batch)
            loc.append((np.int64(c) << 32) | np.arange(len(batch), dtype=np.int64))
        self._runs.append(SortedRun(run.codes, np.concatenate(loc)))
        self._pending, self._pending_bytes = [], 0

    def pieces(self, piece_rows: int) -> Iterator[tuple[I64, pa.RecordBatch]]:
        """All rows in code order, about `piece_rows` or PIECE_BYTES at a time, whole codes."""
        if self._pending:
            first = len(self._chunks)
            for batch in self._pending:
                self._chunks.append(batch)
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
            order = np.argsort(codes, kind="stable")
            codes, loc = codes[order], loc[order]
            heads = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
            for a, b in _cuts(self._chunks.widths(loc), heads):
                rows = self._chunks.gather(loc[a:b])
                yield codes[a:b], pa.RecordBatch.from_arrays(rows, schema=self._schema)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _cuts(ends: I64, heads: I64) -> Iterator[tuple[int, int]]:
    """Rows [a, b) of at most PIECE_BYTES, as `ends` counts them, that begin at one of `heads`."""
    every = np.append(heads, len(ends) - 1)
    at = 0
    while at < len(heads):
        full = int(np.searchsorted(ends, ends[every[at]] + PIECE_BYTES, "right")) - 1
        stop = max(at + 1, int(np.searchsorted(every, full, "right")) - 1)
        yield int(every[at]), int(every[stop])
        at = stop
