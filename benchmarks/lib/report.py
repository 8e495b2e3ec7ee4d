"""What every benchmark prints and keeps: medians with their spread, tables, CSV and a manifest.

A figure without its origin is hearsay: `manifest` records the commit, seed, versions, machine and
arguments, and is written beside the CSV that the tables and charts are made from.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

_PACKAGES = ("semistream", "pyspark", "pyarrow", "numpy", "numba", "pandas")
_COUNTS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


# --- numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """The middle of repeated measurements, and how far they lay apart."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Iterable[float]) -> Spread:
    kept = sorted(values)
    if not kept:
        raise ValueError("no measurements: nothing to take the median of")
    return Spread(statistics.median(kept), kept[0], kept[-1], len(kept))


def parse_count(text: str) -> int:
    """`10k` -> 10000, `3M` -> 3000000, `2500` -> 2500."""
    found = re.fullmatch(r"\s*([0-9][0-9_]*\.?[0-9]*)\s*([a-zA-Z]*)\s*", text)
    if not found or found[2].lower() not in _COUNTS:
        raise ValueError(f"{text!r} is not a count such as 10k, 3M or 2500")
    return round(float(found[1].replace("_", "")) * _COUNTS[found[2].lower()])


def count_text(count: int) -> str:
    """10000 -> `10k`, 3000000 -> `3M`: the inverse of `parse_count`, for people."""
    for unit, scale in (("M", 1_000_000), ("k", 1_000)):
        if count >= scale:
            return f"{count / scale:g}{unit}"
    return str(count)


# --- words, tables and files ---------------------------------------------------------------------


def say(text: str) -> None:
    """At once, also where the output is a file that somebody follows."""
    print(text, flush=True)


def print_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Align `rows` under their column names: text to the left, numbers to the right."""
    if not rows:
        return
    names = list(columns or rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    marks = ["<" if any(isinstance(row.get(name), str) for row in rows) else ">" for name in names]
    for line in [names, ["-" * width for width in widths], *cells]:
        aligned = zip(line, marks, widths, strict=True)
        print("  ".join(f"{text:{mark}{width}}" for text, mark, width in aligned).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """All of `rows`, with a header of every column that any of them has. None is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """What `write_csv` wrote: numbers as numbers, bools as bools, empty cells as None."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    known = {"": None, "True": True, "False": False}
    if text in known:
        return known[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# --- where the numbers came from ----------------------------------------------------------------


def manifest(arguments: Mapping[str, Any], seed: int, **more: Any) -> dict[str, Any]:
    """Everything somebody needs to get these numbers again, or to see why theirs differ."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "seed": seed,
        "arguments": {name: _plain(value) for name, value in arguments.items()},
        "versions": _versions(),
        "machine": _machine(),
        **more,
    }


def keep(out: Path, name: str, rows: Sequence[Row], args: argparse.Namespace, **more: Any) -> str:
    """Write the rows as `name`.csv and where they came from beside them; returns where that is."""
    write_csv(out / f"{name}.csv", rows)
    write_manifest(out / f"{name}-manifest.json", manifest(vars(args), args.seed, **more))
    return f"{out}/{name}.csv and {name}-manifest.json"


def write_manifest(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _commit() -> str | None:
    """The commit that ran, with `-dirty` when files other than documents differ from it: results
    are written among these. None outside a checkout."""
    found = _output(["git", "rev-parse", "HEAD"]).split()
    changed = _output(
        ["git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs"]
    )
    return found[0] + ("-dirty" if changed.strip() else "") if found else None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "java": _java_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    said = _output([f"{home}/bin/java" if home else "java", "-version"])
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else None


def _output(command: Sequence[str]) -> str:
    """What a command says (some say it on stderr), or nothing when it fails or is not there."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=here, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout + done.stderr


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor()
