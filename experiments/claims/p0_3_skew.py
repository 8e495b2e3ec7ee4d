"""P0.3: CMESHJOIN and MESHJOIN by the skew of the stream (section 4, figure 3d)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib import front_claims as front
from experiments.lib.front_charts import Pair, by_skew
from experiments.lib.measure import measure, told
from experiments.lib.rows import span, where

FIXED = "cmeshjoin: cache 15 %"
NAMES = ("meshjoin", "cmeshjoin", "inlj", "sweepjoin", "memory")
LINES = (*(front.Line(name) for name in NAMES), front.Line(FIXED, cache=0.15))
AT_ONE = 7.0
BEHIND = 0.85  # a uniform stream: CMESHJOIN a little behind, by no more than this
PAIRS = (
    Pair("cmeshjoin", "meshjoin", {"skew": {1.0: AT_ONE}}),
    Pair(FIXED, "meshjoin"),
    Pair("sweepjoin", "meshjoin"),
)


def run_all(run: Run) -> Iterator[Row]:
    yield from each(front.by_skew(run, LINES), measure, told)


def judge(rows: Sequence[Row]) -> Verdict:
    disk = front.of_part(rows, "skew")
    gain = front.ratio_at(disk, "cmeshjoin", "meshjoin")
    mesh = {r["x"]: r["rate"] for r in where(disk, line="meshjoin")}
    skewed = [g for skew, g in gain.items() if skew > 0]
    strongly = [g for skew, g in gain.items() if skew >= 0.5]
    rising = sorted(strongly) == strongly
    core = rising and all(g > 1 for g in strongly) and BEHIND <= gain[0.0] <= 1.02
    falls = mesh[max(mesh)] / mesh[0.0]
    full = all(g > 1 for g in skewed) and front.within(gain[1.0], AT_ONE) and 0.8 <= falls < 1
    word = REPRODUCED if core and full else DIRECTION if core else NOT
    ours = ", ".join(f"{g:.2f} x at skew {skew:g}" for skew, g in gain.items())
    return Verdict(word, f"{ours}; MESHJOIN at skew 1 is {falls:.2f} of skew 0", reason(disk))


def reason(disk: Sequence[Row]) -> str:
    hits = {r["x"]: r["hits"] or 0.0 for r in where(disk, line="cmeshjoin")}
    said = ", ".join(f"{h:.0%} at {skew:g}" for skew, h in hits.items())
    error = [r["predicted"] / r["rate"] - 1 for r in where(disk, line={"meshjoin", "cmeshjoin"})]
    swept = front.ratio_at(disk, "sweepjoin", "cmeshjoin")
    fixed = front.ratio_at(disk, FIXED, "meshjoin")
    law = ", ".join(f"{front.law_gain(0.1, skew):.2f} x at {skew:g}" for skew in hits)
    return (
        f"The gain follows the hits ({said}); the model, which knows only these and the memory "
        f"left to the scan, is within {max(map(abs, error)):.0%} of every rate of both. "
        f"Eq. 4 with the best cache allows {law} for 100 M rows. "
        "MESHJOIN's cycle and slots do not depend on the stream's keys, and the processor of the "
        "papers' days is charged alike for all keys, so a fall there has no cause in the model. "
        f"With a cache of 15 % throughout it is {fixed[0.0]:.2f} x at skew 0 and {fixed[1.0]:.2f} "
        "x at skew 1. "
        f"sweepjoin is {span(swept.values(), '{:.2f}')} x CMESHJOIN."
    )


def draw(rows: Sequence[Row]) -> charts.Figure:
    own = max(r["rows"] for r in rows)
    return by_skew(
        rows,
        f"P0.3  rate by skew, {own / 1e6:g} M x 120 B (100 M in the paper), memory 10 %",
        PAIRS,
    )


EXPERIMENT = Experiment(
    id="P0.3",
    title="CMESHJOIN and MESHJOIN by skew",
    claim="CMESHJOIN is ahead for every skew above 0; MESHJOIN falls slightly as skew grows",
    paper="about 7 x at skew 1; a little behind by a constant factor at skew 0; MESHJOIN falls "
    "slightly",
    method=f"Steady state, warm cache, memory 10 % of R; {front.SWEPT_ROWS / 1e6:g} M rows at "
    "laptop scale. The share of the cache is tuned by the model for each skew.",
    minutes={"smoke": 0.1, "laptop": 1.0, "paper": 90},
    measure=run_all,
    judge=judge,
    draw=draw,
)
