"""A clock that goes on when it is told to, and the papers' processor charged to it."""

from __future__ import annotations

from ..device import PAPER_CPU, Cpu
from ..errors import SpecError
from ..join.stats import Stats, cpu_seconds


class ManualClock:
    """Time for tests and for modelled devices. Called, it gives the seconds since its beginning, so
    it can stand wherever `time.monotonic` can."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time go on."""
        if not seconds >= 0:
            raise SpecError(f"a clock goes on by 0 seconds or more, not by {seconds!r}")
        self._now += seconds


def charge_cpu(
    clock: ManualClock, before: Stats, after: Stats, rows_per_page: float, cpu: Cpu = PAPER_CPU
) -> float:
    """Let the clock go on by what the rows between two `join.stats` cost a processor; returns these
    seconds. What is charged for which row is said at `semistream.join.stats.cpu_seconds`."""
    seconds = cpu_seconds(before, after, rows_per_page, cpu)
    clock.advance(seconds)
    return seconds
