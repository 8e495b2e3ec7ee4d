"""A progress line on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """Say how far a job is: rewritten in place on a terminal, a new line each time elsewhere."""

    def __init__(
        self,
        label: str,
        unit: str = "rows",
        total: int | None = None,
        *,
        show: bool | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._unit, self._total = label, unit, total
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._show = self._terminal if show is None else show
        self._every = 0.2 if self._terminal else 1.0
        self._clock = clock
        self._began = self._last = clock()
        self._width = 0

    def __call__(self, done: int) -> None:
        """`done` units in all are done."""
        now = self._clock()
        if not self._show or now - self._last < self._every:
            return
        self._last = now
        self._write(self._line(done, now - self._began))

    def _line(self, done: int, seconds: float) -> str:
        share = f" ({done / self._total:.0%})" if self._total else ""
        rate = done / seconds if seconds > 0 else 0.0
        return f"{self._label}: {done:,} {self._unit}{share}, {rate:,.0f} {self._unit}/s"

    def _write(self, line: str) -> None:
        if self._terminal:
            self._out.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def close(self) -> None:
        """Leave no half line behind."""
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
