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

from benchmarks.laws import buffer, cache, chart, reads
from benchmarks.laws.cell import Table, table_of
from benchmarks.lib.report import keep, parse_count, say

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


def measure_cache(args: argparse.Namespace, table: Table) -> Rows:
    plan = cache.Plan()
    if args.quick:
        plan = cache.Plan(skews=(1.0,), memories=(0.1,), shares=(0.0, 0.05, 0.15, 0.3, 0.6),
                          real=("map",))  # fmt: skip
    if args.modelled:
        plan = cache.without_real(plan)
    rows = list(cache.measure(plan, table, args.seed))
    cache.tell(rows, table, plan)
    return rows


def measure_reads(args: argparse.Namespace, table: Table) -> Rows:
    plan = reads.Plan()
    if args.quick:
        plan = reads.Plan(skews=(0.0, 1.0), memories=(0.1,))
    rows = list(reads.measure(plan, table, args.seed))
    reads.tell(rows)
    return rows


def measure_buffer(args: argparse.Namespace, table: Table) -> Rows:
    plan = buffer.Plan()
    if args.quick:
        plan = buffer.Plan(memories=(20e6,), buffers=buffer.BUFFERS[::2], real=("pread",))
    if args.modelled:
        plan = buffer.without_real(plan)
    rows = list(buffer.measure(plan, table, args.seed))
    buffer.tell(rows, table)
    return rows


MEASURE: dict[str, Callable[[argparse.Namespace, Table], Rows]] = {
    "cache": measure_cache,
    "reads": measure_reads,
    "buffer": measure_buffer,
}
DRAW = {
    "cache": chart.draw_cache,
    "reads": chart.draw_reads,
    "buffer": chart.draw_buffer,
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
