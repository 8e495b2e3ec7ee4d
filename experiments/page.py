"""The page of all verdicts, written from the CSV files and manifests alone."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.lib.report import read_csv
from experiments.lib import SCALES, Experiment, Verdict
from experiments.lib.cell import HERE
from experiments.registry import CLAIMS, experiment, names

DOCS = Path("docs/reproduction")
HEAD = """# The papers' claims, measured again

This page is generated: `python -m experiments page` writes it from the CSV files beside it, and
each of those is written by one command, `python -m experiments P4.1`. How things are measured is
said once, in [measurement](measurement.md). `make experiments` does all of it.

Modelled disks: **hdd-7200** is one of the papers' time (60 MB/s, 8.5 ms to seek, 4.17 ms half a
rotation, nothing for going on where the last read ended), **p2** one on which every request costs
as much as 47 kB. Every page is really read, and its time charged to a clock, with either the
processor of the papers' days or this one's as measured. **this machine** is the wall clock, the
file in the page cache. Memory counts everything that a join holds; the papers count less (P4.1).
sweepjoin is ours; "all in memory" is the bound that no join of a table larger than memory can
reach.
"""
PAPERS = {
    "P4": "P4: Polyzotis et al., *Supporting Streaming Updates* (MESHJOIN)",
    "P2": "P2: Naeem et al., *MESHJOIN with a default disk buffer*",
    "P1": "P1: Naeem et al., *HYBRIDJOIN and X-HYBRIDJOIN*",
    "P0": "P0: Naeem et al., *CMESHJOIN*",
    "P3": "P3: Naeem et al., *CACHEJOIN: front stage and load shedding*",
}


def write_page(folder: Path = DOCS) -> Path:
    """Beside the folder with the results; returns where."""
    path = folder.with_suffix(".md")
    path.write_text(page(folder), encoding="utf-8")
    return path


def page(folder: Path) -> str:
    there = [name for name in names() if (folder / f"{name}.csv").exists()]
    judged = {name: (found := experiment(name), found.judge(read_csv(folder / f"{name}.csv")))
              for name in there}  # fmt: skip
    claims = {name: pair for name, pair in judged.items() if name in CLAIMS}
    parts = [HEAD, _summary(claims), "## Claims", _table(claims)]
    parts += [f"Missing: {', '.join(missing)}."] if (missing := _missing(claims)) else []
    for paper, title in PAPERS.items():
        mine = {n: pair for n, pair in claims.items() if n.startswith(paper)}
        parts += [f"## {title}", *(_section(folder, *pair) for pair in mine.values())]
    parts += ["## Studies of our own"]
    parts += [_section(folder, *pair) for name, pair in judged.items() if name not in claims]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _missing(claims: dict[str, tuple[Experiment, Verdict]]) -> list[str]:
    return [name for name in CLAIMS if name not in claims]


def _summary(claims: dict[str, tuple[Experiment, Verdict]]) -> str:
    words = [verdict.word for _, verdict in claims.values()]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return f"Of {len(words)} claims: {counts}."


def _table(claims: dict[str, tuple[Experiment, Verdict]]) -> str:
    lines = ["| # | claim | paper | ours | verdict | reason |", "|---|---|---|---|---|---|"]
    for name, (found, verdict) in claims.items():
        cells = (f"[{name}](#{anchor(found)})", found.claim, found.paper, verdict.ours,
                 f"**{verdict.word}**", verdict.reason)  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def heading(found: Experiment) -> str:
    return f"{found.id} {found.title}"


def anchor(found: Experiment) -> str:
    """As GitHub makes it from the heading."""
    kept = "".join(c for c in heading(found).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(folder: Path, found: Experiment, verdict: Verdict) -> str:
    csv, record, chart = found.files
    origin = json.loads((folder / record).read_text())
    assert origin["scale"] in SCALES
    return "\n\n".join(
        [
            f"### {heading(found)}",
            f"Published: {found.paper}. Ours: {verdict.ours}. "
            f"**{verdict.word.capitalize()}**: {verdict.reason}",
            f"![{found.title}]({folder.name}/{chart})",
            f"{found.method} Data: {found.data}. {_devices(origin['devices'])}Scale: "
            f"{origin['scale']}, seed {origin['seed']}, {origin['seconds']} s; commit "
            f"`{_commit(origin['commit'])}`. "
            f"[Rows]({folder.name}/{csv}), [origin]({folder.name}/{record}).",
        ]
    )


def _commit(found: str | None) -> str:
    name, _, dirty = str(found).partition("-")
    return name[:12] + (f"-{dirty}" if dirty else "")


def _devices(names: list[str]) -> str:
    """A modelled disk is charged for every page; this machine has all of them in its page cache."""
    told = [f"{name} ({'warm' if name.startswith(HERE) else 'cold'})" for name in names]
    return f"Devices: {'; '.join(told)}. " if told else ""
