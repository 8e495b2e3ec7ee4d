"""ordered=True: answers leave in the order of the stream, whatever order they were found in.

Every row of the stream has a number, and every output row carries it in its last column. An answer
is held until all older rows are answered. Numbers are divided into ranges; a range leaves as a
whole. What is held counts in the budget; beyond its share the largest range is sorted into a
temporary file and mapped. The file has no name, so nothing is left of it however the process ends;
its checksum is compared before it is used.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from ..budget import Ledger
from ..errors import SpillError
from ..kernels.arrays import I64
from ..rows.chunks import Chunks
from ..rows.failures import attempt
from ..safety import Checked, checksum

RANGE = 4096  # stream rows in a range
PART_BYTES = 512  # what a held batch costs besides its rows


@dataclass(frozen=True)
class _File:
    """Answers in a temporary file, mapped, sorted by number."""

    content: pa.Buffer
    crc: int

    def batches(self) -> list[pa.RecordBatch]:
        if checksum(self.content) != self.crc:
            raise SpillError(
                f"{self.content.size} bytes of answers in a temporary file in "
                f"{tempfile.gettempdir()} are not as they were written: they cannot be given; see "
                "to the disk, and begin again from the last snapshot"
            )
        reader = pa.ipc.open_file(pa.BufferReader(self.content))
        return [reader.get_batch(i) for i in range(reader.num_record_batches)]


@dataclass
class _Range:
    last: int = -1  # the highest number in it
    held: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0  # of these
    files: list[_File] = field(default_factory=list)

    def batches(self) -> list[pa.RecordBatch]:
        return [batch for file in self.files for batch in file.batches()] + self.held


class Reorder:
    def __init__(self, schema: pa.Schema, limit: int, piece_bytes: int, ledger: Ledger) -> None:
        """`schema`: the output's columns, then the number."""
        self._schema, self._limit, self._piece, self._ledger = schema, limit, piece_bytes, ledger
        self._shown = pa.schema(list(schema)[:-1])
        self._ranges: dict[int, _Range] = {}
        self.rows = 0  # held

    @property
    def full(self) -> bool:
        """New rows must wait until older ones have left."""
        return 2 * self._bytes() > self._limit

    def _bytes(self) -> int:
        return sum(r.bytes for r in self._ranges.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold some answers. If a file cannot be written they are not held, and nothing is lost of
        those that were."""
        new = self._by_range(batch)
        more = sum(r.bytes for r in new.values())
        while self._bytes() + more > self._limit and self._bytes():
            self._spill(max(self._ranges.values(), key=lambda r: r.bytes))
        if more > self._limit:  # they have no room at all
            for some in new.values():
                self._spill(some)
            more = 0
        self._ledger.set("ordered", self._bytes() + more)
        for number, some in new.items():
            held = self._ranges.setdefault(number, _Range())
            held.held += some.held
            held.files += some.files
            held.bytes += some.bytes
            held.last = max(held.last, some.last)
        self.rows += len(batch)

    def _by_range(self, batch: pa.RecordBatch) -> dict[int, _Range]:
        """Copies of the rows of a batch, a range at a time."""
        number = _numbers(batch)
        order = np.argsort(number, kind="stable")
        cuts = np.flatnonzero(np.diff(number[order] // RANGE)) + 1
        chunks, found = Chunks.of(batch), {}
        for part in np.split(order, cuts):
            own = pa.RecordBatch.from_arrays(chunks.gather(part), schema=self._schema)
            last = int(number[part[-1]])
            found[last // RANGE] = _Range(last, [own], own.nbytes + PART_BYTES)
        return found

    def _spill(self, some: _Range) -> None:
        """Sort what is held of a range into a file; mapped, it costs no memory."""
        if some.held:
            some.files.append(self._write(some.held))
            some.held, some.bytes = [], 0

    def _write(self, held: list[pa.RecordBatch]) -> _File:
        try:
            with tempfile.TemporaryFile(prefix="semistream-ordered-") as file:
                checked = Checked(file)
                with pa.ipc.new_file(pa.PythonFile(checked, "w"), self._schema) as writer:
                    rows = _InOrder(held, self._piece)
                    for at in rows.steps():
                        writer.write_batch(rows.batch(at))
                file.flush()
                content = mmap.mmap(file.fileno(), checked.count, access=mmap.ACCESS_READ)
                return _File(pa.py_buffer(content), checked.crc)
        except OSError as error:
            raise SpillError(
                f"answers that wait for older ones cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror or error}; free some space there and call drain(), or set TMPDIR "
                "to another folder for the next join"
            ) from error

    def release(self, before: int) -> Iterator[pa.RecordBatch]:
        """The ranges whose numbers are all below `before`, in order; the last one as far as it was
        begun when all its numbers are."""
        for number in sorted(self._ranges):
            held = self._ranges[number]
            if before < (number + 1) * RANGE and held.last >= before:
                return
            rows = _InOrder((yield from attempt(held.batches)), self._piece)
            for at in rows.steps():
                batch = yield from attempt(partial(rows.batch, at))
                self.rows -= len(batch)
                yield pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._shown)
            del self._ranges[number]
            self._ledger.set("ordered", self._bytes())

    def close(self) -> None:
        self._ranges.clear()
        self.rows = 0
        self._ledger.set("ordered", 0)


def _numbers(batch: pa.RecordBatch) -> I64:
    return np.asarray(batch.column(batch.num_columns - 1))


class _InOrder:
    """The rows of some batches by their numbers, in batches of about `piece_bytes`."""

    def __init__(self, batches: Sequence[pa.RecordBatch], piece_bytes: int) -> None:
        self._chunks = Chunks.of(*batches)
        number = np.concatenate([_numbers(b) for b in batches])
        places = [(np.int64(i) << 32) | np.arange(len(b)) for i, b in enumerate(batches)]
        self._loc: I64 = np.concatenate(places)[np.argsort(number, kind="stable")]
        size = max(1, sum(b.nbytes for b in batches))
        self._step = max(1, piece_bytes * len(self._loc) // size)

    def steps(self) -> range:
        return range(0, len(self._loc), self._step)

    def batch(self, at: int) -> pa.RecordBatch:
        rows = self._chunks.gather(self._loc[at : at + self._step])
        return pa.RecordBatch.from_arrays(rows, schema=self._chunks.schema)
