"""The engine: the parts of a join, once the stream's columns are known.

    batch ──pieces──> front stage ──hit──> output
                          │ miss
                      waiting rows ──> disk phase ──> output

A batch is taken in piece by piece, each small enough to wait as a whole. Input that is not taken
in yet stays in `input`, so an error loses nothing: the next call goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..budget import INTAKE_BYTES, STREAM_ROW, Ledger
from ..front import Hits
from ..planning import Seen
from ..rows.chunks import Chunks
from ..rows.encodings import Encodings
from ..rows.failures import Failure, attempt
from ..rows.layout import layouts
from .build import Assembly
from .question import Question

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
ROOM_BYTES = 1024  # kept free beside the rows of a chunk


class Engine(Assembly):
    def __init__(
        self,
        question: Question,
        schema: pa.Schema,
        ledger: Ledger,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.encodings = Encodings(schema)
        super().__init__(question, self.encodings.inside, ledger)
        self.input: deque[pa.RecordBatch] = deque()
        self.steps = self.pieces = 0
        self.disk_seconds = 0.0
        self.between: Callable[[], None] = lambda: None  # called while nothing is under way
        self._clock = clock
        self._taken = 0  # rows of the stream that came so far
        self._same_width = all(c.kind in ("fixed", "bits") for c in layouts(self.schema))
        self._build(STREAM_ROW)

    def move(self, question: Question, changed: I64 | None) -> None:
        """Go on with another version of the master; nobody waits. `changed` are the codes whose
        rows may differ, None: any may."""
        before = self.question
        kept = self.front if changed is not None and self.front.learns else None
        try:
            self.question = question
            self._build(self._widest, kept)
        except BaseException:
            self.question = before
            raise
        if kept is not None and changed is not None:
            kept.forget(changed)
            kept.follow(question.master)

    @property
    def waiting(self) -> int:
        return len(self.phase.parts.backlog) if self.phase is not None else 0

    @property
    def slots(self) -> int:
        """Rows that may wait at most."""
        return self.phase.parts.backlog.capacity if self.phase is not None else 0

    @property
    def buffered(self) -> int:
        """Rows that have arrived and are not taken in yet (with shedding)."""
        return 0

    @property
    def shed_out(self) -> int:
        """Rows that are out (with shedding)."""
        return 0

    def seen(self) -> Seen:
        """What it knows of its stream so far."""
        counters = self.counters
        return Seen(
            self.schema,
            bool(self.question.spec.on),
            self.sample,
            counters.rows_in,
            counters.rows_matched,
            counters.rows_unmatched,
            self._keys(),
        )

    def _keys(self) -> float:
        """Keys of the master: its rows, over the rows that matches have had on average."""
        info, counters = self.question.master.describe(), self.counters
        rows, how = max(1, info.rows), self.question.spec.how
        if info.unique or counters.rows_matched == 0 or how not in ("inner", "left"):
            return rows
        pairs = counters.rows_out - (counters.rows_unmatched if how == "left" else 0)
        return max(1.0, rows / max(1.0, pairs / counters.rows_matched))

    def reset(self) -> None:
        """Forget waiting rows (they count as rows in no longer), keep the front stage."""
        self.input.clear()
        if self.phase is not None:
            self.phase.reset()
        if self.order is not None:
            self.order.close()
        self.counters.rows_in = self.counters.rows_matched + self.counters.rows_unmatched
        for part in ("output", "intake", "read"):
            self.ledger.set(part, 0)

    # --- the work ------------------------------------------------------------------------------

    def intake(self) -> Iterator[pa.RecordBatch]:
        while self.input:
            self.front.renew()  # before the batch is touched: it may fail
            if not self._built:
                self._build(self._widest)  # a read failed while the parts were made anew
            self.between()
            batch = self.next_input()
            taken = self._piece(batch)
            if taken == 0:
                yield from self._make_room(batch)
            else:
                piece = batch.slice(0, taken)
                take = self._take(piece, partial(self._arrived, len(piece)))
                yield from self._in_order(take)
        if self.phase is not None and not self.phase.waits:
            yield from self.drain()

    def next_input(self) -> pa.RecordBatch:
        """The first rows that are not taken in yet, as plain values: so many at a time, since these
        may be far wider than the dictionary they came with."""
        batch = self.input[0]
        if batch.schema.types != self.schema.types:
            rest = batch.slice(self.split.piece_rows)
            batch = self.encodings.plain(batch.slice(0, self.split.piece_rows))
            self.input[0] = batch
            if len(rest):
                self.input.insert(1, rest)
        return batch

    def _arrived(self, n: int) -> None:
        """The first n rows of the input are ours now."""
        self.counters.rows_in += n
        rest = self.input[0].slice(n)
        if len(rest):
            self.input[0] = rest
        else:
            self.input.popleft()

    def _piece(self, batch: pa.RecordBatch) -> int:
        """How many rows of the batch can be taken in now, all being misses; 0: make room first."""
        most = min(len(batch), self.split.piece_rows)
        if self.phase is None or len(batch) == 0:
            return max(1, most)
        if self.order is not None and self.order.full and len(self.phase.parts.backlog):
            return 0
        most = min(most, self.phase.room())
        if most <= 0:
            return 0
        size = batch.slice(0, most).nbytes
        if size > self.phase.parts.backlog.free_bytes - ROOM_BYTES:
            # Rows that have left still lie in their chunks. Nothing else is under way, so the copy
            # may take what is kept for new rows.
            self.phase.parts.backlog.compact(self.split.piece_rows * INTAKE_BYTES)
        free = self.phase.parts.backlog.free_bytes - ROOM_BYTES
        if size <= free and (self._same_width or size <= self._widest):
            return most
        ends = Chunks.of(batch.slice(0, most)).widths(np.arange(most, dtype=np.int64))
        wide = np.flatnonzero(np.diff(ends) > self._widest)
        fit = int(np.searchsorted(ends, free, "right")) - 1
        return max(0, min(fit, int(wide[0]) if len(wide) else most))

    def _make_room(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Answer waiting rows; if there are none, the next row is wider than was planned for."""
        assert self.phase is not None
        if len(self.phase.parts.backlog) or self.phase.room() <= 0:
            yield from self.step()
        else:
            ends = Chunks.of(batch.slice(0, 1)).widths(np.zeros(1, np.int64))
            self._build(int(ends[1]) + ROOM_BYTES)

    def _take(self, batch: pa.RecordBatch, arrived: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Front stage: answer what it can, let the rest wait. `arrived` is called when nothing can
        fail any more that would leave rows both here and where they came from."""
        encoded = self.coder.encode(batch)
        rows = self.output.shape.extend(batch, encoded.arrays, self._taken)
        codes, usable = encoded.codes, encoded.usable
        self.ledger.set("intake", INTAKE_BYTES * len(batch))
        hits = self.front.probe(codes)
        answered = np.zeros(len(codes), np.bool_) if usable is None else ~usable
        if hits is not None:
            if usable is not None:
                hits.start[~usable], hits.count[~usable] = -1, 0
            found = hits.count > 0
            self.counters.front_hits += int(found.sum())
            answered |= found
            if hits.absent is not None:
                answered |= hits.absent
        if self.front.complete:
            answered[:] = True
        stream = Chunks.of(rows)
        waits = self.phase is not None and not answered.all()
        if waits:
            self._wait(stream, codes, answered)
        arrived()
        self.pieces += 1
        self._taken += len(batch)
        answers = (self.counters.rows_matched, self.counters.rows_unmatched)
        if self.sample is not None and self.sample.wants(len(codes), answers):
            self.sample.add(codes, usable, lambda: batch.nbytes)
        if answered.any():
            yield from self._answer_now(batch, stream, hits, answered)
        if waits and self.phase is not None:
            yield from self.phase.online()
        self.ledger.set("intake", 0)

    def _wait(self, stream: Chunks, codes: I64, answered: NDArray[np.bool_]) -> I32:
        assert self.phase is not None
        where = np.flatnonzero(~answered)
        own = stream.gather(where)  # a copy: the batch can go
        copy = pa.RecordBatch.from_arrays(own, schema=stream.schema)
        return self.phase.admit(copy, codes[where])

    def _answer_now(
        self,
        batch: pa.RecordBatch,
        stream: Chunks,
        hits: Hits | None,
        answered: NDArray[np.bool_],
    ) -> Iterator[pa.RecordBatch]:
        if hits is None:
            yield from self.output.unmatched(stream, np.flatnonzero(answered))
            return
        every = bool(answered.all())
        where = np.arange(len(batch)) if every else np.flatnonzero(answered)
        start = hits.start if every else hits.start[where]
        count = hits.count if every else hits.count[where]
        matched = np.zeros(len(where), np.bool_)
        yield from self.output.answer(
            stream,
            where,
            self.front.rows,
            start,
            count,
            matched,
            None,
            batch if every and self.order is None else None,
        )

    def step(self) -> Iterator[pa.RecordBatch]:
        if self.phase is not None:
            self.steps += 1
            yield from self._in_order(self._timed(self.phase.step()))

    def _timed(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The disk phase, its time taken: per output batch, without the time of its reader."""
        while True:
            begin = self._clock()
            try:
                batch = next(work, None)
            finally:
                self.disk_seconds += self._clock() - begin
            if batch is None:
                return
            yield batch

    def _in_order(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass answers on, or hold them until all older rows are answered."""
        if self.order is None:
            yield from work
            return
        for batch in work:
            if isinstance(batch, Failure):
                yield batch
            else:
                yield from attempt(partial(self.order.add, batch))
                self.counters.rows_out -= len(batch)
        for batch in self.order.release(self._oldest()):
            self.counters.rows_out += 0 if isinstance(batch, Failure) else len(batch)
            yield batch

    def _oldest(self) -> int:
        """The number of the oldest row without an answer. Between steps, where rows that left and
        rows that came are all accounted for."""
        if self.phase is None or not len(self.phase.parts.backlog):
            return self._taken
        backlog = self.phase.parts.backlog
        slots = backlog.slots()
        first = slots[np.argmin(backlog.ticket[slots])]
        number = len(self.output.shape.extended) - 1
        return int(backlog.chunks.gather(backlog.loc[[first]], [number])[0][0].as_py())

    def drain(self) -> Iterator[pa.RecordBatch]:
        while self.input:
            yield from self.intake()
        while self.phase is not None and len(self.phase.parts.backlog):
            self.phase.ending = True
            try:
                yield from self.step()
            finally:
                self.phase.ending = False
            self.between()
