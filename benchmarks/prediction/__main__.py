"""Prediction against measurement: is the model right, and is the planner's choice the best?

    python -m benchmarks.prediction --quick        a minute: does everything work here?
    python -m benchmarks.prediction                every algorithm x memory x skew x device

Devices:

    map        a store, mapped, in the page cache; wall clock
    pread      the same store, its pages read; wall clock
    hdd-7200   a modelled disk (and ssd, object-store): its seconds and those of the papers'
               processor are added up, so these rates are the same on every machine

Every cell uses the knobs that the tuner proposes, and is predicted with them. On the real device
the machine is calibrated first, in the same run, and every cell has a process of its own. Then, for
each device, memory and skew, the planner chooses, and what it chose is compared with the best that
was measured there.

Writes to --out: prediction.csv, planner.csv, prediction-manifest.json, prediction.png, and data/.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import semistream as ss
from benchmarks.lib.report import parse_count, say
from benchmarks.lib.running import in_fresh_process
from benchmarks.lib.stores import store_of
from benchmarks.prediction.calibrate import Calibration, calibrate
from benchmarks.prediction.cell import run
from benchmarks.prediction.chart import draw
from benchmarks.prediction.report import (
    compare_choices,
    keep_all,
    print_cells,
    print_choices,
    print_errors,
)
from benchmarks.prediction.setup import Cell, known_stream, open_on
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.master.facts import facts
from semistream.planning.choose import plan
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine

REAL = ("map", "pread")
NAMES = [name for name in ss.ALGORITHMS if name != "memory"]
FULL = {
    "rows": 2_000_000,
    "modelled_rows": 500_000,
    "calibrate": 60.0,
    "memory": "1%,3%,10%,30%",
    "skews": "0,0.5,1,1.3",
    "warm_seconds": 1.5,
    "timed_seconds": 0.9,
}
QUICK = {
    "rows": 200_000,
    "modelled_rows": 50_000,
    "calibrate": 30.0,  # less than half of it may be left when its tables are made
    "memory": "10%",
    "skews": "0,1",
    "warm_seconds": 0.3,
    "timed_seconds": 0.3,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=parse_count, help="master rows on the real device [2M]")
    add("--modelled-rows", type=parse_count, help="master rows on modelled devices [500k]")
    add("--memory", help="shares of the master's bytes [1%%,3%%,10%%,30%%]")
    add("--skews", help=f"Zipf exponents [{FULL['skews']}]")
    add("--devices", default="map,pread,hdd-7200,ssd", help="[%(default)s]")
    add("--algorithms", default=",".join(NAMES), help="[all but memory]")
    add("--calibrate", type=float, help="seconds to calibrate the processor [60]")
    add("--warm-seconds", type=float, help="per cell on the real device, at most [1.5]")
    add("--timed-seconds", type=float, help="per cell on the real device, about [0.9]")
    add("--jobs", type=int, default=os.cpu_count(), help="modelled cells at a time [%(default)s]")
    add("--quick", action="store_true", help="small masters, one memory, two skews")
    add("--seed", type=int, default=11, help="of the stream [%(default)s]")
    add("--out", type=Path, default=Path("bench-out/prediction"), help="folder [%(default)s]")
    args = parser.parse_args(arguments)
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.memory = [float(text.strip().rstrip("%")) / 100 for text in args.memory.split(",")]
    args.skews = [float(text) for text in args.skews.split(",")]
    args.devices, args.algorithms = args.devices.split(","), args.algorithms.split(",")
    for device in args.devices:
        if device not in (*REAL, *DEVICES):
            parser.error(f"{device!r} is no device; choose among {', '.join((*REAL, *DEVICES))}")
    for name in args.algorithms:
        if name not in NAMES:
            parser.error(f"{name!r} is no algorithm; choose among {', '.join(NAMES)}")
    return args


# --- machines -----------------------------------------------------------------------------------


def machine_for(device: str, calibrated: Machine | None) -> Machine:
    if device in DEVICES:
        return Machine(device=DEVICES[device], cpu=PAPER_CPU)
    assert calibrated is not None
    return calibrated


# --- cells --------------------------------------------------------------------------------------


def cells(args: argparse.Namespace, folder: Path, calibrated: Machine | None) -> list[Cell]:
    """All of them, device by device."""
    found = []
    for device, memory, skew in product(args.devices, args.memory, args.skews):
        rows = args.rows if device in REAL else args.modelled_rows
        store = store_of(folder, rows, False)
        machine = machine_for(device, calibrated)
        for name in args.algorithms:
            found.append(
                Cell(
                    store, device, name, memory, skew, machine, args.seed,
                    args.warm_seconds, args.timed_seconds,
                )
            )  # fmt: skip
    return found


def measure(plan: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The result of every cell: real ones one by one, modelled ones several at a time."""
    # A server with everything imported makes the processes: each is fresh, and there at once.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks.prediction.cell"])
    for cell in plan:
        if not cell.modelled:
            yield cell, in_fresh_process(run, cell, "forkserver")
    modelled = [cell for cell in plan if cell.modelled]
    if jobs == 1:
        for cell in modelled:
            yield cell, run(cell)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from zip(modelled, pool.map(run, modelled), strict=True)


def label(cell: Cell) -> dict[str, Any]:
    return {
        "device": cell.device,
        "memory": f"{100 * cell.memory:g}%",
        "skew": cell.skew,
        "algorithm": cell.algorithm,
    }


def measured_rows(plan: Sequence[Cell], jobs: int) -> list[dict[str, Any]]:
    """A line of results per cell, with words about how far it has come."""
    begun, rows, clock = time.perf_counter(), [], {False: 0.0, True: 0.0}
    done = {False: 0, True: 0}
    for number, (cell, found) in enumerate(measure(plan, jobs), 1):
        kind, now = cell.modelled, time.perf_counter()
        done[kind] += 1
        clock[kind] = now - begun - clock[not kind]
        left = _left(plan[number:], done, clock)
        line = label(cell)
        where = f"  {number}/{len(plan)}, {left}: " + " ".join(map(str, line.values()))
        if "refused" in found:
            say(f"{where}: the memory is too small")
            continue
        if not found.pop("matched"):
            raise SystemExit(f"wrong answer in {line}: rows without a match")
        line |= found
        line["error"] = line["predicted"] / line["measured"] - 1
        rates = f"{line['predicted']:,.0f} predicted, {line['measured']:,.0f} measured"
        say(f"{where}: {rates}, {100 * line['error']:+.1f} %")
        rows.append(line)
    return rows


def _left(rest: Sequence[Cell], done: dict[bool, int], clock: dict[bool, float]) -> str:
    """About how long the others will take: as long as those of their kind so far."""
    each = {kind: clock[kind] / done[kind] if done[kind] else None for kind in (False, True)}
    known = next((value for value in each.values() if value is not None), 0.0)
    guess = {kind: known if value is None else value for kind, value in each.items()}
    seconds = sum(guess[cell.modelled] for cell in rest)
    return f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


# --- the planner --------------------------------------------------------------------------------


def choices(
    args: argparse.Namespace, folder: Path, calibrated: Machine | None
) -> dict[tuple[str, str, float], str]:
    """What the planner chooses for each device, memory and skew."""
    chosen = {}
    for device, memory, skew in product(args.devices, args.memory, args.skews):
        rows = args.rows if device in REAL else args.modelled_rows
        known = facts(open_on(device, store_of(folder, rows, False)))
        budget = int(memory * known.bytes)
        machine = machine_for(device, calibrated)
        try:
            best = plan(known, known_stream(skew), budget, machine, among=args.algorithms)
        except ss.BudgetError:
            continue
        chosen[device, f"{100 * memory:g}%", skew] = best.algorithm.name
    return chosen


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    args = parse(arguments)
    folder = args.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    calibrated = None
    if set(args.devices) & set(REAL):
        store = store_of(folder, args.rows, False)
        say(f"calibrating for about {1.25 * args.calibrate:.0f} s")
        given = Calibration(store, args.calibrate, args.seed)
        calibrated = in_fresh_process(calibrate, given)
    rows = measured_rows(cells(args, folder, calibrated), args.jobs)
    if not rows:
        raise SystemExit("no cell could be run: every memory is too small; use --rows or --memory")
    verdicts = compare_choices(rows, choices(args, folder, calibrated))
    print_cells(rows)
    print_errors(rows)
    print_choices(verdicts)
    kept = keep_all(args, rows, verdicts, calibrated)
    draw(rows, args.out / "prediction.png")
    say(f"\nwrote {kept}, and prediction.png")
    return rows


if __name__ == "__main__":
    main()
