"""P1.1: X-HYBRIDJOIN and the others, by memory (section 5.2.1, figure 3a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib import hybrid_claims as hybrids
from experiments.lib.buffer_scans import DISK
from experiments.lib.cell import HDD, PAPER
from experiments.lib.rows import one, span, values, where

MEMORIES = (50, 100, 250)  # MB
NAMES = ("meshjoin", "rmeshjoin", "hybridjoin", hybrids.PUBLISHED, "xhybridjoin", "sweepjoin")
SAVED = 0.33


def cells(run: Run) -> Iterator[tuple[Row, hybrids.Named]]:
    memories = run.pick((100, 250), MEMORIES, (50, 100, 150, 200, 250))
    for device in (HDD, DISK, None):
        some = memories if device is HDD else memories[:2]
        names = NAMES if device is HDD or run.scale != "smoke" else NAMES[2::3]
        for paper_mb in some:
            rows, memory = hybrids.sizes(run, hybrids.ROWS, paper_mb)
            stream = ZipfStream(rows, hybrids.SKEW, ordered=True)
            for thing in hybrids.family(
                run, hybrids.master_of(run, rows), stream, memory, names, device
            ):
                yield {"paper_mb": paper_mb, "rows": rows}, thing
        bound = hybrids.family(run, hybrids.master_of(run, rows), stream, 0, ("memory",), device)
        yield {"paper_mb": memories[-1], "rows": rows}, next(bound)


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), hybrids.measured, hybrids.told)


def judge(rows: Sequence[Row]) -> Verdict:
    """Published: X-HYBRIDJOIN first everywhere, HYBRIDJOIN slightly (up to 1.5 times) ahead of
    MESHJOIN, a third of the reads saved."""
    disk = where(rows, device=HDD.name, cpu=PAPER)
    ratios = {
        name: _ahead(disk, hybrids.PUBLISHED, name)
        for name in ("hybridjoin", "meshjoin", "rmeshjoin")
    }
    hybrid = _ahead(disk, "hybridjoin", "meshjoin")
    saved = [
        1
        - one(disk, algorithm=hybrids.PUBLISHED, paper_mb=m)["reads"]
        / one(disk, algorithm="hybridjoin", paper_mb=m)["reads"]
        for m in values(disk, "paper_mb")
    ]
    first = all(x > 1 for found in ratios.values() for x in found)
    slightly = all(1 < x < 1.5 for x in hybrid)
    third = all(abs(x - SAVED) < 0.1 for x in saved)
    word = NOT if not first else REPRODUCED if slightly and third else DIRECTION
    other = where(rows, device=DISK.name, cpu=PAPER)
    pinned = one(disk, algorithm=hybrids.PUBLISHED, paper_mb=values(disk, "paper_mb")[0])
    share = hybrids.pinned_share(pinned["rows"], pinned["pinned_rows"])
    ours = (
        f"X-HYBRIDJOIN as published {span(ratios['meshjoin'])} x MESHJOIN and "
        f"{span(ratios['hybridjoin'])} x HYBRIDJOIN; HYBRIDJOIN {span(hybrid, '{:.2f}')} x "
        f"MESHJOIN; {span(saved, '{:.0%}')} of the reads saved"
    )
    reason = (
        f"At the least memory {pinned['pinned_rows']:,.0f} rows are pinned, which by Zipf's law "
        f"{share:.0%} of the stream ask for; the published third would be 82 rows of 2 M. "
        f"MESHJOIN reads in order for nothing on this disk, while each of HYBRIDJOIN's reads "
        f"waits 12.7 ms. On the disk of P2, from the same authors' machine, every request costs "
        f"0.8 ms: there HYBRIDJOIN is {_times(other, 'hybridjoin', 'meshjoin')} MESHJOIN and "
        f"X-HYBRIDJOIN {_times(other, hybrids.PUBLISHED, 'meshjoin')}. Tuned, with the stream "
        f"asking the pinned rows, X-HYBRIDJOIN is {_times(disk, 'xhybridjoin', hybrids.PUBLISHED)} "
        f"the published one; sweepjoin is {_times(disk, 'sweepjoin', 'xhybridjoin')} that, and "
        f"on the disk of P2 {_times(other, 'sweepjoin', 'xhybridjoin')}. All joins are "
        f"saturated, so bursts of arrivals do not matter."
    )
    return Verdict(word, ours, reason)


def _ahead(rows: Sequence[Row], first: str, second: str) -> list[float]:
    """The ratio of two rates at each memory where both ran."""
    found = []
    for memory in values(rows, "paper_mb"):
        pair = [where(rows, algorithm=name, paper_mb=memory) for name in (first, second)]
        if all(pair) and all("rate" in some[0] and some[0]["rate"] for some in pair):
            found.append(pair[0][0]["rate"] / pair[1][0]["rate"])
    return found or [float("nan")]


def _times(rows: Sequence[Row], first: str, second: str) -> str:
    return f"{span(_ahead(rows, first, second), '{:.2f}')} x"


def draw(rows: Sequence[Row]) -> charts.Figure:
    size = f"{rows[0]['rows'] / 1e6:g} M"
    return charts.rates(
        rows,
        "paper_mb",
        "memory for 2 M rows, MB",
        title=f"P1.1  rate by memory, {size} x 120 B in the order of popularity, Zipf 1; memory "
        "shrunk along with the master",
    )


EXPERIMENT = Experiment(
    id="P1.1",
    title="X-HYBRIDJOIN by memory",
    claim="X-HYBRIDJOIN is ahead of HYBRIDJOIN, MESHJOIN and R-MESHJOIN for every memory, and "
    "HYBRIDJOIN slightly ahead of MESHJOIN",
    paper="figure 3a, without numbers; the pinned part saves about 33 % of the disk I/O",
    method="A saturated join in its steady state, six windows of waiting rows timed (scans "
    "two cycles, sweepjoin three rounds); the disk is cold, this machine warm. X-HYBRIDJOIN as "
    "published pins as much as HYBRIDJOIN's best read brings, and asks it against the waiting "
    "rows. At laptop scale master and memory are a quarter.",
    minutes={"smoke": 0.1, "laptop": 1.2, "paper": 20},
    measure=run_all,
    judge=judge,
    draw=draw,
)
