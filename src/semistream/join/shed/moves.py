"""Rows move: into the stream buffer, out to the target, and back. When and how many is decided in
engine.py; here every move is whole or has not happened, is counted, and keeps to the budget.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa

from ...budget import INTAKE_BYTES, Ledger
from ...disk import Backlog
from ...errors import BudgetError, ShedError
from ...front import Front
from ...kernels.arrays import I32, I64, Mask
from ...rows.chunks import Chunks
from ...rows.encodings import Encodings
from ..engine import ROOM_BYTES, Engine
from ..question import Question
from .buffer import StreamBuffer, fitting, widths
from .outside import Outside
from .policy import Popularity, Shedding, chooser
from .segment import Gone, Unreadable, asked, check_question, unreadable
from .target import Target

EXAMINE = 8  # times the free slots: rows that the front stage looks at in an iteration
SEGMENT = 4  # a segment in the making has this part of the output's memory, at most


class NoRoom(BudgetError):
    """There may be room for this segment when more rows are answered."""


class Moves(Engine):
    def __init__(
        self,
        question: Question,
        schema: pa.Schema,
        ledger: Ledger,
        shedding: Shedding,
        target: Target,
    ) -> None:
        self._shedding = shedding
        self.buffer = StreamBuffer(ledger)
        inside = Encodings(schema).inside  # rows go out as they are kept here
        self.outside = Outside(target, asked(repr(question.spec), inside))
        self._popularity: Popularity | None = None
        self._arriving = 0  # origin of the rows in the front stage
        self._examine = 0
        self._picked_up = False
        self._news: Unreadable | None = None  # a segment that was found to be unreadable
        super().__init__(question, schema, ledger)

    def _build(self, widest: int, kept: Front | None = None) -> None:
        if len(self.buffer):  # its share may shrink: the newest rows go out first
            self.buffer.set_limit(
                self._share(self.question.design(self.schema, widest).split.stream)
            )
            while self.buffer.bytes > self.buffer.limit and len(self.buffer) > 1:
                self._put_tail(len(self.buffer.tail.rows))
        super()._build(widest, kept)
        if kept is not None:
            self._popularity = None  # places in another version of the master
        info, capacity = self.question.master.describe(), self.backlog.capacity
        if self._popularity is None or 8 * self._popularity.count.nbytes > self.split.stream:
            block = max(1, self.split.read // max(1, info.max_page_bytes))
            single = not self.question.algorithm.disk_facts.blocks
            most = self.split.stream // 32
            base = self.question.master.last[: self.question.master.runs[1]]
            self._popularity = Popularity(base, 1 if single else block, most)
        self._place, self._origin = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
        self._fixed = self._popularity.count.nbytes + self._place.nbytes + self._origin.nbytes
        self.ledger.set("shed", self._fixed)
        self.buffer.set_limit(self.split.stream - self._fixed)
        self._choose = chooser(
            self._shedding.victims, lambda: self._place, self._popularity, self._shedding.seed
        )

    def _share(self, stream: int) -> int:
        """Of the stream's memory, what is sure to be left for the buffer in a new division."""
        return stream * 5 // 8

    @property
    def backlog(self) -> Backlog:
        return self.phase.backlog

    @property
    def buffered(self) -> int:
        return len(self.buffer)

    @property
    def shed_out(self) -> int:
        return self.outside.rows

    def reset(self) -> None:
        """Rows that are out stay out, and still count."""
        super().reset()
        self.buffer.clear()
        self.ledger.set("shed", self._fixed)
        self.counters.rows_in += self.outside.rows
        with suppress(ShedError):  # the next iteration tries again
            self.outside.settle(set())

    # --- what is out already -------------------------------------------------------------------

    def pick_up(self) -> None:
        """Segments of a join that was here before; once, and again for those that could not be
        read."""
        if self._picked_up:
            return
        outside = self.outside
        target, question = outside.target, asked(repr(self.question.spec), self.schema)
        found = target.look()
        known = outside.names().keys() | outside.doubtful
        new = [segment for segment in found.segments if segment.name not in known]
        for segment in new:
            check_question(segment, question, target.place)
        self._picked_up = True
        for segment in new:
            outside.find(segment)
            self.counters.rows_in += segment.rows
            self.counters.shed += segment.rows
        for name, error in found.unreadable.items():
            if name not in outside.doubtful:
                outside.unreadable[name] = self._news = error

    def try_again(self) -> None:
        """What could not be read may have been put back since, or moved away."""
        if self.outside.try_again():
            self._picked_up = False

    # --- rows in -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Arrivals go into the buffer, as far as there is room."""
        while self.input:
            batch = self.next_input()
            taken = self.buffer.add(batch)
            self._arrived(taken)
            if taken < len(batch):
                return

    def _make_place(self, rows: pa.RecordBatch) -> bool:
        """Slots are free and bytes are not: victims have left holes, or the row is wide."""
        if self.phase.room() > 0 and self.waiting:
            # Rows that cannot come in are shed unseen, and few served rows then let few come in.
            spare = max(self._segment_bytes(), self.split.piece_rows * INTAKE_BYTES)
            return self.backlog.compact(spare, max(ROOM_BYTES, self.backlog.limit // 256))
        return self._widen(rows)

    def _widen(self, rows: pa.RecordBatch) -> bool:
        """The next row is wider than was planned for: plan anew, once nothing waits."""
        if self.waiting or self.phase.room() <= 0:
            return False
        width = int(widths(rows.slice(0, 1))[1])
        if width + ROOM_BYTES <= self.design.widest:
            return False
        self._build(width + ROOM_BYTES)
        return True

    def _wait(self, stream: Chunks, codes: I64, answered: Mask) -> I32:
        slots = super()._wait(stream, codes, answered)
        self.admitted(slots, self._arriving)
        return slots

    def admitted(self, slots: I32, origin: int | list[int]) -> None:
        """These rows wait now, and came from there."""
        assert self._popularity is not None
        self._place[slots] = self._popularity.saw(self.backlog.codes[slots])
        self._origin[slots] = origin

    def origins(self) -> list[int]:
        """Where the waiting rows came from, oldest first."""
        found: list[int] = self._origin[self.backlog.oldest_first()].tolist()
        return found

    # --- rows out ------------------------------------------------------------------------------

    def _movable(self) -> I32:
        """Waiting rows that have not met a part of their key's rows."""
        backlog = self.backlog
        return np.flatnonzero(
            (backlog.ticket >= 0) & ~backlog.matched & (backlog.resume == 0)
        ).astype(np.int32)

    def _put_waiting(self, slots: I32) -> None:
        backlog = self.backlog
        slots = slots[np.argsort(backlog.ticket[slots])]
        while len(slots):
            ends = backlog.chunks.widths(backlog.loc[slots])
            n = max(1, int(np.searchsorted(ends, self._segment_bytes(), "right")) - 1)
            columns = backlog.take(slots[:n]).columns[: len(self.schema)]
            self._put(pa.RecordBatch.from_arrays(columns, schema=self.schema), int(ends[n]))
            backlog.remove(slots[:n])
            self._examine += EXAMINE * n
            slots = slots[n:]

    def _put_arrived(self, n: int) -> None:
        """The newest arrivals, before anything was done with them."""
        pending = sum(len(batch) for batch in self.input)
        if pending:
            self._overflow(keep=max(0, pending - n))
            n -= pending
        while n > 0 and len(self.buffer):
            part = min(n, len(self.buffer.tail.rows))
            self._put_tail(part)
            n -= part

    def _put_tail(self, n: int) -> None:
        rows = self.buffer.tail.rows
        self._put(rows.slice(len(rows) - n), 0)
        self.buffer.cut(n)

    def _overflow(self, keep: int = 0) -> None:
        """What has arrived and found no room goes out at once."""
        excess = sum(len(batch) for batch in self.input) - keep
        while excess > 0:
            rows = self.next_input().slice(0, excess)
            rows = rows.slice(0, max(1, fitting(rows, self._segment_bytes())))
            if len(rows):
                self._put(rows, 0)
            excess -= len(rows)
            self._arrived(len(rows))
        if keep == 0:
            self.input.clear()  # empty batches

    def put_out(self, rows: pa.RecordBatch) -> None:
        """These go out, by segments."""
        while len(rows):
            n = max(1, fitting(rows, self._segment_bytes()))
            self._put(rows.slice(0, n), 0)
            rows = rows.slice(n)

    def _put(self, rows: pa.RecordBatch, allocated: int) -> None:
        """One segment. The copy that it is written from has the output's place in the budget."""
        self.pick_up()  # before anything is put beside what is there
        self.ledger.set("shed", self._fixed + allocated)
        try:
            self.outside.put(rows)
        finally:
            self.ledger.set("shed", self._fixed)
        self.counters.shed += len(rows)

    def _segment_bytes(self) -> int:
        return min(self.split.output, self.buffer.limit) // SEGMENT

    # --- rows back -----------------------------------------------------------------------------

    def _reload(self, want: int) -> None:
        """Bring back the rows that have been out longest."""
        while want > 0 and (number := self.outside.oldest()) is not None:
            segment = self.outside.segments[number].segment
            held = segment.bytes if self.outside.target.allocates else 0
            self._room_for(held)
            self.ledger.set("shed", self._fixed + held)
            try:
                rows = self._read(number).slice(0, want)
                n = self.buffer.add(rows, number)
            except Unreadable as error:
                self._cannot_read(number, error)
                continue
            finally:
                self.ledger.set("shed", self._fixed)
            self.outside.took(number, n)
            self.counters.reloaded += n
            want -= n
            if n < len(rows) and (len(self.buffer) or not self._widen(rows.slice(n))):
                return

    def _read(self, number: int) -> pa.RecordBatch:
        rows = self.outside.read(number)
        if rows.schema.types != self.schema.types:
            name = self.outside.segments[number].segment.name
            raise unreadable(f"{name} at {self.outside.target.place}", "its columns are others")
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.schema)

    def _cannot_read(self, number: int, error: Unreadable) -> None:
        """The others go on. One that was damaged and then moved away is given up, as the message
        about it said."""
        if isinstance(error, Gone) and self.outside.given_up(number):
            lost = self.outside.forget(number)
            self.counters.rows_in -= lost
            self.counters.shed -= lost
        else:
            self.outside.set_aside(number, error)
            self._news = error

    def _room_for(self, size: int) -> None:
        most = self.ledger.budget - self.ledger.held
        if size > most:
            raise NoRoom(
                f"a segment of shed rows has {size} bytes and the budget has room for {most} now; "
                f"give memory={self.ledger.budget + size}",
                self.ledger.budget + size,
            )

    def _settle(self) -> None:
        """Segments whose last row is answered are deleted: everything that this iteration put out
        has been taken by the caller."""
        if self.outside.segments or self.outside.doubtful:
            alive = {chunk.origin for chunk in self.buffer.chunks()}
            alive |= set(np.unique(self._origin[self.backlog.slots()]).tolist())
            self.outside.settle(alive)
