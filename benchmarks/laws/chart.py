"""Charts of the laws against measurement, one per law. Colours are those of Okabe and Ito, which
people with any kind of colour vision tell apart; markers and line styles say the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.laws import buffer, cache
from benchmarks.laws.cell import curves
from semistream.budget.split import KAPPA
from semistream.planning.laws.published import mesh
from semistream.planning.tune import DEFAULT_BUFFER

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKS = (("D", 8, "corrected law"), ("v", 8, "tuner"), ("o", 11, "best measured"))
DARK, GREY = "#333333", "#888888"
Rows = list[dict[str, Any]]


def _panels(count: int, across: int, height: float) -> tuple[Any, list[Any]]:
    across = min(across, count)
    down = -(-count // across)
    figure, panels = plt.subplots(
        down, across, figsize=(5.0 * across, height * down), squeeze=False
    )
    flat = [panel for line in panels for panel in line]
    for panel in flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#dddddd", linewidth=0.6)
    for panel in flat[count:]:
        panel.set_visible(False)
    return figure, flat


def _plain(axis: Any) -> None:
    """1, 2, 5, 10 ... on a logarithmic axis, as people write them."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _save(figure: Any, path: Path, title: str) -> None:
    """With the legend of the first panel below all of them."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout(rect=(0, 0.45 / figure.get_figheight(), 1, 1))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(8, len(handles)),
                  frameon=False, fontsize=9)  # fmt: skip
    figure.savefig(path, dpi=150)
    plt.close(figure)


# --- law 1 --------------------------------------------------------------------------------------


def draw_cache(rows: Rows, path: Path) -> None:
    """A panel per device, algorithm and memory; a curve per skew, the law's and the tuner's share
    marked on it."""
    found = curves(rows, cache.CURVE)
    places = list(dict.fromkeys(labels[:3] for labels in found))
    skews = sorted({labels[3] for labels in found})
    figure, panels = _panels(len(places), 2, 3.4)
    for panel, place in zip(panels, places, strict=False):
        device, algorithm, memory = place
        for colour, skew in zip(COLOURS, skews, strict=False):
            if (*place, skew) in found:
                _share_curve(panel, found[*place, skew], colour, skew)
        for marker, size, label in MARKS:
            panel.plot([], [], marker, color="none", markeredgecolor="black", markersize=size,
                       label=label)  # fmt: skip
        panel.set_title(f"{algorithm}, {memory:.0%} of the master's bytes, {device}", fontsize=10)
        panel.set_xlabel("front stage's share of the memory, %")
        panel.set_ylabel("thousand stream rows per second")
        panel.set_ylim(bottom=0)
    _save(figure, path, "rate by the size of the cache: the corrected law and the tuner")


def _share_curve(panel: Any, curve: Rows, colour: str, skew: float) -> None:
    curve = sorted(curve, key=lambda row: row["share"])
    share, rate = [100 * r["share"] for r in curve], [r["rate"] / 1e3 for r in curve]
    panel.plot(share, rate, "o-", color=colour, markersize=3.5, label=f"Zipf {skew:g}, measured")
    best = max(curve, key=lambda row: row["rate"])
    panel.plot(100 * best["share"], best["rate"] / 1e3, "o", color="none", markeredgecolor=colour,
               markersize=11, markeredgewidth=1.2)  # fmt: skip
    for why, marker in (("law", "D"), ("tuner", "v")):
        for row in (r for r in curve if r["why"] == why):
            panel.plot(100 * row["share"], row["rate"] / 1e3, marker, color=colour, markersize=8,
                       markeredgecolor="black")  # fmt: skip


# --- law 2 --------------------------------------------------------------------------------------


def draw_reads(rows: Rows, path: Path) -> None:
    """A panel per algorithm and order of the master: rows per read by rows that wait."""
    places = list(dict.fromkeys((r["algorithm"], r["master"]) for r in rows))
    skews = sorted({r["skew"] for r in rows})
    figure, panels = _panels(len(places), 2, 3.4)
    for panel, (algorithm, order) in zip(panels, places, strict=False):
        here = [r for r in rows if (r["algorithm"], r["master"]) == (algorithm, order)]
        for colour, skew in zip(COLOURS, skews, strict=False):
            curve = sorted((r for r in here if r["skew"] == skew), key=lambda r: r["waiting"])
            waiting = [r["waiting"] for r in curve]
            panel.plot(waiting, [r["rows_per_read"] for r in curve], "o", color=colour,
                       markersize=6, label=f"Zipf {skew:g}, measured")  # fmt: skip
            panel.plot(waiting, [r["renewal"] for r in curve], "-", color=colour, linewidth=1.4)
            if algorithm == "hybridjoin" or skew == 1:
                panel.plot(waiting, [r["eq9"] for r in curve], "--", color=GREY, linewidth=1.4)
        panel.plot([], [], "-", color=DARK, label="renewal law")
        panel.plot([], [], "--", color=GREY, label="eq. 9 as printed")
        panel.set_xscale("log")
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            _plain(axis)
        panel.set_title(f"{algorithm}, master {order}", fontsize=10)
        panel.set_xlabel("stream rows that wait")
        panel.set_ylabel("stream rows per read")
    _save(figure, path, "rows that one read answers: eq. 9 is for Zipf 1 where pages are pinned")


# --- law 3 --------------------------------------------------------------------------------------


def draw_buffer(rows: Rows, path: Path) -> None:
    """A panel per device and memory: the rate, as a part of the best, by the buffer."""
    found = curves(rows, buffer.CURVE)
    places = list(dict.fromkeys((device, memory) for device, _, memory in found))
    figure, panels = _panels(len(places), 2, 3.2)
    for panel, (device, memory) in zip(panels, places, strict=False):
        names = [name for d, name, m in found if (d, m) == (device, memory)]
        for colour, marker, name in zip(COLOURS, "osv", names, strict=False):
            curve = sorted(found[device, name, memory], key=lambda r: r["buffer"])
            best = max(r["disk_rate"] for r in curve)
            panel.plot([r["buffer"] / 1e6 for r in curve],
                       [100 * r["disk_rate"] / best for r in curve], marker, color=colour,
                       markersize=5, label=f"{name}, measured")  # fmt: skip
        _closed_form(panel, memory, [r["buffer"] for r in rows])
        where = "every request pays" if device == buffer.DISK.name else f"real device, {device}"
        panel.set_title(f"{memory / 1e6:g} MB to divide, {where}", fontsize=10)
        panel.set_xlabel("disk buffer, MB")
        panel.set_ylabel("rate, % of the best measured")
        panel.set_xscale("log")
        _plain(panel.xaxis)
        panel.set_ylim(top=103)
    _save(figure, path, "rate by the disk buffer (device's time): the closed form")


def _closed_form(panel: Any, memory: float, buffers: list[int]) -> None:
    sizes = np.geomspace(min(buffers), max(buffers), 100)
    sizes = sizes[sizes < 0.95 * memory]
    best = mesh.best_buffer(memory, KAPPA)
    part = mesh.relative_rate(memory, sizes, KAPPA) / mesh.relative_rate(memory, best, KAPPA)
    panel.plot(sizes / 1e6, 100 * part, "-", color=DARK, linewidth=1.2, label="law")
    panel.axvline(best / 1e6, color=COLOURS[2], linewidth=1.2, label="closed form's best")
    panel.axvline(DEFAULT_BUFFER / 1e6, color=COLOURS[3], linestyle="--", linewidth=1.2,
                  label="published default, 0.93 MB")  # fmt: skip
