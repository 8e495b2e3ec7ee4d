"""The join itself, without Spark: rows per second of each algorithm against the bound `memory`.

    python -m benchmarks.core --quick          a minute: does everything work here?
    python -m benchmarks.core                  10 M rows of about 120 bytes, about 15 minutes

Every cell (skew x memory x algorithm x way of reading) runs in its own process: it builds the join,
warms it up, then times segments of the stream with all columns of the output built. Rounds go over
all cells in turn, so that a noisy minute hits all of them; ratios are taken within a round.
Reported apart: the store mapped and in the page cache (map), read by pread from the page cache
(pread), and read after the page cache was told to forget it (cold).

Writes to --out: core.csv, core-manifest.json, core.png, and data/ (kept for the next run).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from benchmarks.core.cell import Cell, probe_rate, run
from benchmarks.core.chart import draw
from benchmarks.lib import workload
from benchmarks.lib.report import (
    count_text,
    keep,
    parse_count,
    print_table,
    spread,
)
from benchmarks.lib.running import in_fresh_process
from benchmarks.lib.stores import BATCH, store_of, with_text

BOUNDED = [name for name in ss.ALGORITHMS if name not in ("memory", "sweepjoin")]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=parse_count, help="master rows [10M]")
    add("--stream", type=parse_count, help="timed stream rows per cell [4M]")
    add("--warm", type=parse_count, help="stream rows before timing begins [8M]")
    add("--rounds", type=int, help="times that all cells are run [3]")
    add("--out", type=Path, default=Path("bench-out/core"), help="folder to write [%(default)s]")
    add("--seed", type=int, default=11, help="of the stream [%(default)s]")
    add("--quick", action="store_true", help="a master of 300k rows, one round")
    chosen = parser.parse_args(arguments)
    full = {"rows": 10_000_000, "stream": 4_000_000, "warm": 8_000_000, "rounds": 3}
    quick = {"rows": 300_000, "stream": 400_000, "warm": 400_000, "rounds": 1}
    for name, value in (quick if chosen.quick else full).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


# --- data ---------------------------------------------------------------------------------------


def stream_of(folder: Path, args: argparse.Namespace, rows: int, skew: float, text: bool) -> Path:
    total = args.warm + args.stream
    path = folder / f"sales-{rows}-{skew}-{total}-{args.seed}{'-text' if text else ''}.arrow"
    if not path.exists():
        print(f"  making {path.name} ...", flush=True)
        table = workload.stream_table(np.random.default_rng(args.seed), total, rows, skew)
        table = with_text(table) if text else table
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table.combine_chunks(), max_chunksize=BATCH)
    return path


# --- cells --------------------------------------------------------------------------------------


def cells(args: argparse.Namespace, folder: Path) -> list[tuple[dict[str, Any], Cell]]:
    found = []
    for skew in (1.0, 0.0):
        found.append(_cell(args, folder, args.rows, skew, "memory", "100%", "map"))
        for memory in ("10%", "1%"):
            for io in ("map", "pread", "cold"):
                found.append(_cell(args, folder, args.rows, skew, "sweepjoin", memory, io))
            for name in BOUNDED:
                found.append(_cell(args, folder, args.rows, skew, name, memory, "map"))
    small = max(1, args.rows // 10)
    found.append(_cell(args, folder, small, 1.0, "sweepjoin", "10%", "map"))
    small_cache = max(1, args.rows // 100)  # fits the front stage: every row a hit
    for text in (False, True):
        found.append(_cell(args, folder, small_cache, 0.0, "sweepjoin", "400%", "map", text))
    return found


def _cell(
    args: argparse.Namespace,
    folder: Path,
    rows: int,
    skew: float,
    algorithm: str,
    memory: str,
    io: str,
    text: bool = False,
) -> tuple[dict[str, Any], Cell]:
    label = {"rows": count_text(rows), "skew": skew, "memory": memory, "algorithm": algorithm,
             "io": io, "key": "string" if text else "int"}  # fmt: skip
    less = _shorter(algorithm, memory, io)
    cell = Cell(
        store=store_of(folder, rows, text),
        stream=stream_of(folder, args, rows, skew, text),
        key="code" if text else workload.KEY,
        algorithm=algorithm,
        memory="600%" if algorithm == "memory" else memory,
        io="pread" if io == "pread" else "map",
        cold=io == "cold",
        warm_rows=args.warm // less,
        timed_rows=args.stream // less,
        segments=3,
    )
    return label, cell


def _shorter(algorithm: str, memory: str, io: str) -> int:
    """How many times shorter the stream of a slow cell is. A scan's warm-up must fill its window, a
    front stage's must find the hot keys."""
    if algorithm in ("memory", "sweepjoin"):
        return 10 if io == "pread" and memory == "1%" else 1
    return 8 if memory == "1%" else 3


def measure(label: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Run the cell in a fresh process."""
    found = in_fresh_process(run, cell)
    if found["matched"] != found["stream_rows"]:
        matched, rows = found["matched"], found["stream_rows"]
        raise SystemExit(f"wrong answer in {label}: {matched} of {rows} matched")
    return {**label, **found}


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    folder = args.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    plan = cells(args, folder)
    results: list[dict[str, Any]] = []
    for turn in range(args.rounds):
        for i, (label, cell) in enumerate(plan):
            found = measure(label, cell)
            rate = statistics.median(found["rates"])
            where = f"round {turn + 1}/{args.rounds}, cell {i + 1}/{len(plan)}"
            what = " ".join(map(str, label.values()))
            print(f"  {where}: {what}: {rate / 1e6:.2f} M rows/s", flush=True)
            results.append({**found, "round": turn, "rate": rate})
    rows = summary(results)
    probes = probe_rate(store_of(folder, args.rows, False), min(1_000_000, args.rows), 1.0)
    report(args, rows, probes)


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per cell: medians over rounds, ratios to `memory` and `inlj` within a round."""
    keys = ("rows", "skew", "memory", "algorithm", "io", "key")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for found in results:
        groups.setdefault(tuple(found[k] for k in keys), []).append(found)
    lines = []
    for names, same in groups.items():
        rate = spread(f["rate"] for f in same)
        line = dict(zip(keys, names, strict=True))
        line |= {"rows_per_s": rate.median, "low": rate.low, "high": rate.high}
        line["of_memory"] = _ratio(results, same, "memory", None)
        line["of_inlj"] = _ratio(results, same, "inlj", line["memory"])
        for name in ("hit_ratio", "pages_per_row", "bytes_per_row", "peak_bytes", "budget_bytes",
                     "rss_above_baseline"):  # fmt: skip
            line[name] = statistics.median(f[name] for f in same)
        lines.append(line)
    return lines


def _ratio(
    results: list[dict[str, Any]], found: list[dict[str, Any]], peer: str, memory: str | None
) -> float | None:
    ratios = []
    for f in found:
        for other in results:
            same = all(other[k] == f[k] for k in ("rows", "skew", "key", "round"))
            if same and other["algorithm"] == peer and memory in (None, other["memory"]):
                ratios.append(f["rate"] / other["rate"])
    return statistics.median(ratios) if ratios else None


def report(args: argparse.Namespace, rows: list[dict[str, Any]], probes: list[float]) -> None:
    shown = [
        {
            **{k: r[k] for k in ("rows", "skew", "memory", "algorithm", "io", "key")},
            "M rows/s": r["rows_per_s"] / 1e6,
            "spread": f"{r['low'] / 1e6:.2f}-{r['high'] / 1e6:.2f}",
            "/memory": r["of_memory"],
            "/inlj": r["of_inlj"],
            "hits": r["hit_ratio"],
            "pages/row": r["pages_per_row"],
            "kB/row": r["bytes_per_row"] / 1e3,
            "held MB": r["peak_bytes"] / 1e6,
            "budget MB": r["budget_bytes"] / 1e6,
            "RSS+ MB": r["rss_above_baseline"] / 1e6,
        }
        for r in rows
    ]
    print()
    print_table(shown)
    rate = spread(probes)
    print(f"\nmeshjoin, 1 M rows waiting: {rate.median / 1e6:.1f} M master rows probed per second "
          f"({rate.low / 1e6:.1f}-{rate.high / 1e6:.1f})")  # fmt: skip
    growth = _growth(args, rows)
    if growth is not None:
        print(
            f"sweepjoin at 10 %, Zipf 1: a row costs {growth:.2f} x as much as with a tenth of it"
        )
    kept = keep(args.out, "core", rows, args, probe_rates=probes)
    draw(rows, args.out / "core.png")
    print(f"wrote {kept}, and core.png")


def _growth(args: argparse.Namespace, rows: list[dict[str, Any]]) -> float | None:
    wanted = (1.0, "10%", "sweepjoin", "map")
    names = ("skew", "memory", "algorithm", "io")
    picked = {r["rows"]: r["rows_per_s"] for r in rows if tuple(r[n] for n in names) == wanted}
    large, small = count_text(args.rows), count_text(max(1, args.rows // 10))
    return picked[small] / picked[large] if small in picked and large in picked else None


if __name__ == "__main__":
    main()
