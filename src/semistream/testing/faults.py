"""check_faults: whatever fails, and whenever, no row is lost or repeated.

Every place where a join can fail without a mistake in a program is a point: the ledger is asked for
more memory, a page is read, a temporary file is written, a key is cast. One run counts the points;
then each of them fails once, in a run of its own, and whoever called goes on in one of three ways.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa

from ..budget import Ledger
from ..errors import MasterError, OverrunError, SpecError, StateError
from ..join import SemiStreamJoin
from ..master import Master
from ..rows.failures import RECOVERABLE
from ..rows.keys import KeyCoder
from ..safety import Checked
from .rows import Rows, assert_same_rows, rebatch

READS = ("read", "scan", "touch", "check", "fetch")  # of a master
ON_FULL = OSError(errno.ENOSPC, "No space left on device (injected)")


@dataclass
class Points:
    """Counts points; the one with number `bad` fails."""

    bad: int = -1
    count: int = 0

    def meet(self, error: Exception) -> None:
        self.count += 1
        if self.count - 1 == self.bad:
            raise error


def check_faults(
    make: Callable[[], SemiStreamJoin],
    stream: pa.Table,
    expected: Rows,
    *,
    most: int = 200,
    rng: random.Random | int = 0,
) -> int:
    """Fail every point of a join once, `most` of them at random where there are more. Returns how
    many there were.

    `make` gives a new join each time; `expected` are the rows that must come out. After a failure
    the caller drains, pushes the next batch, or carries a snapshot over into a new join, by turns.
    """
    seed = rng if isinstance(rng, int) else rng.getrandbits(32)
    dice = random.Random(seed)
    batches = rebatch(stream, dice)
    points = Points()
    _compare(_run(make, batches, points, 0), expected, "no fault")
    every = range(points.count)
    for bad in sorted(dice.sample(every, most)) if len(every) > most else every:
        how = f"point {bad} of {points.count} failed, rng={seed}"
        _compare(_run(make, batches, Points(bad), bad % 3), expected, how)
    return points.count


def _compare(run: _Run, expected: Rows, how: str) -> None:
    try:
        assert_same_rows(run.out, expected, how)
        stats = run.join.stats
        left = {"waiting": stats.waiting, "arrived": stats.arrived}
        assert not any(left.values()), f"rows are left: {left}"
        answered = stats.rows_matched + stats.rows_unmatched
        assert stats.rows_in == run.pushed == answered, f"{run.pushed} rows were pushed: {stats}"
        assert stats.rows_out == sum(map(len, run.out)), f"{stats.rows_out=}"
        assert stats.peak_bytes <= stats.budget_bytes, f"beyond the budget: {stats}"
    except AssertionError as error:
        error.add_note(f"{how}; then: {run.then}; failed: {run.failed!r}")
        raise
    finally:
        run.join.close()


class _Run:
    """A join whose caller does not give up."""

    def __init__(self, make: Callable[[], SemiStreamJoin], then: int) -> None:
        self.make, self.then = make, ("drain", "push", "snapshot")[then]
        self.out: list[pa.RecordBatch] = []
        self.failed: BaseException | None = None
        self.pushed = 0
        self.join = self._made()

    def _made(self) -> SemiStreamJoin:
        """A join, at the second try if need be: there are no rows in it yet."""
        try:
            return self.make()
        except RECOVERABLE as error:
            self.failed = error
            return self.make()

    def push(self, batch: pa.RecordBatch) -> None:
        self.pushed += len(batch)
        if self._goes(lambda: self.join.push(batch)):
            return
        if self.then == "drain":
            self.drain()
        elif self.then == "snapshot":
            self._move()

    def drain(self) -> None:
        while not self._goes(self.join.drain):
            pass

    def _goes(self, verb: Callable[[], Iterable[pa.RecordBatch]]) -> bool:
        try:
            for batch in verb():
                self.out.append(batch)
            return True
        except (SpecError, StateError):
            raise  # these say that the call was wrong
        except RECOVERABLE as error:
            if self.failed is not None:
                raise AssertionError("it failed again, with no fault injected") from error
            self.failed = error
            return False

    def _move(self) -> None:
        """Into a new join, where that can be: not from the middle of an answer."""
        try:
            snapshot = self.join.snapshot()
        except StateError:
            return
        fresh = self.make()
        fresh.restore(snapshot)
        self.join.close()
        self.join = fresh


def _run(
    make: Callable[[], SemiStreamJoin], batches: list[pa.RecordBatch], points: Points, then: int
) -> _Run:
    with _watched(points):
        run = _Run(make, then)
        for batch in batches:
            run.push(batch)
        run.drain()
    return run


@contextmanager
def _watched(points: Points) -> Iterator[None]:
    """Points are met in this block."""
    charge = Ledger.set

    def charged(ledger: Ledger, part: str, count: int) -> None:
        if count > ledger.parts.get(part, 0):
            points.meet(OverrunError(f"{part}: {count} bytes (injected)", 1 << 40))
        charge(ledger, part, count)

    def before(function: Callable[..., Any], error: Callable[[], Exception]) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            points.meet(error())
            return function(*arguments, **named)

        return called

    patches = [
        mock.patch.object(Ledger, "set", charged),
        mock.patch.object(Checked, "write", before(Checked.write, lambda: ON_FULL)),
        mock.patch.object(
            KeyCoder, "encode", before(KeyCoder.encode, lambda: pa.ArrowInvalid("injected"))
        ),
    ]
    for kind in _kinds(Master):  # type: ignore[type-abstract]
        for name in READS:
            if name in vars(kind):
                read = before(vars(kind)[name], lambda: MasterError("injected"))
                patches.append(mock.patch.object(kind, name, read))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _kinds(base: type[Master]) -> Iterator[type[Master]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)
