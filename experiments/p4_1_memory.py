"""P4.1: MESHJOIN against an index nested loop, by memory (section 4.2, figure 6a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import semistream as ss
from experiments.base import (
    DIRECTION,
    NOT,
    REPRODUCED,
    Experiment,
    Row,
    Run,
    Verdict,
    each,
    one,
    span,
    values,
    where,
)  # fmt: skip
from experiments.charts import Figure, rates
from experiments.masters import products_for, share_of
from experiments.measure import HDD, PAPER, Cell, cell, measure, told
from experiments.streams import ZipfStream

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
PUBLISHED = {0.005: 3_500, 0.01: 6_000, 0.1: 26_000}
SKEW = 0.5


def cells(run: Run) -> Iterator[tuple[Row, Cell]]:
    rows = run.pick(20_000, 3_500_000, 3_500_000)
    shares = run.pick((0.02, 0.1), SHARES, SHARES)
    stream = ZipfStream(rows, SKEW)
    for device in (HDD, None):
        for algorithm in ("meshjoin", "inlj", "sweepjoin"):
            for share in shares:
                memory = share_of(rows, share) * run.pick(10, 1, 1)
                store = products_for(algorithm, run.data, rows, memory)
                pool = ss.Params(sketch=False, page_pool=0.9 if algorithm == "inlj" else 0.0)
                found = cell(run, store, stream, algorithm, memory, device=device, params=pool)
                yield {"share": share, "rows": rows}, found
        store = products_for("memory", run.data, rows, 0)
        yield (
            {"share": shares[-1], "rows": rows},
            cell(run, store, stream, "memory", 0, device=device, most_rows=200_000),
        )


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), measure, told)


def judge(rows: Sequence[Row]) -> Verdict:
    disk = where(rows, device=HDD.name, cpu=PAPER)
    mesh = {r["share"]: r["rate"] for r in where(disk, algorithm="meshjoin") if r.get("rate")}
    both = [s for s in values(where(disk, algorithm="inlj"), "share") if s in mesh]
    ahead = [mesh[s] / one(disk, algorithm="inlj", share=s)["rate"] for s in both]
    rising = list(mesh.values()) == sorted(mesh.values())
    best = all(a > 3 for a in ahead[len(ahead) // 2 :])
    word = DIRECTION if rising and best else NOT
    close = [s for s in PUBLISHED if s in mesh and 0.7 < mesh[s] / PUBLISHED[s] < 1.4]
    if word == DIRECTION and len(close) == len(PUBLISHED):
        word = REPRODUCED
    ours = ", ".join(f"{mesh[s]:,.0f} rows/s at {s:.1%}" for s in PUBLISHED if s in mesh)
    ours = ours or span(mesh.values(), "{:,.0f} rows/s")
    return Verdict(word, f"{ours}; {span(ahead)} x INL", "to be written")


def draw(rows: Sequence[Row]) -> Figure:
    return rates(
        [{**r, "percent": 100 * r["share"]} for r in rows], "percent", "memory, % of the master",
        title="P4.1  rate by memory, 3.5 M x 120 B, Zipf 0.5",
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="P4.1",
    title="MESHJOIN and INL by memory",
    claim="MESHJOIN's rate grows with memory, with diminishing returns, about 10 x INL throughout",
    paper="3,500 rows/s at 0.5 %, 6,000 at 1 %, 26,000 at 10 %; INL 274 at 0.5 %",
    method="Steady state after the window was filled three times; INL with a page pool.",
    minutes={"smoke": 0.1, "laptop": 3, "paper": 3},
    measure=run_all,
    judge=judge,
    draw=draw,
)
