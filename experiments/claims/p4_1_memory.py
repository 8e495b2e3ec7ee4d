"""P4.1: MESHJOIN against an index nested loop, by memory (section 4.2, figure 6b)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments.data.products import products_for, share_of
from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib import mesh_sizes as sizes
from experiments.lib.cell import HDD, PAPER, TUNED, Cell, cell
from experiments.lib.measure import measure, told
from experiments.lib.paper_cpu import PAPER_CPU
from experiments.lib.rows import span, values, where

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
FEWER = (0.001, 0.005, 0.01, 0.03, 0.1)
PUBLISHED = {0.005: 3_500, 0.01: 6_000, 0.1: 26_000}
PUBLISHED_INL = {0.005: 274}
SKEW = 0.5
CLOSE = 0.3  # a rate is reproduced within this part of the published one
AHEAD = 5.0  # times as fast as INL, at least: "10x for all memory allocations"
HALF_ROTATION = 4.17e-3
POOL = replace(TUNED, page_pool=0.9)
CYCLES = 2  # that are timed: one alone does not tell waves from noise


def cells(run: Run) -> Iterator[tuple[Row, Cell]]:
    rows = run.pick(20_000, 3_500_000, 3_500_000)
    shares = run.pick((0.2, 1.0), FEWER, SHARES)
    stream = ZipfStream(rows, SKEW)
    for device in (HDD, None):
        for algorithm in ("meshjoin", "inlj", "sweepjoin"):
            for share in shares:
                memory = share_of(rows, share)
                label = {"share": share, "accounting": sizes.OURS, "rows": rows}
                found = cell(
                    run, products_for(algorithm, run.data, rows, memory), stream, algorithm,
                    memory, device=device, params=POOL if algorithm == "inlj" else TUNED,
                    **pace(run, algorithm),
                )  # fmt: skip
                if algorithm == "meshjoin" and device is not None:
                    found = sizes.briefly(found, 1.2, 5, CYCLES)
                yield label, found
                if algorithm == "meshjoin" and device is not None:
                    yield from published_memory(label, found)
        everything = products_for("memory", run.data, rows, 0)
        bound = cell(run, everything, stream, "memory", 0, device=device, most_rows=200_000)
        yield {"share": shares[-1], "accounting": sizes.OURS, "rows": rows}, bound


def pace(run: Run, algorithm: str) -> Row:
    few: Row = {"batch_rows": 50, "warm_rows": 100, "timed_rows": 100}
    return run.pick(few if algorithm == "inlj" else {}, {"seconds": 0.8}, {})


def published_memory(label: Row, found: Cell) -> Iterator[tuple[Row, Cell]]:
    """The same with the paper's number of waiting rows. Its buffer is what the model takes."""
    assert found.device is not None
    known = sizes.symbols(sizes.facts_of(found.store), found.device, PAPER_CPU)
    smallest = max(found.memory, share_of(label["rows"], SHARES[1]))  # ours needs about as much
    other = sizes.as_published(found, known, sizes.tuned_buffer(replace(found, memory=smallest)))
    if other is not None:
        yield {**label, "accounting": sizes.PAPERS}, sizes.briefly(other, 1.2, 5, CYCLES)


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), measure, told)


# --- the verdict ---------------------------------------------------------------------------------


def curve_of(rows: Sequence[Row], algorithm: str, accounting: str = sizes.OURS) -> dict[float, Row]:
    """Rows by share of memory, on the papers' disk with the papers' processor."""
    found = where(rows, device=HDD.name, cpu=PAPER, algorithm=algorithm, accounting=accounting)
    return {row["share"]: row for row in found if row.get("rate")}


def judge(rows: Sequence[Row]) -> Verdict:
    mesh, theirs = curve_of(rows, "meshjoin"), curve_of(rows, "meshjoin", sizes.PAPERS)
    inl, sweep = curve_of(rows, "inlj"), curve_of(rows, "sweepjoin")
    ahead = [theirs[s]["rate"] / inl[s]["rate"] for s in theirs if s in inl]
    word = NOT
    if rising(mesh) and rising(theirs) and flattens(theirs) and ahead and min(ahead) >= AHEAD:
        word = DIRECTION
        if near(theirs, PUBLISHED) and near(inl, PUBLISHED_INL):
            word = REPRODUCED
    known = [s for s in PUBLISHED if s in theirs and s in mesh]
    shown = known or list(theirs)
    ours = (
        "with the paper's accounting "
        + ", ".join(f"{theirs[s]['rate']:,.0f} at {100 * s:g} %" for s in shown)
        + "; counting all that is held "
        + ", ".join(f"{mesh[s]['rate']:,.0f}" for s in shown if s in mesh)
        + f" rows/s; {span(ahead, '{:.0f}')} x INL, which does "
        + f"{span([r['rate'] for r in inl.values()], '{:,.0f}')}; sweepjoin "
        + ", ".join(f"{sweep[s]['rate']:,.0f}" for s in shown if s in sweep)
    )
    return Verdict(word, ours, reason(mesh, theirs, inl))


def rising(found: dict[float, Row]) -> bool:
    rates = [found[s]["rate"] for s in sorted(found)]
    return rates == sorted(rates)


def flattens(found: dict[float, Row]) -> bool:
    """Less than in proportion from the first memory to the last. Only where the memory is what
    rows wait in: the parts of ours that do not grow leave next to nothing of the smallest."""
    first, last = min(found), max(found)
    return bool(found[last]["rate"] / found[first]["rate"] < last / first)


def near(found: dict[float, Row], numbers: dict[float, int]) -> bool:
    return all(s in found and abs(found[s]["rate"] / n - 1) <= CLOSE for s, n in numbers.items())


def reason(mesh: dict[float, Row], theirs: dict[float, Row], inl: dict[float, Row]) -> str:
    both = [s for s in mesh if s in theirs]
    waits = span(theirs[s]["slots"] / mesh[s]["slots"] for s in both)
    gains = span(theirs[s]["rate"] / mesh[s]["rate"] for s in both)
    errors = max(abs(r["predicted"] / r["rate"] - 1) for r in [*mesh.values(), *theirs.values()])
    lookup = span([1e3 * r["io_seconds"] for r in inl.values()])
    behind = [s for s in mesh if s in inl and mesh[s]["rate"] < inl[s]["rate"]]
    words = (
        f"Eq. 1 lets {waits} times as many rows wait as the same bytes do when all that is held "
        f"is counted, and the rate goes with it ({gains} times; the cost model is within "
        f"{100 * errors:.0f} %). INL makes {lookup} ms of disk time per row: its pool is too small "
        f"for a skew of {SKEW}. The published 274 per second are {1e3 / 274:.2f} ms each, less "
        f"than the {1e3 * HALF_ROTATION:.2f} ms of half a rotation, and a tenth of MESHJOIN at "
        "10 % would be 0.4 ms: many of those lookups cannot have reached the disk, so our margin "
        "is wider and grows with memory. The paper-era CPU was fitted to the published 6,000 and "
        "26,000, so with it the level at 1 and 10 % is no test, the shape is."
    )
    if behind:
        words += (
            f" Counting all that is held, MESHJOIN at {100 * max(behind):g} % has only "
            f"{mesh[max(behind)]['slots']:.0f} places for waiting rows and is behind INL."
        )
    return words


def draw(rows: Sequence[Row]) -> charts.Figure:
    shown = [{**r, "percent": 100 * r["share"]} for r in rows if r.get("rate")]
    places = list(dict.fromkeys((r["device"], r["cpu"]) for r in shown))
    figure, flat = charts.panels(len(places))
    for panel, (device, cpu) in zip(flat, places, strict=True):
        here = where(shown, device=device, cpu=cpu)
        for name in values(here, "algorithm"):
            charts.curve(panel, where(here, algorithm=name, accounting=sizes.OURS), "percent", name)
        theirs = where(here, accounting=sizes.PAPERS)
        charts.curve(panel, theirs, "percent", "meshjoin: the paper's accounting")
        if cpu == PAPER:
            charts.published(
                panel, {100 * s: n for s, n in PUBLISHED.items()}, "published, MESHJOIN"
            )
            charts.published(
                panel, {100 * s: n for s, n in PUBLISHED_INL.items()}, "published, INL", "s"
            )
        panel.set_title(f"{device}, {cpu}", fontsize=10)
        charts.axes(panel, "memory, % of the master", "stream rows per second", "xy")
    size = f"{rows[0]['rows']:,} rows of 120 B"
    return charts.finished(figure, f"P4.1  rate by memory; master of {size}, stream Zipf {SKEW}")


EXPERIMENT = Experiment(
    id="P4.1",
    title="MESHJOIN and INL by memory",
    claim="MESHJOIN's rate grows with memory, with diminishing returns, about 10 x INL throughout",
    paper="3,500 rows/s at 0.5 %, 6,000 at 1 %, 26,000 at 10 %; INL 274 at 0.5 %",
    method="MESHJOIN in its second cycle over the master (from then on all are alike); INL after "
    "its pool was filled four times over (a pool of 0.9 of the memory, pages of 8 kB where their "
    "index fits). The second curve of MESHJOIN has as many waiting rows as the "
    "paper's eq. 1 gives for the memory.",
    minutes={"smoke": 0.1, "laptop": 2.4, "paper": 3},
    measure=run_all,
    judge=judge,
    draw=draw,
)
