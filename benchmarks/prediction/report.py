"""What prediction against measurement has found, in tables, lines and files."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.lib.report import Row, keep, print_table, say, write_csv
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine

WITHIN = 0.15  # a prediction that is no further off is called good
NEAR = 0.9  # of the best rate: then the planner's choice is as good as the best
WORST = 0.5  # of the best rate: no choice may be below


# --- predictions --------------------------------------------------------------------------------


def print_cells(rows: Sequence[Row]) -> None:
    """All cells: what was predicted, what was measured."""
    shown = [
        {
            **{name: row[name] for name in ("device", "memory", "skew", "algorithm")},
            "predicted": row["predicted"],
            "measured": row["measured"],
            "spread": _spread(row),
            "error": f"{100 * row['error']:+.1f} %" + ("" if row["steady"] else " *"),
            "hits": f"{row['predicted_hits']:.3f} / {row['hits']:.3f}",
            "pages per row": f"{row['predicted_pages']:.4f} / {row['pages']:.4f}",
            "slots": f"{row['predicted_slots']} / {row['slots']}",
            "asleep": _asleep(row),
        }
        for row in rows
    ]
    say("\nstream rows per second; where two numbers stand, predicted / measured")
    print_table(shown)
    if not all(row["steady"] for row in rows):
        say("* the time for warming up was over before the state was steady")


def _spread(row: Row) -> str:
    modelled = row["device"] in DEVICES
    return "exact" if modelled else f"{row['low']:,.0f}-{row['high']:,.0f}"


def _asleep(row: Row) -> str:
    if row["predicted_asleep"] == row["asleep"]:
        return "yes" if row["asleep"] else ""
    return "predicted only" if row["predicted_asleep"] else "measured only"


def median_error(rows: Sequence[Row]) -> float:
    """The middle of the errors, their signs left out."""
    return statistics.median(abs(row["error"]) for row in rows)


def error_summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line per device, then one per device and algorithm."""
    lines = []
    for device in dict.fromkeys(row["device"] for row in rows):
        here = [row for row in rows if row["device"] == device]
        lines.append(_error_line(device, "all", here))
    for device in dict.fromkeys(row["device"] for row in rows):
        here = [row for row in rows if row["device"] == device]
        for name in dict.fromkeys(row["algorithm"] for row in here):
            lines.append(_error_line(device, name, [r for r in here if r["algorithm"] == name]))
    return lines


def _error_line(device: str, algorithm: str, rows: Sequence[Row]) -> dict[str, Any]:
    worst = max(rows, key=lambda row: abs(row["error"]))
    good = sum(abs(row["error"]) <= WITHIN for row in rows) / len(rows)
    return {
        "device": device,
        "algorithm": algorithm,
        "cells": len(rows),
        "median error": f"{100 * median_error(rows):.1f} %",
        f"within {100 * WITHIN:.0f} %": f"{100 * good:.0f} %",
        "worst": f"{100 * worst['error']:+.1f} %",
        "at": f"{worst['algorithm']}, {worst['memory']}, Zipf {worst['skew']:g}",
    }


def print_errors(rows: Sequence[Row]) -> None:
    say("\nerrors of the predicted rate, predicted / measured - 1; medians without sign")
    print_table(error_summary(rows))


# --- the planner --------------------------------------------------------------------------------


def compare_choices(
    rows: Sequence[Row], chosen: Mapping[tuple[str, str, float], str]
) -> list[dict[str, Any]]:
    """For each device, memory and skew: the measured rate of what the planner chose, as a part of
    the best measured rate there."""
    verdicts = []
    for (device, memory, skew), name in chosen.items():
        here = [r for r in rows if (r["device"], r["memory"], r["skew"]) == (device, memory, skew)]
        mine = next((r for r in here if r["algorithm"] == name), None)
        if mine is None:
            continue
        best = max(here, key=lambda row: row["measured"])
        verdicts.append(
            {
                "device": device,
                "memory": memory,
                "skew": skew,
                "chosen": name,
                "rate": mine["measured"],
                "best": best["algorithm"],
                "best rate": best["measured"],
                "ratio": mine["measured"] / best["measured"],
            }
        )
    return verdicts


def print_choices(verdicts: Sequence[Row]) -> None:
    """How often the planner chose what is best or nearly so, and where it did not."""
    if not verdicts:
        return
    missed = [verdict for verdict in verdicts if verdict["ratio"] < NEAR]
    good = 1 - len(missed) / len(verdicts)
    worst = min(verdict["ratio"] for verdict in verdicts)
    say(
        f"\nplanner: {100 * good:.0f} % of {len(verdicts)} choices within {100 * (1 - NEAR):.0f} % "
        f"of the best measured (wanted: 90 %); the worst has {worst:.2f} of the best (wanted: "
        f"{WORST} at least)"
    )
    print_table(missed)


# --- files --------------------------------------------------------------------------------------


def keep_all(
    args: argparse.Namespace, rows: Sequence[Row], verdicts: Sequence[Row], machine: Machine | None
) -> str:
    """Everything that the tables above were made from, and where it came from."""
    write_csv(args.out / "planner.csv", verdicts)
    calibrated = None
    if machine is not None:
        calibrated = {"device": asdict(machine.device), "costs": dict(machine.costs)}
    kept = keep(args.out, "prediction", rows, args, calibrated=calibrated)
    return f"{kept}, planner.csv"
