"""A bar chart of the core benchmark: rows per second by algorithm, memory and skew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"memory": "#999999", "sweepjoin": "#0072B2", "meshjoin": "#E69F00", "inlj": "#CC79A7"}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel per skew; bars by (algorithm, memory), store mapped and warm."""
    warm = [r for r in rows if r["io"] == "map" and r["key"] == "int" and r["of_memory"]]
    skews = sorted({r["skew"] for r in warm}, reverse=True)
    figure, panels = plt.subplots(1, len(skews), figsize=(9, 3.6), sharey=True, squeeze=False)
    for panel, skew in zip(panels[0], skews, strict=True):
        here = [r for r in warm if r["skew"] == skew]
        names = [f"{r['algorithm']}\n{r['memory']}" for r in here]
        height = [r["rows_per_s"] / 1e6 for r in here]
        errors = [
            [h - r["low"] / 1e6 for h, r in zip(height, here, strict=True)],
            [r["high"] / 1e6 - h for h, r in zip(height, here, strict=True)],
        ]
        colours = [COLOURS.get(r["algorithm"], "#009E73") for r in here]
        bars = panel.bar(names, height, yerr=errors, color=colours, capsize=3)
        panel.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        panel.set_title(f"Zipf {skew:g}" if skew else "uniform keys")
        panel.tick_params(axis="x", labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("million stream rows per second")
    figure.suptitle("one core, all columns out, store mapped and warm; % of the master's bytes")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
