"""P1.5: X-HYBRIDJOIN by the size of both parts of its disk buffer (section 6, figures 4 to 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib import hybrid_claims as hybrids
from experiments.lib.buffer_scans import DISK, moved
from experiments.lib.cell import HDD, HERE, MEASURED, PAPER, facts_of
from experiments.lib.rows import values, where

MEMORY = 50  # MB
SWAPPED = (2, 4, 12, 32, 64, 128)  # pages of 32 kB, about 270 rows each
PINNED = (1, 8, 32, 96, 192)
UNTUNED = 1  # page: what the paper's own number of answers before tuning fits (P1.4)
REAL = f"{HERE}, pread"


def cells(run: Run) -> Iterator[tuple[Row, hybrids.Named]]:
    rows, memory = hybrids.sizes(run, hybrids.ROWS, MEMORY * run.pick(5, 1, 1))
    store, stream = hybrids.master_of(run, rows), ZipfStream(rows, hybrids.SKEW, ordered=True)
    master = facts_of(store)
    labels = {"rows": rows, "kind": "grid"}
    swapped, pinned = run.pick((1, 4), SWAPPED, SWAPPED), run.pick((1, 8), PINNED, PINNED)
    times = run.pick(1, 1, 4)  # pinned parts grow with memory
    few = {"windows": run.pick(1, 4, hybrids.WINDOWS), "misses": run.pick(200, 500, 4_000)}
    plain = hybrids.usual(run, store, stream, "hybridjoin", memory, **few).cell
    for k in swapped:
        for j in pinned:
            yield labels, hybrids.with_parts(plain, master, k, j * times)
    here = hybrids.usual(run, store, stream, "hybridjoin", memory, device=None, io="pread").cell
    middle = swapped[len(swapped) // 2]
    slices = [(k, pinned[len(pinned) // 2]) for k in swapped[::2]]
    slices += [(middle, j) for j in (pinned[0], pinned[-1])]
    for k, j in run.pick(slices[:1], slices, slices):
        yield labels, hybrids.with_parts(here, master, k, j * times)
    short = replace(plain, windows=1)  # it makes very many small reads
    yield {"rows": rows, "kind": "untuned"}, hybrids.with_parts(short, master, UNTUNED, UNTUNED)
    yield {"rows": rows, "kind": "best read"}, hybrids.published(run, store, stream, memory)
    for thing in hybrids.family(run, store, stream, memory, ("xhybridjoin", "sweepjoin"), HDD):
        yield {"rows": rows, "kind": "tuned"}, thing
    yield {"rows": rows, "kind": "bound"}, hybrids.usual(run, store, stream, "memory", 0)
    for name, kind in (("sweepjoin", "tuned"), ("memory", "bound")):
        ours = hybrids.usual(run, store, stream, name, memory, device=None, io="pread")
        yield {"rows": rows, "kind": kind}, ours


def work(thing: hybrids.Named) -> list[Row]:
    """Reads do not depend on the disk where the knobs are given, so one run serves two disks."""
    rows = hybrids.measured(thing)
    for row in rows:
        if "rate" in row and thing.name == hybrids.PUBLISHED:
            master = facts_of(thing.cell.store)
            row["pinned_rows"] = thing.pinned_pages * master.rows / master.pages
            pages = row["read_bytes"] // master.max_page_bytes
            row["block_rows"] = pages * master.rows / master.pages
    if thing.name == hybrids.PUBLISHED and thing.cell.device is not None:
        rows += [on_the_other(row) for row in rows if "rate" in row]
    return rows


def on_the_other(row: Row) -> Row:
    """On the disk of P2, what the laws say of it too."""
    found = moved(row)
    for name in ("renewal", "equation"):
        if row.get(f"{name}_rows_per_read"):
            found[name] = hybrids.rate_of(
                row[f"{name}_rows_per_read"], row["pinned_rows"], row["block_rows"], DISK
            )
    return found


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), work, hybrids.told)


# --- the verdict ---------------------------------------------------------------------------------


def grid(rows: Sequence[Row], device: str, cpu: str = PAPER) -> list[Row]:
    return [r for r in where(rows, device=device, cpu=cpu, kind="grid") if r.get("rate")]


def best_of(some: Sequence[Row], column: str = "rate") -> Row:
    return max(some, key=lambda r: float(r[column]))


def inside(some: Sequence[Row], column: str = "rate") -> bool:
    """Whether the best of a grid lies on none of its edges."""
    return best_of(some, column) not in at_edges(some)


def at_edges(some: Sequence[Row]) -> list[Row]:
    ends = [{min(v), max(v)} for v in (values(some, "block_rows"), values(some, "pinned_rows"))]
    return [r for r in some if r["block_rows"] in ends[0] or r["pinned_rows"] in ends[1]]


def peaks(some: Sequence[Row]) -> int:
    """Places that are higher than all their neighbours in the grid."""
    down, across = sorted(values(some, "block_rows")), sorted(values(some, "pinned_rows"))
    table = np.zeros((len(down) + 2, len(across) + 2))
    for r in some:
        table[down.index(r["block_rows"]) + 1, across.index(r["pinned_rows"]) + 1] = r["rate"]
    found = 0
    for i in range(1, len(down) + 1):
        for j in range(1, len(across) + 1):
            found += bool(
                table[i, j] > 0 and table[i, j] == table[i - 1 : i + 2, j - 1 : j + 2].max()
            )
    return found


def off(some: Sequence[Row], column: str) -> str:
    found = [abs(r[column] / r["rate"] - 1) for r in some if r.get(column)]
    return f"{np.mean(found):.0%}" if found else "nothing"


def slices(some: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Through the best place: by the swapped part, and by the pinned one."""
    best = best_of(some)
    return (
        where(some, pinned_rows=best["pinned_rows"]),
        where(some, block_rows=best["block_rows"]),
    )


def judge(rows: Sequence[Row]) -> Verdict:
    """Published: one peak inside the grid, tuned ahead of untuned, and the model within 0.6 %; 5 %
    is near enough. Untuned is what the paper may have meant, and must be behind in either sense."""
    disk, other = grid(rows, HDD.name), grid(rows, DISK.name)
    best, there = best_of(disk), best_of(other)
    untuned, thumb = (where(rows, device=HDD.name, cpu=PAPER, kind=kind)[0]
                      for kind in ("untuned", "best read"))  # fmt: skip
    gain = best["rate"] / untuned["rate"]
    by_swapped, by_pinned = slices(disk)
    near = all(abs(r["equation"] / r["rate"] - 1) < 0.05 for r in (*by_swapped, *by_pinned))
    word = NOT
    if inside(disk) and peaks(disk) == 1 and best["rate"] > max(untuned["rate"], thumb["rate"]):
        word = REPRODUCED if near else DIRECTION
    tuned = where(rows, device=HDD.name, cpu=PAPER, kind="tuned", algorithm="xhybridjoin")[0]
    lead = best["rate"] / best_of(at_edges(disk))["rate"] - 1
    ours = (
        f"{peaks(disk)} peak, {'inside' if inside(disk) else 'at the edge of'} the grid, at "
        f"{best['block_rows']:,.0f} swapped and {best['pinned_rows']:,.0f} pinned rows, "
        f"{lead:.1%} above the best on an edge (P2's disk: "
        f"{peaks(other)}, at {there['block_rows']:,.0f} and {there['pinned_rows']:,.0f}); tuned "
        f"{gain:.2f} x untuned, {best['rate'] / thumb['rate']:.2f} x both parts of HYBRIDJOIN's "
        f"best read; the published equations are off by {off(by_swapped, 'equation')} "
        f"(swapped) and {off(by_pinned, 'equation')} (pinned)"
    )
    reason = (
        f"The paper does not say how large its parts were before they were tuned; with reads that "
        f"are tuned for HYBRIDJOIN there is nothing left to gain. "
        f"Eq. 9 takes a variance for a mean and averages the partitions as if all were read alike. "
        f"The renewal law in its place is off by {off(by_swapped, 'renewal')} and "
        f"{off(by_pinned, 'renewal')}, and {off(disk, 'renewal')} over the whole grid against "
        f"{off(disk, 'equation')}. The best swapped part follows the disk: a request of hdd-7200 "
        f"costs as much as 760 kB, one of P2's disk as much as 47 kB. The stream asking the pinned "
        f"rows first, tuned by the model, gives {tuned['rate'] / best['rate']:.2f} x the best of "
        f"this grid."
    )
    return Verdict(word, ours, reason)


# --- the chart -----------------------------------------------------------------------------------


def draw(rows: Sequence[Row]) -> charts.Figure:
    figure, flat = charts.panels(6, across=3)
    disk, other, real = (grid(rows, HDD.name), grid(rows, DISK.name), grid(rows, REAL, MEASURED))
    _map(flat[0], disk, "rate", "hdd-7200, paper-era CPU: measured")
    _map(flat[1], disk, "equation", "the same by eqs. 5, 6 and 9")
    _map(flat[2], other, "rate", "P2's disk, paper-era CPU: measured")
    for panel, some, x, label in (
        (flat[3], slices(disk)[0], "block_rows", "rows swapped (pinned: best)"),
        (flat[4], slices(disk)[1], "pinned_rows", "rows pinned (swapped: best)"),
    ):
        charts.curve(panel, some, x, hybrids.PUBLISHED, index=2)
        charts.curve(panel, some, x, "renewal law", "renewal", 6)
        charts.curve(panel, some, x, "eqs. 5, 6, 9 of the paper", "equation", 7)
        for kind in ("tuned", "bound"):
            for row in where(rows, device=HDD.name, cpu=PAPER, kind=kind):
                charts.level(panel, row["rate"], row["algorithm"])
        charts.axes(panel, label, "stream rows per second", "xy")
        panel.set_title("hdd-7200, paper-era CPU", fontsize=10)
    middle = sorted(values(real, "pinned_rows"))[len(values(real, "pinned_rows")) // 2]
    charts.curve(flat[5], where(real, pinned_rows=middle), "block_rows", hybrids.PUBLISHED, index=2)
    for row in where(rows, device=REAL, kind={"tuned", "bound"}):
        charts.level(flat[5], row["rate"], row["algorithm"])
    charts.axes(flat[5], f"rows swapped ({middle:,.0f} pinned)", "stream rows per second", "xy")
    flat[5].set_title(f"{REAL}, this CPU", fontsize=10)
    size = rows[0]["rows"] / hybrids.ROWS
    return charts.finished(
        figure, f"P1.5  X-HYBRIDJOIN's two parts, {2 * size:g} M rows, {50 * size:g} MB, Zipf 1"
    )


def _map(panel: Any, some: Sequence[Row], column: str, title: str) -> None:
    """Rates as colours, with the numbers written in; the best one framed."""
    down, across = sorted(values(some, "block_rows")), sorted(values(some, "pinned_rows"))
    table = np.full((len(down), len(across)), np.nan)
    for r in some:
        table[down.index(r["block_rows"]), across.index(r["pinned_rows"])] = r.get(column) or np.nan
    panel.imshow(table, origin="lower", cmap="cividis", aspect="auto")
    panel.grid(False)
    top, middle = np.nanmax(table), (np.nanmin(table) + np.nanmax(table)) / 2
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            bold = "bold" if value == top else "normal"
            panel.text(
                j,
                i,
                charts.number(round(value, -2)),
                ha="center",
                va="center",
                fontsize=8,
                fontweight=bold,
                color="w" if value < middle else "black",
            )
    panel.set_xticks(range(len(across)), [f"{x:,.0f}" for x in across], fontsize=8)
    panel.set_yticks(range(len(down)), [f"{y:,.0f}" for y in down], fontsize=8)
    panel.set_xlabel("rows pinned")
    panel.set_ylabel("rows swapped per read")
    panel.set_title(f"{title}, rows/s", fontsize=9)


EXPERIMENT = Experiment(
    id="P1.5",
    title="Tuning X-HYBRIDJOIN",
    claim="One best size of the swapped and the pinned part, which the cost model finds",
    paper="one interior peak; tuned clearly ahead of untuned; model within 0.5 % (swapped) and "
    "0.6 % (pinned) of measurement",
    method="X-HYBRIDJOIN as published, 50 MB for 2 M rows, both parts on a grid, four windows "
    "timed (six at paper scale). Untuned: both parts alike, as before section 6, of the one page "
    "that fits its figure 3d (P1.4); beside it parts of HYBRIDJOIN's best read, as in P1.1. At "
    "laptop scale master and memory are a quarter. Rates on P2's disk follow from the same reads. "
    "This machine: some sizes with pread, warm. Tuned and untuned by memory and by master are in "
    "P1.1 and P1.2.",
    minutes={"smoke": 0.1, "laptop": 0.8, "paper": 20},
    measure=run_all,
    judge=judge,
    draw=draw,
)
