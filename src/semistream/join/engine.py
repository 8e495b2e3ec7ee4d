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
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import pyarrow as pa

from ..budget import COLLECT, INTAKE_BYTES, STREAM_ROW, Division, Ledger, Split, divided
from ..disk import DiskPhase, NoDisk
from ..front import Front, Hits
from ..kernels.arrays import I32, I64, Mask
from ..master import facts
from ..output import Counters, Output, Reorder
from ..planning import Seen, StreamSample
from ..rows.chunks import Chunks
from ..rows.encodings import Encodings
from ..rows.failures import Failure, attempt
from ..rows.layout import layouts
from .build import front_bytes, keep_front, make_front, make_phase
from .question import Question

ROOM_BYTES = 1024  # kept free beside the rows of a chunk


class Engine:
    def __init__(
        self,
        question: Question,
        schema: pa.Schema,
        ledger: Ledger,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.question, self.ledger = question, ledger
        self.encodings = Encodings(schema)
        self.schema = self.encodings.inside
        self.counters = Counters()
        self.order: Reorder | None = None
        self.sample: StreamSample | None = None
        self.division: Division | None = None  # of memory, where it is not the plan's any more
        self.input: deque[pa.RecordBatch] = deque()
        self.steps = self.pieces = 0
        self.disk_seconds = 0.0
        self._between: Callable[[], None] = lambda: None
        self.split: Split
        self.front: Front
        self.phase: DiskPhase
        self._clock = clock
        self._taken = 0  # rows of the stream that came so far
        self._same_width = all(c.kind in ("fixed", "bits") for c in layouts(self.schema))
        self._build(STREAM_ROW)

    # --- its parts -----------------------------------------------------------------------------

    def _build(self, widest: int, kept: Front | None = None) -> None:
        """Make the parts; again when a row comes that is wider than was planned for, or for another
        version of the master, with the front stage `kept` from before."""
        question, ledger = self.question, self.ledger
        self.design = design = question.design(self.schema, widest)
        before = self.split.front if kept is not None else 0
        self.split = design.split if self.division is None else self.divided(self.division)
        if kept is not None:
            split = keep_front(self.split, before)
            self.split, kept = (self.split, None) if split is None else (split, kept)
        self.sample = (self.sample or StreamSample()) if self.split.sample else None
        self._let_go(keep_front=kept is not None)
        ledger.set("index", question.master.describe().resident_bytes)
        ledger.set("sample", self.sample.nbytes if self.sample is not None else 0)
        self.output = Output(
            design.shape,
            question.spec.how,
            design.coder,
            self.split.output,
            ledger,
            self.counters,
            question.at_most_one,
        )
        if design.shape.ordered and self.order is None:
            self.order = Reorder(self.output.schema, self.split.held, self.split.output, ledger)
        front, pinned, pinned_pages = kept, None, 0
        if front is None:
            front, pinned, pinned_pages = make_front(question, design, self.split, ledger)
        self.front = front
        self.phase = make_phase(
            question,
            design,
            self.split,
            ledger,
            front=front,
            output=self.output,
            pinned=pinned,
            pinned_pages=pinned_pages,
        )
        self._built = True

    def _let_go(self, keep_front: bool) -> None:
        """Of old parts, before new ones are made: both have no room."""
        self._built = False
        self.front = Front()
        self.phase = NoDisk()
        for part in ("backlog", "pool", "collect", *(() if keep_front else ("front",))):
            self.ledger.set(part, 0)

    def move(self, question: Question, changed: I64 | None) -> None:
        """Go on with another version of the master; nobody waits. `changed` are the codes whose
        rows may differ, None: any may."""
        before = self.question
        kept = self.front if changed is not None and self.front.learns else None
        try:
            self.question = question
            self._build(self.design.widest, kept)
        except BaseException:
            self.question = before
            raise
        if kept is not None and changed is not None:
            kept.forget(changed)
            kept.follow(question.master)

    def encode_as(self, schema: pa.Schema) -> None:
        """The stream's columns are the same, and encoded in this way."""
        self.encodings = Encodings(schema)

    def between_steps(self, look: Callable[[], None]) -> None:
        """Have this called whenever nothing is under way."""
        self._between = look

    # --- another division of memory ------------------------------------------------------------

    def divided(self, division: Division) -> Split:
        """The split that a division makes."""
        question, split = self.question, self.design.split
        where = (facts(question.master), question.budget, self.design.widest, question.shed)
        groups = question.algorithm.front_facts.learns or bool(split.pool)
        fixed = None if groups else split.front  # pinned pages stay, or there is no cache
        return divided(split, *where, division, fixed)

    def divide(self, division: Division) -> bool:
        """Go on with this division of memory, waiting rows and all. False: more rows wait than
        there would be room for."""
        split, phase = self.divided(division), self.phase
        if not phase.backlog.fits(split.backlog):
            return False
        slots = phase.backlog.oldest_first()
        state, ages = phase.state(), phase.waited(slots)
        shrinks = split.cache < self.split.cache
        self.ledger.set("collect", 0)
        self.split = split
        if shrinks:
            self._resize_cache()
        kept = phase.backlog.carry(split.backlog)
        if not shrinks:
            self._resize_cache()
        parts = replace(
            phase.parts,
            front=self.front,
            read_bytes=split.read,
            pool_bytes=split.pool,
            collect_bytes=split.front // COLLECT,
        )
        self.phase = type(phase)(parts)
        self.phase.restore(state, kept, ages)
        self.phase.take_over(phase)
        self.division = division
        return True

    def _resize_cache(self) -> None:
        self.phase.trim(self.split.pool)
        if self.front.learns:
            self.front.resize(front_bytes(self.question, self.split))
        elif type(self.front) is Front and self.question.algorithm.front_facts.learns:
            made = make_front(self.question, self.design, self.split, self.ledger)
            self.front = made[0]  # it was not worth having

    # --- what it is doing ----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self.phase.waiting

    @property
    def slots(self) -> int:
        """Rows that may wait at most."""
        return self.phase.slots

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
                self._build(self.design.widest)  # a read failed while the parts were made anew
            self._between()
            batch = self.next_input()
            taken = self._piece(batch)
            if taken == 0:
                yield from self._make_room(batch)
            else:
                piece = batch.slice(0, taken)
                take = self._take(piece, partial(self._arrived, len(piece)))
                yield from self._in_order(take)
        if self.phase.answers_at_once:
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
        if not self.phase.keeps or len(batch) == 0:
            return max(1, most)
        if self.order is not None and self.order.full and self.waiting:
            return 0
        most = min(most, self.phase.room())
        if most <= 0:
            return 0
        size, backlog = batch.slice(0, most).nbytes, self.phase.backlog
        if size > backlog.free_bytes - ROOM_BYTES:
            # Rows that have left still lie in their chunks. Nothing else is under way, so the copy
            # may take what is kept for new rows.
            backlog.compact(self.split.piece_rows * INTAKE_BYTES)
        free = backlog.free_bytes - ROOM_BYTES
        if size <= free and (self._same_width or size <= self.design.widest):
            return most
        ends = Chunks.of(batch.slice(0, most)).widths(np.arange(most, dtype=np.int64))
        wide = np.flatnonzero(np.diff(ends) > self.design.widest)
        fit = int(np.searchsorted(ends, free, "right")) - 1
        return max(0, min(fit, int(wide[0]) if len(wide) else most))

    def _make_room(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Answer waiting rows; if there are none, the next row is wider than was planned for."""
        if self.waiting or self.phase.room() <= 0:
            yield from self.step()
        else:
            ends = Chunks.of(batch.slice(0, 1)).widths(np.zeros(1, np.int64))
            self._build(int(ends[1]) + ROOM_BYTES)

    def _take(self, batch: pa.RecordBatch, arrived: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Front stage: answer what it can, let the rest wait. `arrived` is called when nothing can
        fail any more that would leave rows both here and where they came from."""
        encoded = self.design.coder.encode(batch)
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
        waits = self.phase.keeps and not answered.all()
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
        if waits:
            yield from self.phase.online()
        self.ledger.set("intake", 0)

    def _wait(self, stream: Chunks, codes: I64, answered: Mask) -> I32:
        where = np.flatnonzero(~answered)
        own = stream.gather(where)  # a copy: the batch can go
        copy = pa.RecordBatch.from_arrays(own, schema=stream.schema)
        return self.phase.admit(copy, codes[where])

    def _answer_now(
        self,
        batch: pa.RecordBatch,
        stream: Chunks,
        hits: Hits | None,
        answered: Mask,
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
            whole=batch if every and self.order is None else None,
        )

    def step(self) -> Iterator[pa.RecordBatch]:
        if self.phase.keeps:
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
        if not self.waiting:
            return self._taken
        backlog = self.phase.backlog
        slots = backlog.slots()
        first = slots[np.argmin(backlog.ticket[slots])]
        number = len(self.output.shape.extended) - 1
        return int(backlog.chunks.gather(backlog.loc[[first]], [number])[0][0].as_py())

    def drain(self) -> Iterator[pa.RecordBatch]:
        while self.input:
            yield from self.intake()
        while self.waiting:
            phase = self.phase
            phase.end(True)
            try:
                yield from self.step()
            finally:
                phase.end(False)
            self._between()
