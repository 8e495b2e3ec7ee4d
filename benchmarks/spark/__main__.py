"""enrich() against Spark's own joins: time per steady micro-batch over master size, batch and skew.

    python -m benchmarks.spark --quick                 a few minutes: does everything work here?
    python -m benchmarks.spark                         the full grid, about an hour on two cores
    python -m benchmarks.spark --rows 10M --batches 100k --skews 1 --variants ours,broadcast-batch
    ROWS=100000000 python -m benchmarks.spark          100 M products: 15 GB of disk, and hours
    python -m benchmarks.spark --redraw                table and chart again from the last CSV

Each cell of the grid is one stream of Parquet files, every micro-batch of exactly the same number
of rows, run back to back into a sink that drops them. The first two micro-batches are not counted.
The time is Spark's own `triggerExecution`: planning, reading, joining and the checkpoint, the same
for all variants. Everything read lies in the page cache after the first micro-batch.

Writes to --out: results.csv (a line per cell and variant), batches.csv (every micro-batch),
builds.csv, manifest.json (commit, versions, machine, arguments), batch-time.png and .svg, and
data/, the generated tables, which the next run with the same parameters uses again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.lib import workload
from benchmarks.lib.report import (
    Row,
    count_text,
    manifest,
    parse_count,
    print_table,
    read_csv,
    say,
    write_csv,
    write_manifest,
)
from benchmarks.spark.chart import draw
from benchmarks.spark.data import MASTER, Datasets, start_spark
from benchmarks.spark.measure import WARM_UP, Work, check_answers, compare_builds, measure
from benchmarks.spark.peers import VARIANTS, Setting, Variant
from benchmarks.spark.results import comparison, goals, memory_lines
from semistream.budget.ledger import parse_bytes
from semistream.spark import build_store

_FULL: dict[str, Any] = {
    "rows": [1_000_000, 3_000_000, 10_000_000],
    "batches": [10_000, 100_000, 1_000_000],
    "skews": [0.0, 0.5, 1.0],
    "repeats": 7,
    "turns": 3,
}
_QUICK: dict[str, Any] = {
    "rows": [100_000, 300_000],
    "batches": [10_000],
    "skews": [1.0],
    "repeats": 3,
    "turns": 1,
}
_CHART_BATCH, _CHART_SKEW = 100_000, 1.0


# --- the command line ---------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    variants = "\n".join(f"  {v.name:<20}{v.help}" for v in VARIANTS.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        epilog=f"variants:\n{variants}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=_counts, help="master sizes [1M,3M,10M, or the environment's ROWS]")
    add("--batches", type=_counts, help="rows per micro-batch [10k,100k,1M]")
    add("--skews", type=_floats, help="Zipf exponents of the stream, 0 is uniform [0,0.5,1]")
    add(
        "--memory",
        default="10%",
        help="per task for ours: 120MB or a share of the master [%(default)s]",
    )
    add("--repeats", type=int, help=f"micro-batches counted, after {WARM_UP} that are not [7]")
    add("--variants", type=_variants, default=list(VARIANTS.values()), help="see below [all]")
    add("--build", action=argparse.BooleanOptionalAction, default=True,
        help="also compare build_store with Spark sorting and writing Parquet [yes]")  # fmt: skip
    add("--turns", type=int, help="how often each side builds [3]")
    add("--out", type=Path, default=Path("bench-out/spark"), help="folder to write [%(default)s]")
    add("--seed", type=int, default=7, help="of the stream [%(default)s]")
    add("--driver-memory", default="8g", help="heap; `cached` needs room in it [%(default)s]")
    add("--master", default=MASTER, help="Spark's, such as local-cluster[2,1,2048] [%(default)s]")
    add("--fresh", action="store_true", help="make the data again even if it is there")
    add("--quick", action="store_true", help="small defaults: two small masters, one cell each")
    add("--redraw", action="store_true", help="measure nothing: tables and chart from the CSV")
    chosen = parser.parse_args(arguments)
    _fill_defaults(chosen)
    return chosen


def _fill_defaults(chosen: argparse.Namespace) -> None:
    """What was not asked for comes from ROWS, then from the full or the quick grid."""
    defaults = _QUICK if chosen.quick else _FULL
    if chosen.rows is None and os.environ.get("ROWS"):
        chosen.rows = _counts(os.environ["ROWS"])
    for name, value in defaults.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)


def _counts(text: str) -> list[int]:
    return [parse_count(part) for part in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _variants(text: str) -> list[Variant]:
    unknown = [name for name in text.split(",") if name not in VARIANTS]
    if unknown:
        known = ", ".join(VARIANTS)
        raise argparse.ArgumentTypeError(f"no variant {unknown[0]!r}; there are {known}")
    return [VARIANTS[name] for name in text.split(",")]


# --- the run ------------------------------------------------------------------------------------


@dataclass
class Run:
    """The grid, walked: prepares data, measures each cell, keeps the CSV files up to date."""

    args: argparse.Namespace
    spark: SparkSession
    scratch: Path
    results: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    builds: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = Datasets(self.args.out / "data", self.args.seed, self.args.fresh)
        args = self.args
        jobs = list(product(args.rows, args.batches, args.variants)) * len(args.skews)
        self.clock = Countdown(len(jobs), sum(_guess(*job) for job in jobs))

    def grid(self) -> None:
        for rows in self.args.rows:
            setting = self.prepare(rows)
            for batch, skew in product(self.args.batches, self.args.skews):
                work = self.work(rows, batch, skew)
                for variant in self.args.variants:
                    self.cell(variant, setting, work)

    def prepare(self, rows: int) -> Setting:
        say(f"master {count_text(rows)}: making the data, then comparing all answers to a batch")
        master = self.data.master(self.spark, rows)

        def build(folder: Path) -> None:
            build_store(self.spark.read.parquet(str(master)), str(folder), key=workload.KEY)

        store = self.data.store(rows, build, metadata.version("semistream"))
        memory = parse_bytes(self.args.memory, round(rows * workload.master_row_bytes()))
        setting = Setting(self.spark, rows, master, store, memory)
        work = self.work(rows, max(self.args.batches), self.args.skews[0])
        check_answers(self.args.variants, setting, work)
        if rows == self.args.rows[0]:
            self.warm_up(setting, work)
        return setting

    def warm_up(self, setting: Setting, work: Work) -> None:
        """Everything once uncounted: a cold JVM would slow the first master and flatter growth."""
        say("warming up the JVM: every variant once, not counted")
        for variant in self.args.variants:
            measure(variant, setting, work, self.scratch)

    def work(self, rows: int, batch: int, skew: float) -> Work:
        files = self.data.stream(rows, batch, skew, self.args.repeats + WARM_UP)
        return Work(rows, batch, skew, files)

    def cell(self, variant: Variant, setting: Setting, work: Work) -> None:
        started = time.perf_counter()
        result, batches = measure(variant, setting, work, self.scratch)
        self.results.append(result)
        self.batches.extend(batches)
        write_csv(self.args.out / "results.csv", self.results)
        write_csv(self.args.out / "batches.csv", self.batches)
        taken = time.perf_counter() - started
        left = self.clock.tick(_guess(work.rows, work.batch, variant), taken)
        say(
            f"{left}  master {count_text(work.rows)}, batch {count_text(work.batch)}, "
            f"Zipf {work.skew:g}, {variant.name}: {result['seconds']:.3g} s"
        )

    def build(self) -> None:
        rows = max(self.args.rows)
        say(f"building a sorted master of {count_text(rows)} rows, {self.args.turns} times each")
        master = self.data.master(self.spark, rows)
        self.builds = compare_builds(self.spark, master, rows, self.args.turns, self.scratch)
        write_csv(self.args.out / "builds.csv", self.builds)


@dataclass
class Countdown:
    """How far we are, and roughly how long the rest takes at the pace so far."""

    jobs: int
    work: float
    done: int = 0
    work_done: float = 0.0
    seconds: float = 0.0

    def tick(self, work: float, seconds: float) -> str:
        self.done += 1
        self.work_done += work
        self.seconds += seconds
        left = self.seconds / self.work_done * (self.work - self.work_done)
        return f"[{self.done}/{self.jobs}, about {left / 60:.0f} min left]"


def _guess(rows: int, batch: int, variant: Variant) -> float:
    """Expected seconds per micro-batch, only to weigh the jobs against each other."""
    return 0.4 + batch / 1e6 + variant.scan * rows / 1e6


# --- what comes out -----------------------------------------------------------------------------


def present(out: Path, results: Sequence[Row], builds: Sequence[Row]) -> None:
    """The tables on the screen and the chart on disk, from rows as they stand in the CSV files."""
    _titled("Seconds per micro-batch (steady, noop sink)", comparison(results))
    _titled("Memory of the largest Python worker (RssAnon)", memory_lines(results))
    _titled("Building a sorted master, seconds", builds)
    _titled("Goals, each at its worst cell", goals(results, builds))
    batches, skews = ({row[name] for row in results} for name in ("batch", "skew"))
    batch = _CHART_BATCH if _CHART_BATCH in batches else max(batches)
    skew = _CHART_SKEW if _CHART_SKEW in skews else max(skews)
    for path in draw(results, batch, skew, out):
        say(f"wrote {path}")


def _titled(title: str, rows: Sequence[Row]) -> None:
    if rows:
        say(f"\n{title}\n")
        print_table(rows)


def redraw(out: Path) -> None:
    builds = out / "builds.csv"
    present(out, read_csv(out / "results.csv"), read_csv(builds) if builds.exists() else [])


def run(args: argparse.Namespace) -> None:
    scratch = args.out / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    spark = start_spark(scratch.resolve(), args.driver_memory, args.master)
    write_manifest(args.out / "manifest.json", _manifest(args))
    try:
        walk = Run(args, spark, scratch)
        walk.grid()
        if args.build:
            walk.build()
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    present(args.out, walk.results, walk.builds)


def _manifest(args: argparse.Namespace) -> dict[str, Any]:
    arguments = vars(args) | {"variants": [variant.name for variant in args.variants]}
    return manifest(arguments, args.seed, figure="durationMs.triggerExecution", dropped=WARM_UP)


def main() -> None:
    args = parse()
    if args.redraw:
        redraw(args.out)
    else:
        run(args)


if __name__ == "__main__":
    main()
