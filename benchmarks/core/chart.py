"""A bar chart of the core benchmark: rows per second by algorithm, memory and skew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"memory": "#999999", "sweepjoin": "#0072B2"}
OTHERS = "#E69F00"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel per skew and memory, store mapped and warm; `memory`, the bound, in each."""
    warm = [r for r in rows if r["io"] == "map" and r["key"] == "int" and r["of_memory"]]
    skews = sorted({r["skew"] for r in warm}, reverse=True)
    memories = list(dict.fromkeys(r["memory"] for r in warm if r["algorithm"] != "memory"))
    figure, panels = plt.subplots(
        len(memories), len(skews), figsize=(9, 3.4 * len(memories)), sharex=True, squeeze=False
    )
    for i, memory in enumerate(memories):
        for j, skew in enumerate(skews):
            here = [r for r in warm if r["skew"] == skew]
            here = [r for r in here if r["memory"] == memory or r["algorithm"] == "memory"]
            _panel(panels[i][j], here)
            keys = f"Zipf {skew:g}" if skew else "uniform keys"
            panels[i][j].set_title(f"{keys}, {memory} of the master's bytes", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("million stream rows per second")
    figure.suptitle("one core, all columns out, store mapped and warm; bars from least to most")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(panel: Any, here: list[dict[str, Any]]) -> None:
    here = sorted(here, key=lambda r: r["rows_per_s"])
    rate = [r["rows_per_s"] / 1e6 for r in here]
    low = [v - r["low"] / 1e6 for v, r in zip(rate, here, strict=True)]
    high = [r["high"] / 1e6 - v for v, r in zip(rate, here, strict=True)]
    colours = [COLOURS.get(r["algorithm"], OTHERS) for r in here]
    names = [r["algorithm"] for r in here]
    bars = panel.barh(names, rate, xerr=[low, high], color=colours, capsize=2)
    panel.bar_label(bars, fmt="%.2f", padding=6, fontsize=8)
    panel.margins(x=0.12)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
