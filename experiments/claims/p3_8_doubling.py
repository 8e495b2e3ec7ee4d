"""P3.8: the master doubles while the join runs (section 5.4, figure 9e)."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.running import answered
from experiments.data.products import products, share_of
from experiments.data.streams import ZipfStream
from experiments.lib import DIRECTION, NOT, REPRODUCED, Experiment, Row, Run, Verdict, charts, each
from experiments.lib.cell import HDD, HERE, PAPER, Cell, cell, planned
from experiments.lib.cell import machine_of as machine
from experiments.lib.measure import Course, Point, _seconds
from experiments.lib.modelled import DeviceUse
from experiments.lib.rows import values, where
from semistream.planning.predict import predict

ALGORITHMS = ("cmeshjoin", "meshjoin", "sweepjoin", "memory")
SLICE = 500_000  # rows that are made at a time
PROBES = 1_000  # rows that ask for the second half, before it is there and after


@dataclass(frozen=True)
class Todo:
    cell: Cell
    rows: int  # before; as many again come
    window: int  # rows pushed per point of the curve, at least
    windows: tuple[int, int]  # before and after


class Doubling(Course):
    """Rows that must match are counted as they are pushed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.keys_out, self.keys_in, self.must = 0, 0, 0

    def ask(self, batch: pa.RecordBatch, match: bool = True) -> None:
        """Push a batch; `match`: all its rows have a match, else none has."""
        if match:
            self.must += len(batch)
            self.keys_in += pc.sum(batch.column(0)).as_py()
        self._read(lambda: self.join.push(batch))

    def go(self) -> None:
        self.ask(next(self._batches))

    def point(self) -> Point:
        """By the clock: the new version of the master counts its use from 0."""
        disk = self.clock() if self.cell.device is not None else 0.0
        return Point(self.join.stats, DeviceUse(seconds=disk), self.busy)

    def _read(self, call: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """All answers of a call; the call itself does a part of the work."""
        now = time.process_time if self.cell.device is not None else time.perf_counter
        begin = now()
        for out in call():
            self.keys_out += pc.sum(out.column(workload.KEY)).as_py()
        self.busy += now() - begin

    def double(self, path: Path, rows: int) -> None:
        """Another writer appends as many rows again; the join goes over to them."""
        store = ss.Store.open(path)
        for first in range(rows, 2 * rows, SLICE):
            newer = store.append(workload.master_table(first, min(SLICE, 2 * rows - first)))
            store.close()
            store = newer
        store.close()
        self._read(self.join.refresh)
        self.master = self.join.master


def probes(rows: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    some = workload.stream_table(rng, PROBES, rows, 0.0).combine_chunks().to_batches()[0]
    keys = pc.add(some.column(0), rows)
    return pa.RecordBatch.from_arrays([keys, *some.columns[1:]], schema=some.schema)


def double(todo: Todo) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        shutil.copytree(todo.cell.store, path)
        wanted = replace(todo.cell, store=path)
        course = Doubling(wanted)
        course.warm_up()
        found = _windows(course, todo, wanted)
        first = course.point()
        asked = probes(todo.rows, wanted.seed)
        course.ask(asked, match=False)
        course._read(course.join.drain)
        right = course.join.stats.rows_unmatched == PROBES
        matched = course.join.stats.rows_matched
        right = right and matched == course.must
        course.double(path, todo.rows)
        course.ask(asked)
        batch_rows = course.found.case.workload.batch_rows
        both = ZipfStream(2 * todo.rows, 1.0)
        course._batches = both.batches(wanted.seed + 1, batch_rows)
        wanted = replace(wanted, stream=both)
        info = course.master.describe()
        course.page_rows = info.rows / max(1, info.pages)
        found += _windows(course, todo, wanted, first)
        course._read(course.join.drain)
        stats = course.join.stats
        right = right and stats.rows_matched == course.must and stats.rows_unmatched == PROBES
        right = right and course.keys_out == course.keys_in  # and each with its own key
        size = course.join.master.describe().rows
        course.close()
    begin = found[0]["million"] - todo.window / 1e6
    return [
        {**row, "million": row["million"] - begin, "right": int(right), "rows_of_r": size,
         "matched": stats.rows_matched, "must_match": course.must}
        for row in found
    ]  # fmt: skip


def _windows(course: Doubling, todo: Todo, wanted: Cell, first: Point | None = None) -> list[Row]:
    """After the doubling the first window begins at `first`, before what waited was answered."""
    found: list[Row] = []
    count, when = (todo.windows[0], "before") if first is None else (todo.windows[1], "after")
    law = planned(wanted, course.master)
    for number in range(count):
        first = course.point() if first is None or number else first
        course._to_the_end_of_a_step(todo.window, 0.0)  # a sweep answers many at once
        last = course.point()
        done = answered(last.stats) - answered(first.stats)
        came = last.stats.rows_in - first.stats.rows_in
        for cpu in course.processors:
            found.append(
                {
                    "algorithm": wanted.algorithm,
                    "device": HDD.name if wanted.device is not None else f"{HERE}, {wanted.io}",
                    "cpu": cpu,
                    "when": when,
                    "window": number,
                    "million": last.stats.rows_in / 1e6,
                    "rate": done / _seconds(course, first, last, cpu),
                    "predicted": predict(law.case, machine(wanted, cpu)).rate,
                    "hits": (last.stats.front_hits - first.stats.front_hits) / came,
                }
            )
    return found


def cells(run: Run) -> Iterator[tuple[Row, Todo]]:
    rows = run.pick(10_000, 1_000_000, 50_000_000)
    memory = share_of(2 * rows, 0.1) * run.pick(10, 1, 1)
    store = products(run.data, rows)
    for device in (HDD, None):
        for algorithm in ALGORITHMS:
            found = cell(run, store, ZipfStream(rows, 1.0), algorithm, memory, device=device,
                         most_rows=run.pick(10_000, 400_000, 10**8),
                         warm_rows=200_000 if algorithm == "memory" and run.scale != "smoke"
                         else None)  # fmt: skip
            window = run.pick(5_000, 120_000, 6_000_000)
            yield {"size": rows}, Todo(found, rows, window, run.pick((2, 3), (3, 9), (4, 12)))


def _told(row: Row) -> str:
    rate = f"{row['rate']:,.0f}"
    return rate if row["window"] else f"{row['algorithm']} {row['when']} {rate}"


def run_all(run: Run) -> Iterator[Row]:
    yield from each(cells(run), double, _told)


# --- the verdict ---------------------------------------------------------------------------------


def judge(rows: Sequence[Row]) -> Verdict:
    mine = where(rows, device=HDD.name, cpu=PAPER, algorithm="cmeshjoin")
    before, after = (where(mine, when=when) for when in ("before", "after"))
    right = all(row["right"] for row in rows)
    third = max(1, len(after) // 3)
    last = _mean(after[-third:])
    settled = abs(last / _mean(after[-2 * third : -third] or after) - 1) < 0.1
    law = after[-1]["predicted"]
    word = NOT
    if right and settled:
        word = REPRODUCED if abs(last / law - 1) < 0.25 else DIRECTION
    lowest = min(float(row["rate"]) for row in after)
    algorithms = len(values(rows, "algorithm"))
    ours = where(rows, device=HDD.name, cpu=PAPER, algorithm="sweepjoin", when="after")
    return Verdict(
        word,
        f"cmeshjoin {_mean(before):,.0f} rows/s before, {lowest:,.0f} at the lowest, {last:,.0f} "
        f"in the end; {'every' if right else 'NOT every'} row that must match did, for "
        f"{algorithms} algorithms on two devices; sweepjoin ends with {ours[-1]['rate']:,.0f}",
        f"The model says {before[-1]['predicted']:,.0f} rows/s before and {law:,.0f} for twice the "
        "rows: the cycle is twice as long and the same cache has a smaller part of R. The dip is "
        "the front stage that has to find other keys: hits go from "
        f"{before[-1]['hits']:.2f} to {after[0]['hits']:.2f} and come back to "
        f"{after[-1]['hits']:.2f} (sweepjoin's to {ours[-1]['hits']:.2f}). The paper prints no "
        "number.",
    )


def _mean(rows: Sequence[Row]) -> float:
    return sum(float(row["rate"]) for row in rows) / len(rows)


def _since_doubling(rows: Sequence[Row]) -> list[Row]:
    """Windows end with a step, so that R does not double after as many rows in every join."""
    change = max(row["million"] for row in where(rows, when="before"))
    return [{**row, "since": row["million"] - change} for row in rows]


def draw(rows: Sequence[Row]) -> charts.Figure:
    places = list(dict.fromkeys((row["device"], row["cpu"]) for row in rows))
    figure, flat = charts.panels(len(places))
    for panel, (device, cpu) in zip(flat, places, strict=True):
        mine = where(rows, device=device, cpu=cpu)
        for name in values(mine, "algorithm"):
            charts.curve(panel, _since_doubling(where(mine, algorithm=name)), "since", name)
        panel.axvline(0, color="#888888", linewidth=1, linestyle="--", label="R doubles")
        charts.axes(panel, "stream rows since R doubled, millions", "stream rows per second", "y")
        panel.set_title(f"{device}, {cpu}", fontsize=10)
    size = rows[0]["size"] / 1e6
    return charts.finished(
        figure,
        f"P3.8  R doubles from {size:g} M to {2 * size:g} M rows while the "
        "join runs; memory 10 % of the larger, Zipf 1",
    )


EXPERIMENT = Experiment(
    id="P3.8",
    title="The master doubles online",
    claim="R can be doubled while the join runs: answers stay right and the rate settles",
    paper="50 M rows, then 50 M more; a picture without numbers: a dip, then a steady lower rate",
    method="Warm, then as many rows again are appended to the store and the join refreshed; the "
    "stream then asks for both halves. Every match is counted against what must match. Laptop "
    "scale is 1/50 of R and of the memory.",
    minutes={"smoke": 0.1, "laptop": 0.8, "paper": 60},
    measure=run_all,
    judge=judge,
    draw=draw,
)
