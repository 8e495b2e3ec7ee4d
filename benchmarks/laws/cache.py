"""Law 1, the size of the cache: how much of the memory the front stage should have.

The corrected law maximises (M - c h) / (1 - p(h)), M being the bytes that front stage and waiting
rows share, h the most popular keys that are answered, c what each of them takes. Our front stage
fills its room to a part (`FILLED`) and hits as often as a smaller set of the very most popular keys
would (`KNOWS`), so c is larger than a row and its entry. The share is swept and measured; so are
the law's share and the tuner's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import semistream as ss
from benchmarks.laws.cell import Cell, Progress, Table, curves, run, stream_of
from benchmarks.lib.report import print_table, say
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.budget.sizes import ENTRY_BYTES, STREAM_ROW
from semistream.budget.split import MOST_READ, Split, split_memory
from semistream.planning import tune
from semistream.planning.device import DEVICES, Device
from semistream.planning.laws.published import cached
from semistream.planning.machine import Machine
from semistream.planning.predict import predict
from semistream.planning.work import FILLED, KNOWS, Case, with_params
from semistream.spec import ALGORITHMS

SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 0.9)
MOST_CYCLES = 8  # of warm-up: far beyond the best share a front stage needs longer to be full
TARGET = 0.03
CURVE = ("device", "algorithm", "memory", "skew")
DISK = DEVICES["hdd-7200"]


@dataclass(frozen=True)
class Plan:
    algorithms: tuple[str, ...] = ("cmeshjoin", "chybridjoin")
    skews: tuple[float, ...] = (0.5, 0.75, 1.0)
    memories: tuple[float, ...] = (0.1, 0.02)  # of the master's bytes
    shares: tuple[float, ...] = SHARES
    cycles: float = 5.0  # that are timed: uses of all slots
    real: tuple[str, ...] = ("map", "pread")  # ways of reading on the real device, one sweep each


def without_real(plan: Plan) -> Plan:
    """The modelled disk only."""
    return replace(plan, real=())


@dataclass(frozen=True)
class Sweep:
    """One curve: the rate by the share of the front stage."""

    table: Table
    algorithm: str
    skew: float
    memory: float
    device: Device | None
    io: str = "pread"

    @property
    def case(self) -> Case:
        """What is to be measured. Only the share varies: a scan's reads are as large as the plan
        allows (on this disk the next read goes on where the last one ended), a block is the usual
        few pages."""
        scans = ALGORITHMS[self.algorithm].disk == "scan"
        params = ss.Params(read_bytes=MOST_READ if scans else None, sketch=False)
        master = replace(self.table.facts, mapped=self.device is None and self.io == "map")
        memory = int(self.memory * master.bytes)
        found = Case(ALGORITHMS[self.algorithm], master, stream_of(self.skew), memory, params)
        return with_params(found, read_bytes=_split(found, 0.0).read)

    @property
    def labels(self) -> dict[str, Any]:
        where = self.io if self.device is None else self.device.name
        return {
            "device": where,
            "algorithm": self.algorithm,
            "memory": self.memory,
            "skew": self.skew,
        }


def _split(case: Case, share: float) -> Split:
    params = replace(case.params, front_share=share)
    return split_memory(case.algorithm, case.master, case.memory, STREAM_ROW, params)


# --- what the laws say --------------------------------------------------------------------------


def law_share(case: Case) -> float:
    """The share of the corrected law."""
    memory = _split(case, 0.0).backlog
    divided = _split(case, 1.0).front  # the least that rows must have to wait in is not for sale
    each = (max(16, case.master.row_bytes) + ENTRY_BYTES) / (FILLED * KNOWS)
    keys = cached.best_cache(memory, each, case.master.rows, case.workload.skew)
    return round(min(1.0, keys * each / divided), 4)


def tuned_share(case: Case) -> float:
    machine = Machine(device=DISK, cpu=PAPER_CPU)
    share = tune(case, machine).case.params.front_share
    return case.algorithm.share if share is None else share  # None: the usual one is the best


def printed(case: Case) -> str:
    """Where the derivative that the CMESHJOIN paper prints vanishes."""
    memory, rows = float(case.memory), float(case.master.rows)
    width = float(case.master.row_bytes)
    whole = memory / (width + cached.COUNTER)
    parts = (0.1, 0.5, 0.9, 0.999, 1.0)
    slopes = [cached.printed_slope(memory, part * whole, rows, width) for part in parts]
    shown = ", ".join(
        f"{slope:.2g} at {part:.1%}" for part, slope in zip(parts, slopes, strict=True)
    )
    return (
        f"eqs. 5-7 as printed, Zipf 1, memory {memory / 1e6:.1f} MB: the slope by the cache's "
        f"share of memory is {shown}: it vanishes only where nothing is left to wait in "
        "and the rate is 0"
    )


# --- measuring ----------------------------------------------------------------------------------


def sweeps(plan: Plan, table: Table) -> list[Sweep]:
    modelled = [
        Sweep(table, algorithm, skew, memory, DISK)
        for algorithm in plan.algorithms
        for memory in plan.memories
        for skew in plan.skews
    ]
    real = [Sweep(table, plan.algorithms[0], 1.0, plan.memories[0], None, io) for io in plan.real]
    return modelled + real


def shares_of(sweep: Sweep, plan: Plan) -> list[tuple[str, float]]:
    """(why, share): the grid, the law's, and where the machine is known the tuner's."""
    wanted = [("grid", share) for share in plan.shares]
    wanted.append(("law", law_share(sweep.case)))
    if sweep.device is not None:
        wanted.append(("tuner", tuned_share(sweep.case)))
    return wanted


def cell_of(sweep: Sweep, share: float, plan: Plan, seed: int) -> tuple[Cell, bool]:
    """The cell, and whether its warm-up was cut short."""
    case = with_params(sweep.case, front_share=share)
    work = predict(case, Machine(device=DISK, cpu=PAPER_CPU)).work
    misses = max(0.02, work.misses)
    needed = 3 * work.waiting + 8 * work.cached
    warm = min(needed, MOST_CYCLES * work.waiting)
    cell = Cell(
        store=sweep.table.path,
        algorithm=sweep.algorithm,
        memory=case.memory,
        skew=sweep.skew,
        warm_rows=int(warm / misses),
        timed_rows=max(20_000, int(plan.cycles * work.waiting / misses)),
        device=sweep.device,
        io=sweep.io,
        params=case.params,
        seed=seed,
    )
    return cell, warm < needed


def measure(plan: Plan, table: Table, seed: int) -> Iterator[dict[str, Any]]:
    todo = [(sweep, why, share) for sweep in sweeps(plan, table)
            for why, share in shares_of(sweep, plan)]  # fmt: skip
    progress = Progress(len(todo))
    for sweep, why, share in todo:
        cell, cut = cell_of(sweep, share, plan, seed)
        found = run(cell)
        line = {**sweep.labels, "why": why, "share": share, **asdict(found), "cut": cut}
        progress.tell(f"{' '.join(map(str, sweep.labels.values()))} share {share:g} ({why}): "
                      f"{found.rate:,.0f} rows/s")  # fmt: skip
        yield line


# --- telling ------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per curve: the best share as measured, the law's and the tuner's, and what these lose."""
    lines = []
    for labels, curve in curves(rows, CURVE).items():
        best = max(curve, key=lambda row: row["rate"])
        by_disk = max(row["disk_rate"] for row in curve)
        none = next(row for row in curve if row["share"] == 0)
        line = dict(zip(CURVE, labels, strict=True))
        line |= {"best share": best["share"], "rows/s": best["rate"]}
        line["x no cache"] = best["rate"] / none["rate"]
        for why in ("law", "tuner"):
            one = next((row for row in curve if row["why"] == why), None)
            line[f"{why} share"] = one["share"] if one else None
            line[f"{why} loses %"] = 100 * (1 - one["rate"] / best["rate"]) if one else None
            line[f"{why}, disk only %"] = 100 * (1 - one["disk_rate"] / by_disk) if one else None
        lines.append(line)
    return lines


def tell(rows: list[dict[str, Any]], table: Table, plan: Plan) -> None:
    say("\nLaw 1: the share of the front stage")
    lines = summary(rows)
    print_table(lines)
    for memory in plan.memories:
        case = Sweep(table, "cmeshjoin", 1.0, memory, DISK).case
        say(printed(case))
    for algorithm in plan.algorithms:
        say(verdict(algorithm, lines))


def verdict(algorithm: str, lines: list[dict[str, Any]]) -> str:
    here = [x for x in lines if x["algorithm"] == algorithm and x["device"] == DISK.name]
    worst = max(here, key=lambda x: x["law loses %"])
    within = sum(x["law loses %"] <= 100 * TARGET for x in here)
    tuned = max(x["tuner loses %"] for x in here)
    word = "holds" if within == len(here) else "MISSES"
    return (
        f"verdict: the corrected cache size {word} for {algorithm}: within {TARGET:.0%} of the "
        f"best measured rate in {within} of {len(here)} curves, at worst "
        f"{worst['law loses %']:.1f} % (Zipf {worst['skew']:g}, {worst['memory']:.0%} of the "
        f"master); the tuner at worst {tuned:.1f} %"
    )
