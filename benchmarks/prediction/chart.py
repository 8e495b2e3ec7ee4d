"""The chart: predicted against measured rates, a panel per device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.lib.report import Row
from benchmarks.prediction.report import WITHIN, median_error

# Okabe and Ito's colours can be told apart by the colour-blind; markers also in grey. A front
# stage is a filled marker, the same join without one a hollow one.
_STYLES: dict[str, dict[str, Any]] = {
    "sweepjoin": {"color": "#D55E00", "marker": "*", "markersize": 11},
    "meshjoin": {"color": "#0072B2", "marker": "s", "fillstyle": "none"},
    "rmeshjoin": {"color": "#0072B2", "marker": "x"},
    "cmeshjoin": {"color": "#0072B2", "marker": "s"},
    "hybridjoin": {"color": "#009E73", "marker": "^", "fillstyle": "none"},
    "xhybridjoin": {"color": "#009E73", "marker": "v", "fillstyle": "none"},
    "chybridjoin": {"color": "#009E73", "marker": "^"},
    "inlj": {"color": "#CC79A7", "marker": "o", "fillstyle": "none"},
    "cinlj": {"color": "#CC79A7", "marker": "o"},
    "ssij": {"color": "#000000", "marker": "D", "fillstyle": "none"},
}
_TITLES = {
    "map": "this machine, store mapped",
    "pread": "this machine, pages read from the page cache",
    "hdd-7200": "modelled hard disk, the papers' processor",
    "ssd": "modelled SSD, the papers' processor",
    "object-store": "modelled object store, the papers' processor",
}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Every cell a marker; on the diagonal the prediction is right."""
    devices = list(dict.fromkeys(row["device"] for row in rows))
    across = min(2, len(devices))
    down = -(-len(devices) // across)
    figure, panels = plt.subplots(
        down,
        across,
        figsize=(4.6 * across + 1.8, 4.6 * down),
        squeeze=False,
        layout="constrained",
    )
    for panel, device in zip(panels.flat, devices, strict=False):
        _panel(panel, [row for row in rows if row["device"] == device], device)
    for panel in panels.flat[len(devices) :]:
        panel.set_axis_off()
    _legend(figure, dict.fromkeys(row["algorithm"] for row in rows))
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def _panel(panel: Any, rows: Sequence[Row], device: str) -> None:
    rates = [row[name] for row in rows for name in ("predicted", "measured")]
    low, high = min(rates) / 1.6, max(rates) * 1.6
    edges = [low, high]
    panel.fill_between(
        edges, [(1 - WITHIN) * e for e in edges], [(1 + WITHIN) * e for e in edges],
        color="#BBBBBB", alpha=0.45, linewidth=0,
    )  # fmt: skip
    panel.plot(edges, edges, color="#666666", linewidth=0.8)
    for row in rows:
        style = {"markersize": 6, "linestyle": "none", "alpha": 0.85, **_STYLES[row["algorithm"]]}
        panel.plot(row["measured"], row["predicted"], **style)
    panel.set(xscale="log", yscale="log", xlim=edges, ylim=edges, aspect="equal")
    good = sum(abs(row["error"]) <= WITHIN for row in rows) / len(rows)
    panel.set_title(_TITLES.get(device, device), fontsize=10)
    panel.text(
        0.04, 0.96,
        f"{len(rows)} cells\nmedian error {100 * median_error(rows):.1f} %\n"
        f"{100 * good:.0f} % of them within {100 * WITHIN:.0f} %",
        transform=panel.transAxes, va="top", fontsize=9,
    )  # fmt: skip
    panel.set_xlabel("measured, stream rows per second")
    panel.set_ylabel("predicted, stream rows per second")
    panel.grid(which="major", color="#EEEEEE", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, names: Any) -> None:
    plain = {"linestyle": "none", "markersize": 6}
    handles: list[Any] = [
        Line2D([], [], label=name, **{**plain, **style})
        for name, style in _STYLES.items()
        if name in names
    ]
    handles.append(Line2D([], [], color="#666666", linewidth=0.8, label="predicted = measured"))
    band = f"within {100 * WITHIN:.0f} %"
    handles.append(Patch(color="#BBBBBB", alpha=0.45, linewidth=0, label=band))
    figure.legend(handles=handles, loc="outside right center", frameon=False)
