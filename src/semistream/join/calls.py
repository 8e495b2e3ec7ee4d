"""One call of a join after another: the output of each is read before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from time import perf_counter

import pyarrow as pa

from ..errors import StateError
from ..rows.failures import RECOVERABLE, Failure


class Stopwatch:
    """Time spent at work: between calls it stands still."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._spent = 0.0
        self._begun: float | None = None

    def __enter__(self) -> None:
        self._begun = self.clock()

    def __exit__(self, *_: object) -> None:
        self._spent, self._begun = self.seconds, None

    @property
    def seconds(self) -> float:
        return self._spent + (self.clock() - self._begun if self._begun is not None else 0.0)


class Calls:
    def __init__(self, watch: AbstractContextManager[object]) -> None:
        """`watch` is entered while there is work."""
        self.closed = False
        self._watch = watch
        self.forget()

    def close(self) -> None:
        """No call can begin any more."""
        self.closed = True

    def forget(self) -> None:
        """Unread output and a failure count no more."""
        self._pending: Iterator[pa.RecordBatch] | None = None
        self._stopped: Iterator[pa.RecordBatch] | None = None  # work that can go on
        self._failed: BaseException | None = None

    def ready(self) -> None:
        """Raise if no call can begin now."""
        if self.closed:
            raise StateError("the join is closed; make a new one")
        if self._failed is not None:
            raise StateError(f"the join failed ({self._failed!r}); make a new one")
        if self._pending is not None:
            raise StateError(
                "output of the last call was not read to its end; read it (for out in "
                "join.push(batch): ...) before the next call"
            )

    def settled(self) -> None:
        """Raise if no call can begin now, or if an answer was begun and not finished."""
        self.ready()
        if self._stopped is not None:
            raise StateError(
                "the last call failed in the middle of an answer: call drain() to go on with it"
            )

    def take(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Start the work now, up to its first output, after what an earlier call could not finish.
        The rest is done as it is read, so that output never piles up in memory."""
        if self._stopped is not None:
            work, self._stopped = chain(self._stopped, work), None
        first = self._guarded(work)
        if first is None:
            return iter(())
        self._pending = work

        def rest(out: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
            while out is not None:
                yield out  # given up here, rows are still to come: the next call refuses
                out = self._guarded(work)
            self._pending = None

        return rest(first)

    def _guarded(self, work: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next output. After an error that is not a mistake in a program all rows are still
        here, the pushed ones too: go on with drain(). After any other they may not be, and the join
        is of no more use."""
        try:
            with self._watch:
                out = next(work, None)
        except BaseException as error:
            self._pending = None
            if not isinstance(error, RECOVERABLE):
                self._failed = error
            raise
        if isinstance(out, Failure):
            self._pending, self._stopped = None, work
            raise out.error
        return out
