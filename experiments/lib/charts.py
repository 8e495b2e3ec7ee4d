"""How all charts look. Colours are those of Okabe and Ito, which people with any kind of colour
vision tell apart; markers and line styles say the same again, for print without colour."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from experiments.lib.experiment import Row
from experiments.lib.rows import values, where

BLUE, ORANGE, GREEN, PINK, SKY, RED = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00",
)  # fmt: skip
__all__ = [
    "Figure", "axes", "curve", "finished", "level", "look", "marks", "panels", "published", "rates",
    "save",
]  # fmt: skip

BLACK, GREY = "#222222", "#888888"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK, GREY)
MARKERS = "osD^vPX*"
# Every algorithm looks the same in every chart. sweepjoin is ours, memory the bound.
LOOKS: dict[str, tuple[str, str, str]] = {
    "sweepjoin": (RED, "*", "-"),
    "memory": (BLACK, "", ":"),
    "meshjoin": (BLUE, "o", "-"),
    "rmeshjoin": (SKY, "s", "--"),
    "cmeshjoin": (BLUE, "D", "-."),
    "hybridjoin": (GREEN, "^", "-"),
    "xhybridjoin": (PINK, "v", "--"),
    "xhybridjoin as published": (PINK, "D", "-"),
    "chybridjoin": (GREEN, "P", "-."),
    "inlj": (ORANGE, "X", "-"),
    "cinlj": (ORANGE, "h", "-."),
    "ssij": (GREY, "d", "--"),
}
NAMES = {"memory": "all in memory (bound)"}


def panels(count: int, across: int = 3, height: float = 3.3) -> tuple[Figure, list[Any]]:
    """A figure with so many panels, in a grid."""
    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(max(5.5, 4.6 * across), height * down + 0.7))
    flat = [figure.add_subplot(down, across, i + 1) for i in range(count)]
    for panel in flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#dddddd", linewidth=0.6)
    return figure, flat


def look(name: str, index: int = 0) -> dict[str, Any]:
    """Colour, marker and line of an algorithm, or of the n-th of other things. A variant of an
    algorithm, `meshjoin: Zipf 0`, is dotted and hollow."""
    usual = (PALETTE[index % 8], MARKERS[index % 8], ("-", "--", "-.", ":")[index % 4])
    algorithm, _, variant = name.partition(": ")
    colour, marker, line = LOOKS.get(algorithm, usual)
    style = {"color": colour, "marker": marker or None, "linestyle": line, "linewidth": 1.5,
             "markersize": 5, "label": NAMES.get(name, name)}  # fmt: skip
    return {**style, "linestyle": ":", "markerfacecolor": "white"} if variant else style


def curve(
    panel: Any, rows: Sequence[Row], x: str, name: str, y: str = "rate", index: int = 0,
    like: str = "",
) -> None:  # fmt: skip
    """One curve, with its 95 % intervals where the rows have them. A single point of `memory`,
    which does not depend on x, becomes a level line. `like`: looks like that algorithm."""
    some = sorted((r for r in rows if r.get(y) is not None), key=lambda r: r[x])
    if not some:
        return
    style = look(name, index)
    if like:
        style = {**look(like, index), "label": name}
    if len(some) == 1 and name == "memory":
        panel.axhline(some[0][y], **{k: v for k, v in style.items() if not k.startswith("marker")})
        return
    _with_intervals(panel, [r[x] for r in some], some, y, style)


def marks(panel: Any, rows: Sequence[Row], x: str, name: str, shift: float, index: int = 0) -> None:
    """Rates of things in no order, with their intervals: no line leads from one to the next."""
    style = {**look(name, index), "linestyle": ""}
    style["marker"] = style["marker"] or "_"
    _with_intervals(panel, [r[x] + shift for r in rows], rows, "rate", style)


def _with_intervals(
    panel: Any, x: Sequence[float], rows: Sequence[Row], y: str, style: dict[str, Any]
) -> None:
    low, high = f"{y}_low", f"{y}_high"
    errors = None
    if all(r.get(low) is not None for r in rows):
        errors = [
            [max(0.0, r[y] - r[low]) for r in rows],
            [max(0.0, r[high] - r[y]) for r in rows],
        ]
    panel.errorbar(x, [r[y] for r in rows], yerr=errors, capsize=2, **style)


def published(
    panel: Any, points: Mapping[float, float], label: str = "published", marker: str = "o"
) -> None:
    """The paper's own numbers, by x."""
    panel.plot(list(points), list(points.values()), linestyle="", marker=marker, markersize=8,
               markerfacecolor="none", markeredgecolor=GREY, label=label)  # fmt: skip


def level(panel: Any, value: float, name: str, label: str | None = None) -> None:
    """A level line, for what does not depend on x."""
    style = {k: v for k, v in look(name).items() if not k.startswith("marker")}
    panel.axhline(value, **{**style, "label": label or style["label"]})


def rates(
    rows: Sequence[Row],
    x: str,
    x_label: str,
    *,
    title: str,
    by: Sequence[str] = ("device", "cpu"),
    log: str = "xy",
    y: str = "rate",
    y_label: str = "stream rows per second",
    across: int = 3,
) -> Figure:
    """A panel for each device and processor, a curve for each algorithm."""
    rows = [row for row in rows if row.get(y) is not None]
    places = list(dict.fromkeys(tuple(row[name] for name in by) for row in rows))
    figure, flat = panels(len(places), across)
    for panel, place in zip(flat, places, strict=True):
        here = where(rows, **dict(zip(by, place, strict=True)))
        for i, name in enumerate(values(here, "algorithm")):
            curve(panel, where(here, algorithm=name), x, name, y, i)
        panel.set_title(", ".join(str(part) for part in place), fontsize=10)
        axes(panel, x_label, y_label, log)
    return finished(figure, title)


def axes(panel: Any, x_label: str, y_label: str, log: str = "") -> None:
    panel.set_xlabel(x_label)
    panel.set_ylabel(y_label)
    if "x" in log:
        panel.set_xscale("log")
        plain(panel.xaxis)
    if "y" in log:
        panel.set_yscale("log")
        plain(panel.yaxis)
    else:
        panel.set_ylim(bottom=0)
        panel.yaxis.set_major_formatter(FuncFormatter(number))


def number(value: float, _: object = None) -> str:
    """1,000,000 as 1 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def plain(axis: Any) -> None:
    """1, 2, 5, 10 ... on a logarithmic axis, as people write them; tens only where it is long."""
    low, high = axis.get_view_interval()
    wide = low > 0 and high / low > 300
    axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(number))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """As a picture of 256 colours: less than half of the bytes, and no difference to be seen."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130)
    Image.open(drawn).convert("RGB").quantize(256).save(path, "PNG", optimize=True)


def finished(figure: Figure, title: str, most: int = 6) -> Figure:
    """With one legend for all panels below them, at most so many names in a line."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=1)
    across = max(1, min(most, len(handles), int(figure.get_figwidth() / (0.08 * longest + 0.6))))
    rows = -(-len(handles) // across)
    figure.suptitle(title, fontsize=11, wrap=True)
    figure.tight_layout(rect=(0, (0.12 + 0.23 * rows) / figure.get_figheight(), 1, 1))
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=across,
                      frameon=False, fontsize=9)  # fmt: skip
    return figure
