"""The laws of the cost model against the real joins: the size of the cache, the rows that one read
answers, the size of the disk buffer.

    python -m benchmarks.laws --quick          about a minute: does everything work here?
    python -m benchmarks.laws                  a master of 1 M rows
    python -m benchmarks.laws --only reads     one of cache, reads, buffer

The joins run on a modelled disk: pages are really read, time is the device's and the processor's of
the papers, and a second run gives the same numbers. The first and the third law are also run on the
real device, mapped and by pread, where time is measured and other programs disturb.

Writes to --out: laws-cache.csv, laws-reads.csv and laws-buffer.csv, a manifest and a chart (.png)
for each, and data/ (kept for the next run).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import laws_buffer, laws_cache, laws_chart, laws_reads
from benchmarks.laws_cell import Table, table_of
from benchmarks.report import keep, parse_count, say

LAWS = ("cache", "reads", "buffer")
Rows = list[dict[str, Any]]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laws",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=parse_count, help="master rows [1M]")
    add("--only", choices=LAWS, action="append", help="this law; may be given again [all]")
    add("--modelled", action="store_true", help="leave the real device out")
    add("--out", type=Path, default=Path("bench-out/laws"), help="folder to write [%(default)s]")
    add("--seed", type=int, default=11, help="of the stream [%(default)s]")
    add("--quick", action="store_true", help="a master of 100k rows, few settings")
    chosen = parser.parse_args(arguments)
    chosen.rows = chosen.rows or (100_000 if chosen.quick else 1_000_000)
    chosen.only = chosen.only or list(LAWS)
    return chosen


# --- the laws -----------------------------------------------------------------------------------


def cache(args: argparse.Namespace, table: Table) -> Rows:
    plan = laws_cache.Plan()
    if args.quick:
        plan = laws_cache.Plan(skews=(1.0,), memories=(0.1,), shares=(0.0, 0.05, 0.15, 0.3, 0.6),
                               real=("map",))  # fmt: skip
    if args.modelled:
        plan = laws_cache.without_real(plan)
    rows = list(laws_cache.measure(plan, table, args.seed))
    laws_cache.tell(rows, table, plan)
    return rows


def reads(args: argparse.Namespace, table: Table) -> Rows:
    plan = laws_reads.Plan()
    if args.quick:
        plan = laws_reads.Plan(skews=(0.0, 1.0), memories=(0.1,))
    rows = list(laws_reads.measure(plan, table, args.seed))
    laws_reads.tell(rows)
    return rows


def buffer(args: argparse.Namespace, table: Table) -> Rows:
    plan = laws_buffer.Plan()
    if args.quick:
        plan = laws_buffer.Plan(memories=(20e6,), buffers=laws_buffer.BUFFERS[::2], real=("pread",))
    if args.modelled:
        plan = laws_buffer.without_real(plan)
    rows = list(laws_buffer.measure(plan, table, args.seed))
    laws_buffer.tell(rows, table)
    return rows


MEASURE: dict[str, Callable[[argparse.Namespace, Table], Rows]] = {
    "cache": cache,
    "reads": reads,
    "buffer": buffer,
}
DRAW = {
    "cache": laws_chart.draw_cache,
    "reads": laws_chart.draw_reads,
    "buffer": laws_chart.draw_buffer,
}


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    folder = args.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(folder, args.rows)
    for law in args.only:
        rows = MEASURE[law](args, table)
        kept = keep(args.out, f"laws-{law}", rows, args)
        DRAW[law](rows, args.out / f"laws-{law}.png")
        say(f"wrote {kept}, and laws-{law}.png\n")


if __name__ == "__main__":
    main()
