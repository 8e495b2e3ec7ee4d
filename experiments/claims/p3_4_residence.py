"""P3.4: how long a stream row stays in the join (section 5.2.2, figure 6)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from experiments.data.products import products_for, share_of
from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib.cell import HDD, HERE, PAPER, Cell, cell, machine_of
from experiments.lib.measure import Course, interval
from experiments.lib.paper_cpu import PAPER_CPU, cpu_seconds
from experiments.lib.rows import one, span, values, where
from semistream.kernels.arrays import F64
from semistream.planning.predict import predict

ALGORITHMS = ("meshjoin", "cmeshjoin", "hybridjoin", "chybridjoin", "sweepjoin", "memory")
PAIRS = (("cmeshjoin", "meshjoin"), ("chybridjoin", "hybridjoin"))
BATCH = 1_000  # a row waits for those of its batch too: few of them


class Stays(Course):
    """A join whose rows carry the number of their batch, so that each answer tells how long it took
    by the clock. The next batch comes when the join has taken this one: none waits to arrive."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.pushed: list[F64] = []  # when each batch was: by the clock of each processor
        self.stayed: F64 = np.zeros(len(self.processors))
        self.left = 0

    def now(self) -> F64:
        if self.cell.device is None:
            return np.array([self.busy])
        disk, spent = self.clock(), self.join.stats
        paper = cpu_seconds(self.first, spent, self.page_rows, PAPER_CPU)
        return np.array([disk + paper, disk + self.busy])

    def go(self) -> None:
        batch = next(self._batches)
        number = pa.array(np.full(len(batch), len(self.pushed))).cast(batch.schema[2].type)
        batch = pa.RecordBatch.from_arrays([*batch.columns[:2], number], schema=batch.schema)
        self.pushed.append(self.now())
        now = time.process_time if self.cell.device is not None else time.perf_counter
        begin = now()
        for out in self.join.push(batch):
            self.busy += now() - begin
            self._answer(out)
            begin = now()
        self.busy += now() - begin

    def _answer(self, out: pa.RecordBatch) -> None:
        numbers, rows = np.unique(out.column("sold_at").cast(pa.int64()), return_counts=True)
        since = np.array([self.pushed[n] for n in numbers])
        self.stayed = self.stayed + (rows[:, None] * (self.now() - since)).sum(axis=0)
        self.left += len(out)


def stays(wanted: Cell) -> list[Row]:
    """Mean seconds from push to answer, after a warm-up, for each processor."""
    course = Stays(wanted)
    course.warm_up()
    marks = [(course.stayed, course.left)]
    for _ in course.segments():
        marks.append((course.stayed, course.left))
    found = [_row(course, marks, i) for i in range(len(course.processors))]
    course.close()
    return found


def _row(course: Stays, marks: Sequence[tuple[F64, int]], i: int) -> Row:
    cell, cpu = course.cell, course.processors[i]
    means = [(b[0][i] - a[0][i]) / max(1, b[1] - a[1]) for a, b in pairwise(marks)]
    first, last = marks[0], marks[-1]
    stay = (last[0][i] - first[0][i]) / max(1, last[1] - first[1])
    low, high = interval(means, course.phases)
    law = predict(course.found.case, machine_of(cell, cpu))
    # A scan finds a row's match after half of the cycle that the row stays for.
    matched = 0.5 if course.found.case.algorithm.disk == "scan" else 1.0
    return {
        "algorithm": cell.algorithm,
        "device": cell.device.name if cell.device is not None else f"{HERE}, {cell.io}",
        "cpu": cpu,
        "memory": course.found.case.memory,
        "stay": stay,
        "stay_low": max(min(low, stay), stay / 10),
        "stay_high": max(high, stay),
        "predicted": matched * law.work.misses * law.wait_seconds,
        "hits": course.join.stats.front_hits / max(1, course.join.stats.rows_in),
        "slots": course.join.stats.slots,
        "warm_rows": course.warm,
        "timed_rows": last[1] - first[1],
    }


def cells(run: Run) -> Iterator[tuple[Row, Cell]]:
    sizes = run.pick(
        (10_000, 20_000), (400_000, 1_200_000, 2_000_000), (20_000_000, 60_000_000, 100_000_000)
    )
    memory = share_of(sizes[-1], 0.1) * run.pick(5, 1, 1)
    for device in (HDD, None):
        for rows in sizes:
            for algorithm in ALGORITHMS if rows == sizes[-1] else ALGORITHMS[:-1]:
                store = products_for(algorithm, run.data, rows, memory)
                most = 1_000_000 if algorithm == "sweepjoin" else 500_000  # a round is long
                found = cell(
                    run, store, ZipfStream(rows, 1.0), algorithm, memory, device=device,
                    batch_rows=BATCH, segments=4, seconds=run.pick(0.02, 0.4, 2.0),
                    most_rows=200_000 if algorithm == "memory" else run.pick(8_000, most, 10**8),
                )  # fmt: skip
                yield {"size": rows}, found


def told(row: Row) -> str:
    return f"{row['algorithm']}, {row['size']:,} rows, {row['cpu']}: {row['stay']:.3g} s"


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), stays, told)


def judge(rows: Sequence[Row]) -> Verdict:
    disk = where(rows, device=HDD.name, cpu=PAPER)
    sizes = values(disk, "size")

    def stay(name: str, size: int, column: str = "stay") -> float:
        return float(one(disk, algorithm=name, size=size)[column])

    shorter = all(stay(a, n) < stay(b, n) for a, b in PAIRS for n in sizes)
    gaps = {a: [stay(b, n) - stay(a, n) for n in sizes] for a, b in PAIRS}
    grows = all(x < y for gap in gaps.values() for x, y in pairwise(gap))
    mesh_grows = all(x < y for x, y in pairwise(gaps["cmeshjoin"]))
    word = NOT
    if shorter:
        word = REPRODUCED if grows else DIRECTION
    largest, swept = sizes[-1], [stay("sweepjoin", n) for n in sizes]
    ours = "; ".join(
        f"{b} {stay(b, largest):.2f} s, with a front stage {stay(a, largest):.2f} s"
        for a, b in PAIRS
    )
    close = [stay(a, n) / max(1e-9, stay(a, n, "predicted")) for pair in PAIRS for a in pair
             for n in sizes]  # fmt: skip
    both = "both pairs" if grows else "meshjoin only" if mesh_grows else "not every pair"
    return Verdict(
        word,
        f"{ours} ({largest / 1e6:g} M rows); the gap by R is "
        f"{', '.join(f'{gap:.2f}' for gap in gaps['cmeshjoin'])} s for cmeshjoin and "
        f"{', '.join(f'{gap:.2f}' for gap in gaps['chybridjoin'])} s for chybridjoin; "
        f"sweepjoin stays {', '.join(f'{s:.2f}' for s in swept)} s",
        "Rows that the front stage answers stay for no time, and the others share a faster cycle. "
        f"A row stays as long as the waiting rows take to be served (Little's law): measured is "
        f"{span(close, '{:.2f}')} of the model. The gap grows with R in {both}. "
        "The paper prints no number.",
    )


def draw(rows: Sequence[Row]) -> charts.Figure:
    most = max(row["size"] for row in rows) / 1e6
    return charts.rates(
        [{**r, "millions": r["size"] / 1e6} for r in rows],
        "millions",
        "rows of R, millions",
        title=f"P3.4  time from loading to match, memory 10 % of {most:g} M x 120 B, Zipf 1",
        y="stay",
        y_label="seconds in the join, mean",
        log="y",
    )


EXPERIMENT = Experiment(
    id="P3.4",
    title="Time in the join by size of R",
    claim="the time from loading to match falls with the front stage, and the gap grows with R",
    paper="a picture without numbers: CMESHJOIN far below MESHJOIN, CHYBRIDJOIN below HYBRIDJOIN, "
    "for 20 to 100 M rows",
    method="Every row carries the number of its batch; the clock is read when the batch is pushed "
    "and when its answer comes out, after a warm-up. No row waits to arrive. Laptop scale is 1/50 "
    "of R and of the memory.",
    minutes={"smoke": 0.1, "laptop": 1.2, "paper": 60},
    measure=run_all,
    judge=judge,
    draw=draw,
)
