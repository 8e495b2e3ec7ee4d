"""The engine of a join that sheds load.

    arrivals ──> stream buffer ──> front stage ──hit──> output
                   │      ^            │ miss
                   │      │       waiting rows ──> disk phase ──> output
                   v      │            │
                 (the rows that are out) <── victims

One iteration: shed or bring back, let the front stage take rows from the buffer, one step of the
disk phase. What the target refuses to do now is done another time: the iteration goes on with the
rows where they are and raises at its end. A segment that cannot be read does not keep the others
from being answered; `drain` raises when it has answered those.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from ...budget import Ledger
from ...errors import ShedError
from ..question import Question
from .moves import EXAMINE, Moves, NoRoom
from .policy import Shedding
from .target import Target

AGE = 32  # times the waiting rows: rows after which popularity halves


class SheddingEngine(Moves):
    def __init__(
        self,
        question: Question,
        schema: pa.Schema,
        ledger: Ledger,
        shedding: Shedding,
        target: Target,
    ) -> None:
        super().__init__(question, schema, ledger, shedding, target)
        self._served = float(self.backlog.capacity)  # rows per iteration; the paper's first guess
        self._moved = False  # the last iteration shed

    # --- one iteration -------------------------------------------------------------------------

    def intake(self) -> Iterator[pa.RecordBatch]:
        return self._iterate(arrivals=True)

    def step(self) -> Iterator[pa.RecordBatch]:
        """Nothing arrives, so nothing is shed: rows only come back."""
        return self._iterate()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """All rows that can be answered; an error at the end if there are others."""
        self.try_again()
        self._news = None
        while self._unfinished():
            yield from self._iterate(draining=True)
        self.outside.complain()

    def _unfinished(self) -> bool:
        here = self.input or len(self.buffer) or self.waiting
        return bool(here) or not self._picked_up or self.outside.unfinished()

    def _iterate(self, arrivals: bool = False, draining: bool = False) -> Iterator[pa.RecordBatch]:
        self.front.renew()  # before a row is touched: it may fail
        failed: ShedError | NoRoom | None = None
        begun = self._answered()
        self._examine = EXAMINE * self.backlog.free_rows
        self._fill()
        over = self._excess() if arrivals else 0
        try:
            self.pick_up()
            if over:
                yield from self._shed(over)
            elif draining or not self._moved:
                self._reload(int(self._served) - len(self.buffer))
        except (ShedError, NoRoom) as error:
            failed = error
        self._moved = over > 0
        yield from self._front()
        yield from super().step()
        self._measure(self._answered() - begun)
        self._fill()
        try:
            if not draining and self._picked_up:
                self._overflow()
            self._settle()
        except ShedError as error:
            failed = failed or error
        if failed is None and not draining:  # drain says it when all others are answered
            failed, self._news = self._news, None
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

    def _front(self) -> Iterator[pa.RecordBatch]:
        """The front stage takes rows while slots are free, up to a limit: hits must not starve
        the waiting rows."""
        while self._examine > 0:
            self._fill()
            if not len(self.buffer):
                if not self.input or not self._widen(self.next_input()):
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
            yield from self._take(chunk.rows.slice(0, taken), partial(self.buffer.pop, taken))

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
