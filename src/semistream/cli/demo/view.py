"""What the demo shows while it runs: a live panel on a terminal, else a line per micro-batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ...budget import show_bytes
from .runs import Outcome

if TYPE_CHECKING:
    from rich.panel import Panel

_BAR = 24
_SPARKS = "▁▂▃▄▅▆▇█"


class View:
    """Plain lines. Every step is announced, and closed with the time it took."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def say(self, text: str = "") -> None:
        print(text, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """How far a step is: shown only where it can be rubbed out again."""

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        began = time.monotonic()
        self.say(f"\n{text}")
        yield
        self.say(f"   {time.monotonic() - began:.1f} s")

    @contextmanager
    def query(self, title: str, batches: int) -> Iterator[QueryView]:
        yield QueryView(self, batches)


class QueryView:
    """A line per micro-batch."""

    def __init__(self, view: View, batches: int) -> None:
        self._view, self._of, self._shown = view, batches, 0

    def __call__(self, outcome: Outcome) -> None:
        for batch in outcome.batches[self._shown :]:
            width = len(str(self._of))
            line = (
                f"   batch {batch.number + 1:>{width}}/{self._of}  {batch.rows:,} rows in "
                f"{batch.seconds:5.2f} s  {batch.rows / batch.seconds:>9,.0f} rows/s"
            )
            counters = outcome.counters(batch.number)
            if counters is not None:
                line += (
                    f"  hits {counters.hit_ratio:4.0%}  memory {show_bytes(counters.bytes_held)} "
                    f"of {show_bytes(counters.budget_bytes)}  pages {counters.pages_read:,}"
                )
            self._view.say(line)
        self._shown = len(outcome.batches)


class RichView(View):
    """The same with a live panel per query."""

    _noted = False

    def note(self, text: str) -> None:
        self.out.write(f"\r\x1b[K   {text}")
        self.out.flush()
        self._noted = True

    def say(self, text: str = "") -> None:
        if self._noted:
            self.out.write("\r\x1b[K")
            self._noted = False
        super().say(text)

    @contextmanager
    def query(self, title: str, batches: int) -> Iterator[Any]:
        from rich.console import Console
        from rich.live import Live

        began = time.monotonic()

        def draw(outcome: Outcome) -> Panel:
            return _panel(title, batches, outcome, time.monotonic() - began)

        with Live(console=Console(file=self.out), auto_refresh=False) as live:
            yield lambda outcome: live.update(draw(outcome), refresh=True)


def _panel(title: str, batches: int, outcome: Outcome, seconds: float) -> Panel:
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", min_width=12)
    table.add_column()
    for row in _rows(batches, outcome):
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", subtitle=f"{seconds:.0f} s", width=78)


def _rows(batches: int, outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    done = outcome.batches
    yield "micro-batches", f"{len(done)} of {batches}", bar(len(done) / batches)
    rates = [b.rows / b.seconds for b in done]
    yield "rows/s", f"{rates[-1]:,.0f}" if rates else "-", trend(rates)
    yield "last batch", f"{done[-1].seconds:.2f} s" if done else "-", ""
    counters = outcome.counters()
    if counters is not None:
        held, budget = counters.bytes_held, counters.budget_bytes
        yield "front-stage hits", f"{counters.hit_ratio:.0%}", bar(counters.hit_ratio)
        share = held / budget if budget else 0.0
        text = f"{bar(share)} of {show_bytes(budget)} per task"
        yield "memory held", show_bytes(held), text
        yield "pages read", f"{counters.pages_read:,}", show_bytes(counters.bytes_read)


def bar(share: float) -> str:
    full = round(_BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (_BAR - full)


def trend(values: list[float]) -> str:
    """The last values as a row of small columns."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_SPARKS[min(7, int(8 * v / top))] for v in values[-_BAR:])


def make_view(out: TextIO) -> View:
    """Live on a terminal where rich is installed; plain lines everywhere else."""
    if not out.isatty():
        return View(out)
    try:
        import rich  # noqa: F401
    except ImportError:
        return View(out)
    return RichView(out)


def quiet_view(show: bool) -> View:
    """For --json: standard output is for the result, so lines go to standard error or nowhere."""
    return View(sys.stderr) if show else _Silent(sys.stderr)


class _Silent(View):
    def say(self, text: str = "") -> None:
        pass
