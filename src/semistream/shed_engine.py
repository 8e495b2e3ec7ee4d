"""The engine of a join that sheds load.

    arrivals ──> stream buffer ──> front stage ──hit──> output
                   │      ^            │ miss
                   │      │       waiting rows ──> disk phase ──> output
                   v      │            │
                 (the rows that are out) <── victims

One iteration: shed or bring back, let the front stage take rows from the buffer, one step of the
disk phase. What the target refuses to do now is done another time: the iteration goes on with the
rows where they are and raises at its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .backlog import Backlog
from .columns import Chunks
from .engine import ROOM_BYTES, Engine, Question
from .errors import BudgetError, ShedError
from .memory import Ledger
from .shed import Outside, Popularity, Shedding, StreamBuffer, chooser, fitting, widths
from .shed_target import Target, asked, check_question

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
EXAMINE = 8  # times the free slots: rows that the front stage looks at in an iteration
SEGMENT = 4  # a segment in the making has this part of the output's memory, at most
AGE = 32  # times the waiting rows: rows after which popularity halves


class SheddingEngine(Engine):
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
        self.outside = Outside(target, asked(repr(question.spec), schema))
        self._popularity: Popularity | None = None
        self._arriving = 0  # origin of the rows in the front stage
        self._moved = False  # the last iteration shed
        self._examine = 0
        super().__init__(question, schema, ledger)
        self._served = float(self.backlog.capacity)  # the paper's first guess
        self._pick_up()

    def _build(self, widest: int) -> None:
        if len(self.buffer):  # its share may shrink: the newest rows go out first
            self.buffer.limit = self._share(self.question.design(self.schema, widest)[2].stream)
            while self.buffer.bytes > self.buffer.limit and len(self.buffer) > 1:
                self._put_tail(len(self.buffer.tail.rows))
        super()._build(widest)
        info, capacity = self.question.master.describe(), self.backlog.capacity
        if self._popularity is None:
            block = max(1, self.split.read // max(1, info.max_page_bytes))
            single = self.question.algorithm.disk != "seek"
            most = self.split.stream // 32
            self._popularity = Popularity(self.question.master.last, 1 if single else block, most)
        self._place, self._origin = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
        self._fixed = self._popularity.count.nbytes + self._place.nbytes + self._origin.nbytes
        self._ledger.set("shed", self._fixed)
        self.buffer.limit = self.split.stream - self._fixed
        self._choose = chooser(
            self._shedding.victims, lambda: self._place, self._popularity, self._shedding.seed
        )

    def _share(self, stream: int) -> int:
        """Of the stream's memory, what is sure to be left for the buffer in a new division."""
        return stream * 5 // 8

    @property
    def backlog(self) -> Backlog:
        assert self.phase is not None
        return self.phase.parts.backlog

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
        self._ledger.set("shed", self._fixed)
        self.counters.rows_in += self.outside.rows
        self.outside.settle(set())

    # --- what is out already -------------------------------------------------------------------

    def _pick_up(self) -> None:
        """Segments of a join that was here before."""
        question = asked(repr(self.question.spec), self.schema)
        for segment in self.outside.target.list():
            check_question(segment, question, self.outside.target.place)
            self.outside.find(segment)
            self.counters.rows_in += segment.rows
            self.counters.shed += segment.rows

    # --- one iteration -------------------------------------------------------------------------

    def intake(self) -> Iterator[pa.RecordBatch]:
        return self._iterate()

    def step(self) -> Iterator[pa.RecordBatch]:
        return self._iterate()

    def drain(self) -> Iterator[pa.RecordBatch]:
        while self.input or len(self.buffer) or self.waiting or self.outside.segments:
            yield from self._iterate(draining=True)

    def _iterate(self, draining: bool = False) -> Iterator[pa.RecordBatch]:
        failed: ShedError | None = None
        begun = self._answered()
        self._examine = EXAMINE * self.backlog.free_rows
        self._fill()
        over = 0 if draining else self._excess()
        try:
            if over:
                yield from self._shed(over)
            elif draining or not self._moved:
                self._reload(int(self._served) - len(self.buffer))
        except ShedError as error:
            failed = error
        self._moved = over > 0
        yield from self._front()
        yield from super().step()
        self._measure(self._answered() - begun)
        self._fill()
        if not draining:
            self._overflow()
        self._settle()
        if failed is not None:
            raise failed

    def _answered(self) -> int:
        return self.counters.rows_matched + self.counters.rows_unmatched

    def _measure(self, served: int) -> None:
        """Where rows were left, what was served is the capacity; else it is a lower bound."""
        if len(self.buffer) or self.input:
            self._served = max(1.0, (self._served + served) / 2)
        else:
            self._served = max(self._served, served)
        assert self._popularity is not None
        self._popularity.age(AGE * self.backlog.capacity)

    def _excess(self) -> int:
        """Rows that have arrived beyond twice the capacity, or beyond what the buffer can hold
        once this iteration has served its part."""
        arrived = len(self.buffer) + sum(len(batch) for batch in self.input)
        most = 2 * self._served
        if self.input and len(self.buffer):
            most = min(most, self._served + self.buffer.room(self.buffer.bytes / len(self.buffer)))
        return max(0, arrived - int(most))

    # --- rows in -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Arrivals go into the buffer, as far as there is room."""
        while self.input:
            batch = self.input[0]
            taken = self.buffer.add(batch)
            self._arrived(taken)
            if taken < len(batch):
                return

    def _arrived(self, n: int) -> None:
        """The first n rows of the input are ours now."""
        self.counters.rows_in += n
        rest = self.input[0].slice(n)
        if len(rest):
            self.input[0] = rest
        else:
            self.input.popleft()

    def _front(self) -> Iterator[pa.RecordBatch]:
        """The front stage takes rows while slots are free, up to a limit: hits must not starve
        the waiting rows."""
        while self._examine > 0:
            self._fill()
            if not len(self.buffer):
                if not self.input or not self._widen(self.input[0]):
                    return
                continue
            chunk = self.buffer.head
            taken = min(self._piece(chunk.rows), self._examine)
            if taken == 0:
                if not self._make_place(chunk.rows):
                    return
                continue
            self._examine -= taken
            self._arriving = chunk.origin
            yield from self._take(self.buffer.pop(taken))

    def _make_place(self, rows: pa.RecordBatch) -> bool:
        """Slots are free and bytes are not: victims have left holes, or the row is wide."""
        assert self.phase is not None
        if self.phase.room() > 0 and self.waiting:
            return self.backlog.compact(self._segment_bytes())
        return self._widen(rows)

    def _widen(self, rows: pa.RecordBatch) -> bool:
        """The next row is wider than was planned for: plan anew, once nothing waits."""
        if self.waiting or not self.phase or self.phase.room() <= 0:
            return False
        width = int(widths(rows.slice(0, 1))[1])
        if width + ROOM_BYTES <= self._widest:
            return False
        self._build(width + ROOM_BYTES)
        return True

    def _wait(self, stream: Chunks, codes: I64, answered: NDArray[np.bool_]) -> I32:
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

    def _shed(self, over: int) -> Iterator[pa.RecordBatch]:
        """Move `over` rows out. Where fewer wait, more are considered first: the front stage looks
        at them, and by halves the victims among the waiting rows leave."""
        while over > 0 and self._shedding.victims != "upfront":
            slots = self._movable()
            short = len(slots) < over
            if short:
                examined = self._examine
                yield from self._front()
                slots = self._movable()
                if examined == self._examine:
                    break
            n = min(over, (len(slots) + 1) // 2 if short else len(slots))
            if n == 0:
                break
            self._put_waiting(self._choose(self.backlog, slots, n))
            over -= n
        self._put_arrived(over)

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
            rows = self.input[0].slice(0, excess)
            rows = rows.slice(0, max(1, fitting(rows, self._segment_bytes())))
            if len(rows):
                self._put(rows, 0)
            excess -= len(rows)
            self._arrived(len(rows))
        if keep == 0:
            self.input.clear()  # empty batches

    def _put(self, rows: pa.RecordBatch, allocated: int) -> None:
        """One segment. The copy that it is written from has the output's place in the budget."""
        self._ledger.set("shed", self._fixed + allocated)
        try:
            self.outside.put(rows)
        finally:
            self._ledger.set("shed", self._fixed)
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
            self._ledger.set("shed", self._fixed + held)
            rows = self.outside.read(number).slice(0, want)
            rows = pa.RecordBatch.from_arrays(rows.columns, schema=self.schema)
            n = self.buffer.add(rows, number)
            self._ledger.set("shed", self._fixed)
            self.outside.took(number, n)
            self.counters.reloaded += n
            want -= n
            if n < len(rows) and (len(self.buffer) or not self._widen(rows.slice(n))):
                return

    def _room_for(self, size: int) -> None:
        most = self._ledger.budget - self._ledger.held
        if size > most:
            raise BudgetError(
                f"a segment of shed rows has {size} bytes and the budget has room for {most} now; "
                f"give memory={self._ledger.budget + size}",
                self._ledger.budget + size,
            )

    def _settle(self) -> None:
        """Segments whose last row is answered are deleted: everything that this iteration put out
        has been taken by the caller."""
        if self.outside.segments:
            alive = {chunk.origin for chunk in self.buffer.chunks()}
            alive |= set(np.unique(self._origin[self.backlog.slots()]).tolist())
            self.outside.settle(alive)
