"""Law 3, the disk buffer of a cyclic scan where every request pays: sqrt(k^2 + k M) - k.

M is the memory that the join really divides: the buffer and the window of waiting rows. Our plan
keeps an eighth of the budget for reads whatever one read brings, so for every buffer the budget is
chosen that makes buffer and window add up to M. Buffers are whole pages. The rate is by the time of
the device alone, as in the law; the processor's would only flatten the curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import semistream as ss
from benchmarks.laws.cell import STREAM_ROW, Cell, Progress, Table, curves, run
from benchmarks.lib.report import print_table, say
from semistream.budget.sizes import STREAM_ROW as WIDEST_ROW
from semistream.budget.sizes import slot_bytes
from semistream.budget.split import KAPPA, Split, split_memory
from semistream.errors import BudgetError
from semistream.planning.device import Device
from semistream.planning.laws.published import mesh
from semistream.planning.tune import DEFAULT_BUFFER
from semistream.spec import ALGORITHMS, MasterFacts

RATE = 60e6  # bytes per second
DISK = Device("p2", KAPPA / RATE, RATE, sequential_free=False)
BUFFERS = tuple(64_000 << i for i in range(8))  # 64 kB to 8 MB
CURVE = ("device", "algorithm", "memory")
PUBLISHED = {20: 0.0, 40: 0.4, 80: 1.17, 160: 1.78}  # loss of the default in %, by memory in MB


@dataclass(frozen=True)
class Plan:
    algorithms: tuple[str, ...] = ("rmeshjoin", "meshjoin")
    memories: tuple[float, ...] = (20e6, 40e6, 80e6, 160e6)
    buffers: tuple[int, ...] = BUFFERS
    cycles: float = 1.0  # after the first all are alike
    real: tuple[str, ...] = ("pread", "map")  # ways of reading on the real device, one sweep each


def without_real(plan: Plan) -> Plan:
    """The modelled disk only."""
    return replace(plan, real=())


def in_pages(size: float, algorithm: str, master: MasterFacts) -> int:
    """The buffer as whole pages; meshjoin's brings the master in by a whole number of reads."""
    pages = max(1, round(size / master.max_page_bytes))
    if algorithm == "meshjoin":
        pages = -(-master.pages // max(1, round(master.pages / pages)))
    return pages * master.max_page_bytes


def split_of(algorithm: str, master: MasterFacts, budget: int, buffer: int) -> Split:
    params = ss.Params(read_bytes=buffer, sketch=False)
    return split_memory(ALGORITHMS[algorithm], master, budget, WIDEST_ROW, params)


def budget_for(algorithm: str, master: MasterFacts, memory: float, buffer: int) -> int | None:
    """The budget whose buffer and window are `memory` bytes; None where the plan never gives such
    a part of it to reads."""
    low, high = 0, 4 * int(memory) + (64 << 20)
    while high - low > 64:
        middle = (low + high) // 2
        try:
            enough = split_of(algorithm, master, middle, buffer).backlog + buffer >= memory
        except BudgetError:
            enough = False
        low, high = (low, middle) if enough else (middle, high)
    found = split_of(algorithm, master, high, buffer)
    fits = found.read >= buffer and abs(found.backlog + buffer - memory) < 0.001 * memory
    return high if fits else None


def buffers_of(plan: Plan, algorithm: str, master: MasterFacts, memory: float) -> dict[int, str]:
    """Buffer and why it is tried: the grid's, the law's and the published default."""
    best = mesh.best_buffer(memory, KAPPA)
    wanted: list[tuple[float, str]] = [(size, "grid") for size in plan.buffers]
    wanted += [(DEFAULT_BUFFER, "default"), (best, "law")]
    return {in_pages(size, algorithm, master): why for size, why in wanted}


def cells(plan: Plan, table: Table, seed: int) -> Iterator[tuple[dict[str, Any], Cell]]:
    for algorithm in plan.algorithms:
        for memory in plan.memories:
            yield from _sweep(plan, table, algorithm, memory, DISK, "pread", seed)
    for io in plan.real:
        yield from _sweep(plan, table, "rmeshjoin", plan.memories[0], None, io, seed)


def _sweep(
    plan: Plan,
    table: Table,
    algorithm: str,
    memory: float,
    device: Device | None,
    io: str,
    seed: int,
) -> Iterator[tuple[dict[str, Any], Cell]]:
    master = replace(table.facts, mapped=device is None and io == "map")
    for buffer, why in sorted(buffers_of(plan, algorithm, master, memory).items()):
        budget = budget_for(algorithm, master, memory, buffer)
        if budget is None:
            continue
        slots = (memory - buffer) / (slot_bytes(True) + STREAM_ROW + 1)
        label = {
            "device": device.name if device else io,
            "algorithm": algorithm,
            "memory": memory,
            "buffer": buffer,
            "why": why,
            "budget": budget,
        }
        yield (
            label,
            Cell(
                store=table.path,
                algorithm=algorithm,
                memory=budget,
                skew=0.5,
                warm_rows=int(1.2 * slots),
                timed_rows=int(plan.cycles * slots),
                device=device,
                io=io,
                params=ss.Params(read_bytes=buffer, sketch=False),
                columns=("price",),
                seed=seed,
            ),
        )


def measure(plan: Plan, table: Table, seed: int) -> Iterator[dict[str, Any]]:
    todo = list(cells(plan, table, seed))
    progress = Progress(len(todo))
    for label, cell in todo:
        found = run(cell)
        law = mesh.relative_rate(label["memory"], label["buffer"], KAPPA)
        sizes = f"{label['memory'] / 1e6:g} MB, buffer {label['buffer'] / 1e6:.2f} MB"
        name = f"{label['device']} {label['algorithm']}"
        progress.tell(f"{name} {sizes}: {found.disk_rate:,.0f} rows/s")
        yield {**label, **asdict(found), "law": law}


# --- telling ------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]], master: MasterFacts) -> list[dict[str, Any]]:
    lines = []
    for (device, algorithm, memory), curve in curves(rows, CURVE).items():
        best = max(curve, key=lambda row: row["disk_rate"])
        wanted = {row["buffer"]: row for row in curve}
        law = wanted[in_pages(mesh.best_buffer(memory, KAPPA), algorithm, master)]
        default = wanted[in_pages(DEFAULT_BUFFER, algorithm, master)]
        lines.append(
            {
                "device": device,
                "algorithm": algorithm,
                "memory MB": memory / 1e6,
                "best MB": best["buffer"] / 1e6,
                "rows/s": best["disk_rate"],
                "law MB": mesh.best_buffer(memory, KAPPA) / 1e6,
                "law loses %": _loss(best, law),
                "0.93 MB loses %": _loss(best, default),
                "by the law %": 100 * mesh.buffer_loss(memory, default["buffer"], KAPPA),
                "published %": PUBLISHED.get(round(memory / 1e6)),
            }
        )
    return lines


def _loss(best: dict[str, Any], one: dict[str, Any]) -> float:
    """How much faster the best is, in percent of the other's rate."""
    return 100 * float(best["disk_rate"] / one["disk_rate"] - 1)


def tell(rows: list[dict[str, Any]], table: Table) -> None:
    say(
        f"\nLaw 3: the disk buffer; a master of {table.facts.rows:,} rows, "
        f"{table.facts.bytes / 1e6:.0f} MB (the law does not depend on it)"
    )
    lines = summary(rows, table.facts)
    print_table(lines)
    say(verdict(lines))


def verdict(lines: list[dict[str, Any]]) -> str:
    here = [x for x in lines if x["device"] == DISK.name]
    worst = max(here, key=lambda x: x["law loses %"])
    apart = max(abs(x["0.93 MB loses %"] - x["by the law %"]) for x in here)
    return (
        f"verdict: with the buffer of the closed form the rate is at worst "
        f"{worst['law loses %']:.2f} % below the best measured one ({worst['algorithm']}, "
        f"{worst['memory MB']:g} MB: best {worst['best MB']:.2f} MB, law "
        f"{worst['law MB']:.2f} MB); what the default of 0.93 MB loses differs from "
        f"the law by {apart:.2f} points at most"
    )
