"""enrich() against Spark's own joins: time per steady micro-batch over master size, batch and skew.

    python -m benchmarks.spark --quick                 a few minutes: does everything work here?
    python -m benchmarks.spark                         the full grid, about an hour on two cores
    python -m benchmarks.spark --rows 10M --batches 100k --skews 1 --variants ours,broadcast-batch
    ROWS=100000000 python -m benchmarks.spark          100 M products: 15 GB of disk, and hours
    python -m benchmarks.spark --redraw                table and chart again from the last CSV

Each cell of the grid is one stream of Parquet files, exactly one micro-batch per trigger, run back to
back into a sink that drops every row. The first two micro-batches are not counted. The time is
Spark's own `triggerExecution`: planning, reading, joining and the checkpoint, the same for all.

Writes to --out: results.csv (a line per cell and variant), batches.csv (every micro-batch),
builds.csv, manifest.json (commit, versions, machine, arguments), batch-time.png and .svg, and data/,
the generated tables, which the next run with the same parameters uses again.
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

from benchmarks import workload
from benchmarks.report import (
    count_text,
    manifest,
    parse_bytes,
    parse_count,
    print_table,
    read_csv,
    write_csv,
    write_manifest,
)
from benchmarks.spark_chart import draw
from benchmarks.spark_data import Datasets, start_spark
from benchmarks.spark_measure import WARM_UP, Work, check_answers, compare_builds, measure
from benchmarks.spark_peers import VARIANTS, Setting, Variant
from benchmarks.spark_results import comparison, goals, memory_lines
from semistream.spark import build_store

_FULL = {"rows": "1M,3M,10M", "batches": "10k,100k,1M", "skews": "0,0.5,1", "repeats": 7, "turns": 3}
_QUICK = {"rows": "100k,300k", "batches": "10k", "skews": "1", "repeats": 3, "turns": 1}
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
    add("--skews", type=_floats, help="Zipf exponents of the stream, 0 = uniform [0,0.5,1]")
    add("--memory", default="10%", help="memory per task for ours: 120MB, or a share of the master's bytes [%(default)s]".replace("10%%", "10%%"))
    add("--repeats", type=int, help=f"micro-batches counted, after {WARM_UP} that are not [7]")
    add("--variants", type=_variants, default=",".join(VARIANTS), help="which to run, see below [all]")
    add("--build", action=argparse.BooleanOptionalAction, default=True, help="also compare build_store with Spark's sort and Parquet write [yes]")
    add("--turns", type=int, help="times each side builds [3]")
    add("--out", type=Path, default=Path("bench-out/spark"), help="where results and data go [%(default)s]")
    add("--seed", type=int, default=7, help="of the stream [%(default)s]")
    add("--driver-memory", default="8g", help="heap of the one JVM; `cached` needs room for the master [%(default)s]")
    add("--fresh", action="store_true", help="make the data again even if it is there")
    add("--quick", action="store_true", help="small defaults: two small masters, one cell each")
    add("--redraw", action="store_true", help="measure nothing: table and chart from --out's CSV files")
    chosen = parser.parse_args(arguments)
    return _with_defaults(parser, chosen)
