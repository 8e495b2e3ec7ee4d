"""The commands calibrate and plan."""

from __future__ import annotations

import platform
import time
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ..budget import parse_bytes, show_bytes
from ..errors import SpecError
from ..join import master_and_key
from ..master import Master, Store, facts
from ..planning import (
    DEVICES,
    Case,
    Machine,
    Plan,
    cannot,
    has_law,
    least_memory_for,
    sketch_stream,
    this_machine,
)
from ..planning import plan as make_plan
from ..spec import ALGORITHMS, MasterFacts, Workload, algorithm_named
from .calibrate import Costs, measure_costs, measure_pages, measure_reads
from .commands import Result, names, open_named, pairs, place
from .files import read_rows
from .parser import command, local
from .progress import Progress

SAMPLE_ROWS = 1_000_000  # of a stream, to look at
READING = 0.3  # of the time, where a master is given

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


# --- how they are called -----------------------------------------------------------------------


def add_plans(found: Any) -> None:
    _add_calibrate(found)
    _add_plan(found)


def _add_calibrate(found: Any) -> None:
    examples = (
        "  semistream calibrate\n"
        "  semistream calibrate products --seconds 30\n"
        "  semistream calibrate s3://bucket/products --out machine.json"
    )
    parser = command(found, "calibrate", _CALIBRATE, calibrate, "measure this machine", examples)
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
    parser = command(found, "plan", _PLAN, plan, "which algorithm, and how fast", examples)
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


# --- what they do ------------------------------------------------------------------------------


def calibrate(args: Namespace) -> Result:
    began = time.monotonic()
    if not args.seconds >= 5:
        raise SpecError(
            f"--seconds {args.seconds:g} is too short to measure anything; give 5 or more"
        )
    machine = this_machine()
    reading = 0.0
    if args.master is not None:
        reading = READING * args.seconds
        machine = _measure_reading(machine, args, reading)
    with Progress("calibrating", total=100, show=args.progress) as progress:
        costs = measure_costs(args.seconds - reading, lambda done, _: progress(int(100 * done)))
    machine = replace(
        machine,
        costs=dict(costs.points),
        spread=dict(costs.error),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        note="",
    )
    kept = machine.save(args.out)
    took = time.monotonic() - began
    data = {"file": str(kept), "seconds": took, "samples": costs.samples}
    data |= {"device": vars(machine.device), "error": dict(costs.error)}
    return Result(data, "\n".join([*_calibrated(machine, costs, took), f"kept in {kept}"]))


def _measure_reading(machine: Machine, args: Namespace, seconds: float) -> Machine:
    """The device behind a master, as a join sees it."""
    master = open_named(args.master, args.key, [])
    if isinstance(master, Store) and not master.place.remote:
        table = measure_reads(master, seconds / 2)
        machine = replace(machine, reads=table.costs)
        master = Store.open(master.place, master.version, io="pread")
        seconds /= 2
    device = measure_pages(master, seconds).device(facts(master).name)
    return replace(machine, device=device)


def _calibrated(machine: Machine, costs: Costs, took: float) -> list[str]:
    device = machine.device
    lines = [f"measured {costs.samples} joins in {took:.0f} s"]
    if machine.reads:
        lines.append("reads of files, microseconds each (a quarter took less, a quarter more):")
        for read in machine.reads:
            spread = f"{1e6 * read.low:.0f}-{1e6 * read.high:.0f}"
            size = show_bytes(read.size)
            lines.append(
                f"  {size:>9} x {read.in_flight:<3} {1e6 * read.seconds:10.0f}  ({spread})"
            )
    lines.append(
        f"device {device.name}: {1e6 * device.call_seconds:.0f} us per call, "
        f"{1e6 * device.request_seconds:.0f} us per request, "
        f"{show_bytes(device.bytes_per_second)}/s"
    )
    lines.append("nanoseconds per operation, on tables of 1 MB, 64 MB and 4 GB:")
    for name in machine.costs:
        points = [1e9 * machine.cost(name, size) for size in (1e6, 64e6, 4e9)]
        lines.append(f"  {name:12}" + "".join(f"{p:12,.1f}" for p in points))
    worst = max(costs.error, key=lambda name: costs.error[name])
    lines.append(
        f"the joins took what these add up to, within {100 * _median(costs):.0f} % (median); "
        f"worst {worst}, {100 * costs.error[worst]:.0f} %"
    )
    return lines


def _median(costs: Costs) -> float:
    errors = sorted(costs.error.values())
    return errors[len(errors) // 2]


# --- plan ---------------------------------------------------------------------------------------


def plan(args: Namespace) -> Result:
    on = pairs(args.on)
    master = open_named(args.master, None, list(on.values()))
    try:
        master_and_key(master, on, None)
        known, machine = facts(master), _machine(args)
        if args.device is not None:
            known = replace(known, mapped=False)
        workload = _workload(args, on, master)
        among = None if args.algorithm == "auto" else [algorithm_named(args.algorithm).name]
        shown = None if args.columns is None else names(args.columns)
        master.check_columns(shown or [])
        columns = None if shown is None else len(shown)
        memory = parse_bytes(args.memory, known.bytes)
        if args.rate is not None:
            memory = _least(args.rate, known, workload, machine, among, columns)
        chosen = make_plan(known, workload, memory, machine, among=among, columns=columns)
    finally:
        master.close()
    return Result(chosen.as_dict(), _text(chosen, args))


def _text(chosen: Plan, args: Namespace) -> str:
    text = str(chosen)
    if args.rate is not None:
        found = chosen.chosen.case.memory
        text = f"least memory for {args.rate:,.0f} rows per second: {show_bytes(found)}\n{text}"
    return text


def _machine(args: Namespace) -> Machine:
    machine = this_machine() if args.machine is None else Machine.load(args.machine)
    if args.device is None:
        return machine
    if args.device not in DEVICES:
        raise SpecError(f"--device {args.device}: choose one of {', '.join(DEVICES)}")
    return replace(machine, device=DEVICES[args.device])


def _workload(args: Namespace, on: dict[str, str], master: Master) -> Workload:
    if args.sample is not None and args.skew is not None:
        raise SpecError("--sample says how skewed the stream is; leave --skew out")
    if args.sample is None:
        return Workload() if args.skew is None else Workload(skew=args.skew, skew_error=0.0)
    batches, rows = [], 0
    for batch in read_rows(args.sample).batches:
        batches.append(batch.slice(0, SAMPLE_ROWS - rows))
        rows += len(batches[-1])
        if rows >= SAMPLE_ROWS:
            break
    return sketch_stream(batches, on, master)


def _least(
    rate: float,
    known: MasterFacts,
    workload: Workload,
    machine: Machine,
    among: list[str] | None,
    columns: int | None,
) -> int:
    """The least memory with which any of the algorithms reaches a rate."""
    refused, found = None, []
    for name in among or ALGORITHMS:
        if cannot(ALGORITHMS[name], known) is not None:
            continue
        if among is None and not has_law(ALGORITHMS[name]):
            continue
        case = Case(ALGORITHMS[name], known, workload, 0, columns=columns)
        try:
            found.append(least_memory_for(rate, case, machine).case.memory)
        except SpecError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return min(found, default=1)  # none can work: the plan will say why
