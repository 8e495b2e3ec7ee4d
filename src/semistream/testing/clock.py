"""A clock that goes on when it is told to."""

from __future__ import annotations

from ..errors import SpecError


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
