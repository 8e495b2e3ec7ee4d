"""The words of the commands about speed: calibrate, plan."""

from __future__ import annotations

from typing import Any

from . import plan_commands as run
from .commands import place
from .words import command, local

_CALIBRATE = """\
Measure what joins cost on this machine, in less than a minute: what the processor takes for each
operation, by the size of the tables, from short joins that really run; and, with MASTER, what
reading it takes, by the size of reads and how many are in flight. The result is kept as a file, and
plans use it from then on. A quiet machine gives better numbers."""

_PLAN = """\
Say, before anything runs, which algorithm would join a stream with MASTER in so much memory, how
the memory would be divided, how many rows per second to expect, and why the other algorithms lose.
What the stream is like is found in --sample, or said with --skew; costs come from `semistream
calibrate`, or are assumed."""


def add_plans(found: Any) -> None:
    _add_calibrate(found)
    _add_plan(found)


def _add_calibrate(found: Any) -> None:
    examples = (
        "  semistream calibrate\n"
        "  semistream calibrate products --seconds 30\n"
        "  semistream calibrate s3://bucket/products --out machine.json"
    )
    parser = command(
        found, "calibrate", _CALIBRATE, run.calibrate, "measure this machine", examples
    )
    add = parser.add_argument
    add("master", nargs="?", type=place, metavar="MASTER", help="a store, or a file with --key")
    add("--key", metavar="A,B", help="key of a master that is not a store")
    add("--seconds", type=float, default=50.0, metavar="N", help="to measure for [50]")
    add("--out", type=local, metavar="FILE", help="where to keep the result [the user's cache]")


def _add_plan(found: Any) -> None:
    examples = (
        "  semistream plan products --on product_id --memory 64MB\n"
        "  semistream plan products --on product_id --memory 10% --sample sales.parquet\n"
        "  semistream plan products --on product_id --rate 200000\n"
        "  semistream plan products --on product_id --memory 64MB --device hdd-7200 --json"
    )
    parser = command(found, "plan", _PLAN, run.plan, "which algorithm, and how fast", examples)
    add = parser.add_argument
    add("master", type=place, metavar="MASTER", help="a store, Parquet, or a database's address")
    add(
        "--on",
        action="append",
        required=True,
        metavar="KEY",
        help="column to join on; STREAM=MASTER if the names differ; several: a,b",
    )
    add("--memory", default="64MB", metavar="SIZE", help="64MB, or 10%% of the master [64MB]")
    add("--sample", type=local, metavar="FILE", help="rows of the stream, in the order they came")
    add("--skew", type=float, metavar="X", help="Zipf exponent of the popularity of keys [1]")
    add("--columns", metavar="A,B", help="columns of the master in the output [all]")
    add("--algorithm", default="auto", metavar="NAME", help="only this one [auto: all]")
    add("--rate", type=float, metavar="N", help="the least memory for so many rows per second")
    add("--device", metavar="NAME", help="as if on another device: hdd-7200, ssd, object-store")
    add("--machine", type=local, metavar="FILE", help="costs that calibrate --out has written")
