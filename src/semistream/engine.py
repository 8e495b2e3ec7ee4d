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
from time import perf_counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .aging import AgingGroups
from .backlog import Backlog
from .columns import Chunks
from .disk import BY_KEY, PHASES, DiskPhase, Parts, shows_groups
from .front import Front, Hits, KeyGroups
from .layout import layouts
from .loading import load_whole, pinned_block, pinned_front
from .master import Pages
from .master.facts import facts
from .memory import Ledger
from .ordered import Reorder
from .output import Counters, Output
from .plan import COLLECT, INTAKE_BYTES, STREAM_ROW, Division, Split, divided
from .question import Question
from .summary import Summary

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
ROOM_BYTES = 1024  # kept free beside the rows of a chunk
SUMMARY = 16  # what waiting rows may take, over what the summary of the stream takes: at least this


class Engine:
    def __init__(
        self,
        question: Question,
        schema: pa.Schema,
        ledger: Ledger,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.question, self.schema, self._clock = question, schema, clock
        self.input: deque[pa.RecordBatch] = deque()
        self.counters = Counters()
        self.steps = self.pieces = 0
        self.disk_seconds = 0.0
        self.ledger = ledger
        self.order: Reorder | None = None
        self.summary: Summary | None = None
        self._taken = 0  # rows of the stream that came so far
        self._same_width = all(c.kind in ("fixed", "bits") for c in layouts(schema))
        self.split: Split
        self.division: Division | None = None  # of memory, where it is not the plan's any more
        self.between: Callable[[], None] = lambda: None  # called while nothing is under way
        self._build(STREAM_ROW)

    def _build(self, widest: int, kept: Front | None = None) -> None:
        """Make the parts; again when a row comes that is wider than was planned for, or for another
        version of the master, with the front stage `kept` from before."""
        question, ledger = self.question, self.ledger
        info = question.master.describe()
        before = self.split.front if kept is not None else 0
        self.coder, shape, self.split, self._widest = question.design(self.schema, widest)
        if self.division is not None:
            self.split = self.divided(self.division)
        if kept is not None:
            self.split, kept = _with_front(self.split, before, kept)
        self.split, self.summary = _with_summary(self.split, self.summary, question)
        self._built = False
        self.phase: DiskPhase | None = None  # let go of old parts before new ones are made
        self.front = Front()
        for part in ("backlog", "pool", "collect", *(() if kept is not None else ("front",))):
            ledger.set(part, 0)
        ledger.set("index", info.resident_bytes)
        ledger.set("sketch", self.summary.nbytes if self.summary is not None else 0)
        how, limit = question.spec.how, self.split.output
        self.output = Output(shape, how, self.coder, limit, ledger, self.counters)
        if shape.ordered and self.order is None:
            self.order = Reorder(self.output.schema, self.split.held, limit, ledger)
        made = self.make_front() if kept is None else (kept, None, 0)
        self.front, pinned, pinned_pages = made
        disk = question.algorithm.disk
        if question.master.by_key:
            disk = BY_KEY.get(disk, disk)
        if question.spec.condition is not None:
            disk = "residual" if question.spec.on else "nested"
        if disk != "none":
            kind = PHASES[disk]
            limit = self.split.backlog
            backlog = Backlog(shape.extended, limit, self._widest, kind.linked, ledger)
            parts = Parts(
                question.master, self.front, backlog, self.output, ledger, question.params,
                self.split.read, self.split.pool, self.split.front // COLLECT, pinned, pinned_pages,
                question.shed,
            )  # fmt: skip
            self.phase = kind(parts)
        self._built = True

    def divided(self, division: Division) -> Split:
        """The split that a division makes."""
        question = self.question
        where = (facts(question.master), question.budget, self._widest, question.shed)
        return divided(self.split, *where, division)

    def front_bytes(self, split: Split) -> int:
        """Of the front stage's share, what groups have that are complete."""
        question = self.question
        collects = question.algorithm.disk == "scan" and not shows_groups(question.master)
        return split.front - (split.front // COLLECT if collects else 0)

    def master_row(self) -> int:
        """Bytes of a row of the master, about."""
        info = self.question.master.describe()
        return max(16, min(info.bytes // max(1, info.rows), 1 << 20))

    def make_front(self) -> tuple[Front, Pages | None, int]:
        """The front stage, and for xhybridjoin the pinned pages and how many they are."""
        question, limit = self.question, self.split.front
        info = question.master.describe()
        schema = pa.schema([info.schema.field(n) for n in self.output.shape.master])
        kind = question.algorithm.front
        if kind == "all":
            return load_whole(question.master, schema, self.ledger), None, 0
        if kind == "pinned":
            waiting = question.params.pinned_probe == "waiting"
            make = pinned_block if waiting else pinned_front
            return make(question.master, schema, limit, self.ledger)
        width, limit = self.master_row(), self.front_bytes(self.split)
        threshold, ages = question.params.threshold, question.master.ages
        if kind == "groups" and ages and limit >= AgingGroups.least(width):
            return (
                AgingGroups(schema, limit, width, threshold, self.ledger, question.master),
                None,
                0,
            )
        if kind == "groups" and not ages and limit >= KeyGroups.least(width):
            groups = KeyGroups(schema, limit, width, threshold, self.ledger)
            return groups, None, 0
        return Front(), None, 0

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
            batch = self.input[0]
            self.front.renew()  # before the batch is touched: it may fail
            if not self._built:
                self._build(self._widest)  # a read failed while the parts were made anew
            self.between()
            taken = self._piece(batch)
            if taken == 0:
                yield from self._make_room(batch)
                continue
            rest = batch.slice(taken)
            if len(rest):
                self.input[0] = rest
            else:
                self.input.popleft()
            piece = batch.slice(0, taken)
            self.counters.rows_in += len(piece)
            yield from self._in_order(self._take(piece))
        if self.phase is not None and not self.phase.waits:
            yield from self.drain()

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

    def _take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Front stage: answer what it can, let the rest wait."""
        self.pieces += 1
        encoded = self.coder.encode(batch)
        rows = self.output.shape.extend(batch, encoded.arrays, self._taken)
        self._taken += len(batch)
        codes, usable = encoded.codes, encoded.usable
        answers = (self.counters.rows_matched, self.counters.rows_unmatched)
        if self.summary is not None and self.summary.wants(len(codes), answers):
            self.summary.add(codes, usable, lambda: batch.nbytes)
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
        if self.phase is not None and not answered.all():
            self._wait(stream, codes, answered)
            yield from self.phase.online()
        if answered.any():
            yield from self._answer_now(batch, stream, hits, answered)
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
            self.order.add(batch)
            self.counters.rows_out -= len(batch)
        for batch in self.order.release(self._oldest()):
            self.counters.rows_out += len(batch)
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
            yield from self.step()
            self.between()


def _with_front(split: Split, share: int, kept: Front) -> tuple[Split, Front | None]:
    """A division of memory in which the front stage keeps its share, if it is much the same."""
    more = share - split.front
    if abs(more) > split.backlog // 2:
        return split, None
    return replace(split, front=share, backlog=split.backlog - more), kept


def _with_summary(
    split: Split, summary: Summary | None, question: Question
) -> tuple[Split, Summary | None]:
    """A division of memory with room for the summary of the stream, where that is little."""
    least = Summary.least()
    if not question.params.sketch or not question.spec.on or split.backlog < SUMMARY * least:
        return split, None
    return replace(split, backlog=split.backlog - least), summary or Summary()
