"""Our own: how long rows wait for their answer when they arrive in bursts, and when evenly.

The papers' joins are measured with a stream that is always ahead. Here rows arrive by the clock,
and each join is given a part of what it can answer; one that has nothing to take in works on what
waits, and idles when nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.data.arrivals import Bursty, Steady
from experiments.data.products import products_for, share_of
from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib.cell import HDD, PAPER, Cell, cell
from experiments.lib.measure import Course, interval, measure
from experiments.lib.paper_cpu import charge_cpu
from experiments.lib.rows import one, span, values, where
from semistream.kernels.arrays import F64, I64

OTHERS = ("meshjoin", "hybridjoin", "chybridjoin")
TICK = 0.1  # seconds
BATCH = 500
PARTS = 8  # of the time, for the interval
BIAS, LEVELS = 0.6, 9  # of the cascade: the fullest tick has five times the mean
SHARE = 0.1  # of the master, for memory


@dataclass(frozen=True)
class Load:
    cell: Cell
    kind: str  # bursty | steady
    mean: float  # rows per second
    ticks: int

    @property
    def counts(self) -> I64:
        """Rows of each tick."""
        mean, seed = self.mean * TICK, self.cell.seed
        if self.kind == "steady":
            return Steady(mean).counts(seed, self.ticks)
        return Bursty(mean, BIAS, LEVELS).counts(seed, self.ticks)


class Served(Course):
    """A join whose rows arrive by the clock. Each carries its number, so that its answer tells how
    long it took since it arrived."""

    def serve(self, arrived: F64) -> F64:
        """When each of these rows, by the seconds of their arrival, was answered."""
        answered, taken, began = np.full(len(arrived), np.nan), 0, self.clock()
        stream = self.cell.stream.batches(self.cell.seed + 1, BATCH)
        while taken < len(arrived) or self.join.stats.waiting:
            due = int(np.searchsorted(arrived, self.clock() - began, "right"))
            rows = min(due - taken, BATCH)
            before = self.join.stats
            if rows > 0:
                out = self.join.push(_numbered(next(stream)[:rows], taken))
                taken += rows
            elif before.waiting:
                out = self.join.step()
            else:
                self.clock.advance(arrived[taken] - (self.clock() - began) + 1e-9)
                continue
            for batch in out:
                answered[np.asarray(batch.column("sold_at").cast(pa.int64()))] = self.clock()
            charge_cpu(self.clock, before, self.join.stats, self.page_rows)
        return answered - began


def _numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    number = pa.array(np.arange(first, first + len(batch))).cast(batch.schema[2].type)
    return pa.RecordBatch.from_arrays([*batch.columns[:2], number], schema=batch.schema)


def waits(load: Load) -> list[Row]:
    course = Served(load.cell)
    try:
        course.warm_up()
        list(course.join.drain())
        counts = load.counts
        arrived = np.repeat(np.arange(len(counts)) * TICK, counts)
        waited = course.serve(arrived) - arrived
    finally:
        course.close()
    low, high = interval([float(part.mean()) for part in np.array_split(waited, PARTS)])
    mean = float(waited.mean())
    return [{
        "algorithm": load.cell.algorithm,
        "device": HDD.name,
        "cpu": PAPER,
        "arrivals": load.kind,
        "mean_rate": load.mean,
        "rows": len(arrived),
        "wait": mean,
        "wait_low": max(0.0, low),
        "wait_high": high,
        "wait_95": float(np.quantile(waited, 0.95)),
        "answered": int(np.isfinite(waited).sum()),
    }]  # fmt: skip


def run_all(run: Run) -> Iterator[Row]:
    rows = run.pick(20_000, 300_000, 2_000_000)
    memory, stream = share_of(rows, SHARE) * run.pick(5, 1, 1), ZipfStream(rows, 1.0)
    todo: list[tuple[Row, Load]] = []
    best = 0.0
    for algorithm in (*OTHERS, "sweepjoin", "memory"):
        store = products_for(algorithm, run.data, rows, memory)
        found = cell(run, store, stream, algorithm, memory, batch_rows=BATCH)
        # The bound is given what sweepjoin is: it could take all of it at once.
        if algorithm != "memory":
            best = one(measure(found), cpu=PAPER)["rate"]
        for load in run.pick((0.5,), (0.5, 0.9), (0.3, 0.5, 0.7, 0.9)):
            for kind in ("steady", "bursty"):
                labels = {"load": load, "master_rows": rows, "capacity": best}
                ticks = run.pick(16, 1 << LEVELS, 4 << LEVELS)
                todo.append((labels, Load(found, kind, load * best, ticks)))
    yield from each(todo, waits, told)


def told(row: Row) -> str:
    return (f"{row['algorithm']}, {row['arrivals']} at {row['load']:.0%}: a row waits "
            f"{row['wait']:.2f} s, 95 % less than {row['wait_95']:.2f} s")  # fmt: skip


def judge(rows: Sequence[Row]) -> Verdict:
    """Ours holds if no other join's rows wait less at the same load of its own capacity."""
    loads = values(rows, "load")
    bursty = where(rows, arrivals="bursty")

    def wait(algorithm: str, load: float, kind: str = "bursty") -> float:
        return float(one(rows, algorithm=algorithm, load=load, arrivals=kind)["wait"])

    least = {load: min(wait(a, load) for a in OTHERS) for load in loads}
    ahead = [load for load in loads if wait("sweepjoin", load) <= least[load]]
    word = REPRODUCED if len(ahead) == len(loads) else DIRECTION if ahead else NOT
    longer = {a: [wait(a, x) / wait(a, x, "steady") for x in loads] for a in (*OTHERS, "sweepjoin")}
    sizes = {a: one(bursty, algorithm=a, load=loads[0])["capacity"] for a in longer}
    ours = "; ".join(f"{a} {span([wait(a, x) for x in loads], '{:.2f}')} s of "
                     f"{sizes[a]:,.0f} rows/s" for a in longer)  # fmt: skip
    reason = (
        f"Mean wait in bursts at {span(loads, '{:.0%}')} of each join's own rate. Bursts make it "
        + ", ".join(f"{span(found)} x as long for {a}" for a, found in longer.items())
        + ". A scan's row waits half a cycle however few arrive; with an index an idle join turns "
        "to the rows at once, and what bursts add is the queue of those that have arrived and were "
        "not taken in."
    )
    return Verdict(word, ours, reason)


def draw(rows: Sequence[Row]) -> charts.Figure:
    figure, flat = charts.panels(4, across=2)
    kinds = [(kind, y) for y in ("wait", "wait_95") for kind in ("steady", "bursty")]
    for panel, (kind, y) in zip(flat, kinds, strict=True):
        some = [{**r, "percent": 100 * r["load"]} for r in where(rows, arrivals=kind)]
        for name in values(some, "algorithm"):
            charts.curve(panel, where(some, algorithm=name), "percent", name, y)
        what = "mean wait" if y == "wait" else "95 % wait less than"
        charts.axes(panel, "arrivals, % of the join's own rate", f"{what}, seconds", "y")
        panel.set_title(f"{kind} arrivals; {HDD.name}, {PAPER}", fontsize=10)
    size = rows[0]["master_rows"] / 1e6
    return charts.finished(
        figure, f"Waiting in bursts, {size:g} M x 120 B, Zipf 1, memory {SHARE:.0%}"
    )


EXPERIMENT = Experiment(
    id="bursts",
    title="Waiting when rows arrive in bursts",
    claim="At the same share of its own rate, sweepjoin's rows wait no longer than those of others",
    paper="none: P1 has bursty, self-similar arrivals and no numbers on waiting",
    method="Rows arrive by the modelled clock, evenly (Poisson) or in bursts (a cascade with bias "
    f"{BIAS:g}, {LEVELS} levels of {TICK:g} s), after a warm-up; waits are from arrival to answer. "
    "All in memory is given sweepjoin's arrivals: it would take far more.",
    minutes={"smoke": 0.1, "laptop": 1.7, "paper": 6},
    measure=run_all,
    judge=judge,
    draw=draw,
)
