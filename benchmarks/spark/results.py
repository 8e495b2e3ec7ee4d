"""From measured cells to what a person reads: ratios, growth, and the goals they are held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.lib.report import Row, count_text

Cell = tuple[int, int, float]

SECONDS = "seconds"
"""The compared figure: a micro-batch's whole trigger, planning and checkpoint included."""


def by_cell(results: Iterable[Row]) -> dict[Cell, dict[str, Row]]:
    """The variants measured for each (master rows, batch rows, skew)."""
    cells: dict[Cell, dict[str, Row]] = {}
    for row in results:
        cells.setdefault((row["rows"], row["batch"], row["skew"]), {})[row["variant"]] = row
    return cells


def comparison(results: Sequence[Row]) -> list[dict[str, Any]]:
    """A line per cell and variant: its time, how many times ours that is, how near the ceiling."""
    lines = []
    for (rows, batch, skew), variants in by_cell(results).items():
        for name, row in variants.items():
            lines.append(
                {
                    "master": count_text(rows),
                    "batch": count_text(batch),
                    "zipf": f"{skew:g}",
                    "variant": name,
                    "median s": row[SECONDS],
                    "addBatch s": row["add_batch_seconds"],
                    "min s": row["seconds_min"],
                    "max s": row["seconds_max"],
                    "n": row["n"],
                    "x ours": ratio(variants, name, "ours"),
                    "of ceiling": ratio(variants, "ceiling", name),
                    "join": row["join"] or "",
                }
            )
    return lines


def ratio(variants: dict[str, Row], upper: str, lower: str) -> float | None:
    if upper not in variants or lower not in variants:
        return None
    return float(variants[upper][SECONDS] / variants[lower][SECONDS])


def memory_lines(results: Sequence[Row]) -> list[dict[str, Any]]:
    """The Python workers' memory, worst cell per master and variant."""
    worst: dict[tuple[int, str], Row] = {}
    for row in results:
        if row.get("worker_rise_mb") is not None:
            key = (row["rows"], row["variant"])
            if key not in worst or row["worker_rise_mb"] > worst[key]["worker_rise_mb"]:
                worst[key] = row
    return [
        {
            "master": count_text(rows),
            "variant": variant,
            "budget MB": row["memory_mb"],
            "start MB": row["worker_start_mb"],
            "peak MB": row["worker_peak_mb"],
            "rise MB": row["worker_rise_mb"],
        }
        for (rows, variant), row in sorted(worst.items())
    ]


# --- goals --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """`reached` must be at least (or, with `at_most`, at most) `wanted`."""

    text: str
    wanted: float
    reached: float
    at_most: bool = False

    def line(self) -> dict[str, Any]:
        met = self.reached <= self.wanted if self.at_most else self.reached >= self.wanted
        return {
            "goal": self.text,
            "wanted": f"{'<=' if self.at_most else '>='} {self.wanted:g}",
            "reached": self.reached,
            "met": "yes" if met else "NO",
        }


_FASTER = (  # batch rows, peer, how many times ours it should take
    (100_000, "spark-join-unsized", 15.0),
    (100_000, "broadcast-batch", 5.0),
    (1_000_000, "spark-join-unsized", 5.0),
    (1_000_000, "broadcast-batch", 2.0),
)
_LEAST_ROWS = 10_000_000  # the speed goals are about masters this large: smaller ones fit in memory
_OVERHEAD_MB = 150.0


def goals(results: Sequence[Row], builds: Sequence[Row]) -> list[dict[str, Any]]:
    """Every goal this run can judge, each at its worst cell."""
    found = [*_speed_goals(results), *_growth_goals(results), *_memory_goals(results)]
    if builds:
        sides = {row["variant"]: row[SECONDS] for row in builds}
        times = sides["build_store"] / sides["sort and write Parquet"]
        found.append(Goal("build_store / Spark's sort and Parquet write", 3.0, times, at_most=True))
    return [goal.line() for goal in found]


def _speed_goals(results: Sequence[Row]) -> list[Goal]:
    cells = by_cell(results)
    largest = max((rows for rows, _, _ in cells), default=0)
    if largest < _LEAST_ROWS:
        return []
    found = []
    for batch, peer, wanted in _FASTER:
        times = [
            times
            for (rows, b, _), variants in cells.items()
            if rows == largest and b == batch and (times := ratio(variants, peer, "ours"))
        ]
        if times:
            text = f"{peer} / ours, {count_text(largest)} master, batch {count_text(batch)}"
            found.append(Goal(text, wanted, min(times)))
    variants = cells.get((largest, 1_000_000, 1.0), {})
    if share := ratio(variants, "ceiling", "ours"):
        found.append(Goal("share of the ceiling, batch 1M, Zipf 1", 0.7, share))
    return found


def _growth_goals(results: Sequence[Row]) -> list[Goal]:
    """How much longer ours takes for the largest master than for the smallest."""
    ours = {cell: found["ours"] for cell, found in by_cell(results).items() if "ours" in found}
    sizes = sorted({rows for rows, _, _ in ours})
    if len(sizes) < 2:
        return []
    text = f"growth of ours from {count_text(sizes[0])} to {count_text(sizes[-1])} rows, batch "
    found = []
    for batch in sorted({batch for _, batch, _ in ours}):
        times = [
            row[SECONDS] / small[SECONDS]
            for (rows, b, skew), row in ours.items()
            if (rows, b) == (sizes[-1], batch) and (small := ours.get((sizes[0], batch, skew)))
        ]
        if times:
            found.append(Goal(text + count_text(batch), 1.5, max(times), at_most=True))
    return found


def _memory_goals(results: Sequence[Row]) -> list[Goal]:
    above = [
        row["worker_rise_mb"] - row["memory_mb"]
        for row in results
        if row["variant"] == "ours" and row.get("worker_rise_mb") is not None
    ]
    text = "MB a worker of ours grew beyond its budget"
    return [Goal(text, _OVERHEAD_MB, max(above), at_most=True)] if above else []
