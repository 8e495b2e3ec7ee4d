"""P3.3: temporal locality, every key several times in R (section 5.2.1, figure 5g)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.data.drifting import TemporalLocality
from experiments.data.many_to_many import repeated_keys
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib import front_claims as front
from experiments.lib.cell import HDD, MEASURED, PAPER, Cell
from experiments.lib.measure import measure, told
from experiments.lib.rows import one, span, values, where

TIMES = (1, 5, 20)
PUBLISHED: dict[float, float] = {1: 6.5, 20: 10.0}
SHORT, LONG, ALONE = "interval R/50", "interval R/5", "one interval only"
PARTS = {SHORT: 50, LONG: 5, ALONE: 0}  # an interval is this part of R; 0: it does not end
SEGMENTS = {SHORT: 6, LONG: 5}  # each of whole intervals: two, and one
COUNTED, WARM = {SHORT: 12, LONG: 5}, {SHORT: 5, LONG: 1}  # intervals
NEVER = 10**12
# Without inlj: the paper has only the first two, and its page pool would need all the intervals.
LINES = tuple(front.Line(n) for n in ("meshjoin", "cmeshjoin", "sweepjoin", "memory"))


def cells(run: Run) -> Iterator[tuple[Row, Cell]]:
    rows = run.pick(20_000, 500_000, 100_000_000)
    memory = front.memory_of(run, rows, 0.1)
    for device in (HDD, None):
        for interval, part in PARTS.items():
            if interval != SHORT and (device is None or run.scale == "smoke"):
                continue
            length = rows // part if part else NEVER
            for times in run.pick((1, 20), TIMES, TIMES):
                store = repeated_keys(run.data, rows, times)
                stream = TemporalLocality(rows, times, interval_rows=length)
                for line in LINES:
                    made = front.on_device(run, line, store, stream, memory, device)
                    labels = {"part": interval, "line": line.name, "x": times, "rows": rows}
                    yield labels, made if length == NEVER else once(made, interval, length)


def once(made: Cell, interval: str, length: int) -> Cell:
    """Through the intervals once, as the paper: an interval that comes again is known already.
    A few are the warm-up. A segment of a sweep ends with the sweep, which may take rows of three
    more intervals, so there are only two of them, and no interval comes again."""
    rows, warm = COUNTED[interval] * length, WARM[interval] * length
    if made.algorithm == "memory":  # it has no state that an interval could change
        rows, warm = min(rows, 4_000), min(warm, 1_000)
    few = made.algorithm == "sweepjoin" and interval == SHORT
    return replace(made, warm_rows=warm, timed_rows=rows, seconds=0.0, batch_rows=2_000,
                   segments=2 if few else SEGMENTS[interval])  # fmt: skip


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), measure, told)


def judge(rows: Sequence[Row]) -> Verdict:
    gain = {p: front.ratio_at(front.of_part(rows, p), "cmeshjoin", "meshjoin") for p in PARTS}
    short = gain[SHORT]
    core = all(g > 1 for g in short.values()) and short[max(short)] > short[1]
    close = all(front.within(short.get(n, 0.0), ratio) for n, ratio in PUBLISHED.items())
    word = REPRODUCED if core and close else DIRECTION if core else NOT
    ours = "; ".join(
        f"{part}: " + ", ".join(f"{g:.1f} x at N = {n}" for n, g in found.items())
        for part, found in gain.items() if found
    )  # fmt: skip
    return Verdict(word, ours, reason(rows))


def reason(rows: Sequence[Row]) -> str:
    disk = front.of_part(rows, SHORT)
    hits = {
        p: {r["x"]: r["hits"] or 0.0 for r in front.of_part(rows, p, line="cmeshjoin")}
        for p in PARTS
    }
    slow = {r["x"]: r["rate"] for r in where(disk, line="meshjoin")}
    cached = {r["x"]: r["rate"] for r in where(disk, line="cmeshjoin")}
    most = max(slow)
    first = one(disk, line="cmeshjoin", x=1)
    cycle = first["slots"] / max(0.01, 1 - (first["hits"] or 0.0)) / (first["rows"] / 50)
    swept = front.ratio_at(disk, "sweepjoin", "meshjoin")
    return (
        f"Hits of the front stage by N: {_by_n(hits[SHORT])} with the paper's proportions"
        + (f", {_by_n(hits[LONG])} with intervals ten times as long" if hits[LONG] else "")
        + (f", {_by_n(hits[ALONE])} if the first one never ends" if hits[ALONE] else "")
        + f". From N = 1 to {most} MESHJOIN keeps {slow[most] / slow[1]:.2f} of its rate and "
        f"CMESHJOIN {cached[most] / cached[1]:.2f}: each row has N matches to build, for hits and "
        "misses alike, and a cached key takes N times the memory. A scan learns a key when it "
        f"meets it, and a cycle lasts {cycle:.1f} intervals at N = 1. sweepjoin is "
        f"{span(swept.values())} x MESHJOIN."
    )


def _by_n(hits: dict[Any, float]) -> str:
    return ", ".join(f"{share:.0%} at {n}" for n, share in hits.items())


def draw(rows: Sequence[Row]) -> charts.Figure:
    here = next(str(r["device"]) for r in rows if r["device"] != HDD.name)
    parts = [(SHORT, HDD.name, PAPER), (SHORT, HDD.name, MEASURED), (SHORT, here, MEASURED)]
    parts += [(p, HDD.name, PAPER) for p in (LONG, ALONE) if where(rows, part=p)]
    figure, flat = charts.panels(len(parts) + 1, 3, 3.3)
    for panel, (part, device, cpu) in zip(flat, parts, strict=False):
        some = front.of_part(rows, part, device=device, cpu=cpu)
        for name in values(some, "line"):
            charts.curve(panel, where(some, line=name), "x", name)
        panel.set_title(f"{part}; {device}, {cpu}", fontsize=9)
        charts.axes(panel, "rows of R per key (N)", "stream rows per second", "y")
    for i, part in enumerate(p for p in PARTS if where(rows, part=p)):
        charts.curve(
            flat[-1],
            front.ratios(front.of_part(rows, part), "cmeshjoin", "meshjoin"),
            "x",
            f"cmeshjoin / meshjoin, {part}",
            "ratio",
            i,
        )
    charts.published(flat[-1], PUBLISHED, "published: cmeshjoin / meshjoin")
    flat[-1].set_title(f"ratios, {HDD.name}, {PAPER}", fontsize=9)
    charts.axes(flat[-1], "rows of R per key (N)", "times as fast")
    own = max(r["rows"] for r in rows)
    return charts.finished(
        figure,
        f"P3.3  temporal locality, {own / 1e6:g} M x 120 B (100 M in the "
        "paper), memory 10 %, Zipf 1 within 25 intervals",
    )


EXPERIMENT = Experiment(
    id="P3.3",
    title="Temporal locality",
    claim="With temporal locality CMESHJOIN is ahead of MESHJOIN, more so where keys repeat in R",
    paper="6.5 x at N = 1, 10 x at N = 20 (every key N times in R)",
    method="25 intervals, each Zipf 1 in its own slice of the keys, none of them twice; five (of "
    "the long ones one) are the warm-up, twelve (five) and the rest of a step are timed. 0.5 M "
    "rows and intervals of R/50 rows at laptop scale (a 200th, the paper's proportions), intervals "
    "ten times as long, and one interval that never ends (what a measurement within an interval "
    "would see). The paper prints a last slice outside R; slices I-1 to I are taken.",
    minutes={"smoke": 0.1, "laptop": 1.6, "paper": 200},
    measure=run_all,
    judge=judge,
    draw=draw,
)
