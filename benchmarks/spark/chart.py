"""The chart: time per micro-batch over growing master size, ours and the peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.lib.report import Row, count_text
from benchmarks.spark.results import SECONDS

# Okabe and Ito's colours can be told apart by the colour-blind; markers and dashes also in grey.
_STYLES: dict[str, dict[str, Any]] = {
    "ours": {"color": "#D55E00", "marker": "o", "linestyle": "-", "linewidth": 2.6},
    "spark-join-unsized": {"color": "#0072B2", "marker": "s", "linestyle": "--"},
    "spark-join": {"color": "#56B4E9", "marker": "P", "linestyle": "--"},
    "broadcast-batch": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "cached": {"color": "#CC79A7", "marker": "D", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    "ceiling": {"color": "#000000", "marker": "x", "linestyle": ":"},
}
_LABELS = {
    "ours": "semistream enrich()",
    "spark-join-unsized": "Spark's join (size unknown: Kafka)",
    "spark-join": "Spark's join (from files)",
    "broadcast-batch": "broadcast the batch",
    "cached": "master cached in Spark",
    "ceiling": "ceiling: no join at all",
}
_LABEL_GAP = 0.07  # least distance of two labels, as a share of the axis, so that none is covered


def draw(results: Sequence[Row], batch: int, skew: float, folder: Path) -> list[Path]:
    """Write `batch-time.png` and `.svg` for the cells of this batch size and skew."""
    lines = _lines([row for row in results if row["batch"] == batch and row["skew"] == skew])
    if not lines:
        return []
    figure, axes = plt.subplots(figsize=(8.2, 5.0))
    for name, rows in lines.items():
        _draw_line(axes, name, rows)
    _dress(axes, lines, batch, skew)
    _draw_labels(axes, lines)
    paths = [folder / f"batch-time.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=160, bbox_inches="tight")
    plt.close(figure)
    return paths


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found = {
        name: sorted((row for row in rows if row["variant"] == name), key=lambda row: row["rows"])
        for name in _STYLES
    }
    if _same_plan(found):  # Spark broadcast the batch by itself: its join is the trick
        del found["spark-join"]
    return {name: line for name, line in found.items() if line}


def _same_plan(lines: dict[str, list[Row]]) -> bool:
    plans = [{row["join"] for row in lines[name]} for name in ("spark-join", "broadcast-batch")]
    return bool(plans[0]) and plans[0] == plans[1]


def _draw_line(axes: Any, name: str, rows: Sequence[Row]) -> None:
    middle = [row[SECONDS] for row in rows]
    below = [row[SECONDS] - row["seconds_min"] for row in rows]
    above = [row["seconds_max"] - row[SECONDS] for row in rows]
    axes.errorbar(
        [row["rows"] for row in rows], middle, yerr=[below, above],
        capsize=3, elinewidth=1, markersize=6, **{"linewidth": 1.6, **_STYLES[name]},
    )  # fmt: skip


def _draw_labels(axes: Any, lines: dict[str, list[Row]]) -> None:
    """Name each line at its right end, moved up where two names would overlap."""
    right = max(row["rows"] for line in lines.values() for row in line)
    bottom, top = axes.get_ylim()
    step, height = (top / bottom) ** _LABEL_GAP, 0.0
    for name in sorted(lines, key=lambda name: float(lines[name][-1][SECONDS])):
        seconds = lines[name][-1][SECONDS]
        height = max(seconds, height * step)
        axes.annotate(
            f"{_LABELS[name]}  {seconds:.2g} s", (right, height), xytext=(12, 0),
            textcoords="offset points", va="center", fontsize=9.5,
            color=_STYLES[name]["color"], fontweight="bold" if name == "ours" else "normal",
        )  # fmt: skip


def _dress(axes: Any, lines: dict[str, list[Row]], batch: int, skew: float) -> None:
    sizes = sorted({row["rows"] for line in lines.values() for row in line})
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [count_text(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.set_xlabel("master table (rows of about 120 bytes)")
    axes.set_ylabel(f"time per micro-batch of {batch:,} rows (seconds)")
    axes.set_title(
        f"Time per micro-batch over master size\nZipf {skew:g}; medians, bars from least to most",
        loc="left", fontsize=11,
    )  # fmt: skip
    axes.grid(True, which="both", color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
