"""Charts of the experiments with a front stage: rates above, ratios below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.lib.cell import HDD, MEASURED, PAPER
from experiments.lib.charts import GREY, Figure, axes, curve, finished, marks, panels, published
from experiments.lib.experiment import Row
from experiments.lib.front_claims import of_part, ratios
from experiments.lib.rows import values, where

RATE = "stream rows per second"
X_LABELS = {
    "memory": "memory, % of the master",
    "rows": "rows of the master",
    "skew": "Zipf exponent",
}


@dataclass(frozen=True)
class Pair:
    """A ratio to draw, and what the paper says of it: per part, ratio by x at the papers' sizes."""

    above: str
    below: str
    paper: Mapping[str, Mapping[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.above} / {self.below}".replace(": ", ", ")


def places(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Title, device and processor of each panel of rates."""
    here = next((str(r["device"]) for r in rows if r.get("cpu") and r["device"] != HDD.name), "")
    found = [
        (f"{HDD.name}, {PAPER}", HDD.name, PAPER),
        (f"{HDD.name}, {MEASURED}", HDD.name, MEASURED),
    ]
    return [*found, (here, here, MEASURED)] if here else found


def rate_panel(panel: Any, rows: Sequence[Row], part: str, place: tuple[str, str, str],
               log: str) -> None:  # fmt: skip
    title, device, cpu = place
    some = [r for r in of_part(rows, part, device=device, cpu=cpu) if r.get("rate")]
    for i, line in enumerate(values(some, "line")):
        curve(panel, where(some, line=line), "x", line, index=i)
    panel.set_title(title, fontsize=10)
    axes(panel, X_LABELS[part], RATE, log)


def ratio_panel(
    panel: Any, rows: Sequence[Row], part: str, pairs: Sequence[Pair], scale: float = 1.0,
    log: str = "x",
) -> None:  # fmt: skip
    """Ours as measured, what the model says of the papers' sizes, and what the papers say. Where x
    is the size of the master, `scale` brings theirs to ours. A ratio looks like the algorithm
    above, the first one of it."""
    for i, pair in enumerate(pairs):
        like = "" if pair.above in (other.above for other in pairs[:i]) else pair.above
        curve(panel, ratios(of_part(rows, part), pair.above, pair.below), "x", pair.name, "ratio",
              i, like)  # fmt: skip
        model = ratios(of_part(rows, f"{part}, model"), pair.above, pair.below)
        if model and pair.paper:
            panel.plot([r["x"] / scale for r in model], [r["ratio"] for r in model], color=GREY,
                       linestyle=("-", "--", ":")[i % 3],
                       label=f"model at the paper's size: {pair.name}")  # fmt: skip
        points = pair.paper.get(part, {})
        if points:
            published(panel, {x / scale: y for x, y in points.items()},
                      f"published: {pair.name}", "osD"[i % 3])  # fmt: skip
    panel.axhline(1, color="#bbbbbb", linewidth=0.8)
    panel.set_title(f"ratios, {HDD.name}, {PAPER}", fontsize=10)
    axes(panel, X_LABELS[part], "times as fast", log)


def data_panel(panel: Any, rows: Sequence[Row], place: tuple[str, str, str]) -> None:
    """Rates of all data sets at the largest memory, side by side."""
    title, device, cpu = place
    some = [r for r in of_part(rows, "data", device=device, cpu=cpu) if r.get("rate")]
    if not some:
        panel.set_visible(False)
        return
    most = max(r["percent"] for r in some)
    some = where(some, percent=most)
    lines = values(some, "line")
    for i, line in enumerate(lines):
        shift = (i - (len(lines) - 1) / 2) * 0.08
        marks(panel, where(some, line=line), "x", line, shift, i)
    names = {
        r["x"]: str(r["data"]).replace(", ", ",\n").replace(" weather", "\nweather") for r in some
    }
    axes(panel, f"data set, memory {most:g} % of the master", RATE, "y")
    shown = [n.replace("Complete ", "Complete\n").replace(" by", "\nby") for n in names.values()]
    panel.set_xticks(list(names), shown, fontsize=7)
    panel.set_title(f"other data, {title}", fontsize=10)


def family(
    rows: Sequence[Row], title: str, pairs: Sequence[Pair], paper_rows: int = 100_000_000
) -> Figure:
    """By memory, by the size of the master, other data; rates and ratios."""
    three = places(rows)
    figure, flat = panels(9, 3, 3.2)
    for part, row_of_panels in (("memory", flat[:3]), ("rows", flat[3:6])):
        for panel, place in zip(row_of_panels, three, strict=False):
            if len(values(of_part(rows, part, device=place[1], cpu=place[2]), "x")) > 1:
                rate_panel(panel, rows, part, place, "xy")
            else:  # by the size of the master this machine is measured at paper scale only
                data_panel(panel, rows, place)
    own = max(r["rows"] for r in of_part(rows, "rows"))
    ratio_panel(flat[6], rows, "memory", pairs)
    ratio_panel(flat[7], rows, "rows", pairs, paper_rows / own)
    data_panel(flat[8], rows, three[0])
    return finished(figure, title, 4)


def by_skew(rows: Sequence[Row], title: str, pairs: Sequence[Pair]) -> Figure:
    """Rates on each device, and the ratios."""
    three = places(rows)
    figure, flat = panels(len(three) + 1, 2, 3.4)
    for panel, place in zip(flat, three, strict=False):
        rate_panel(panel, rows, "skew", place, "y")
    ratio_panel(flat[-1], rows, "skew", pairs, log="")
    return finished(figure, title, 3)
