"""What the experiments of the default-buffer paper share: scans whose disk buffer and waiting rows
add up to M, on the disk of that paper, where every request pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import semistream as ss
from benchmarks.laws.buffer import DISK, budget_for, in_pages
from benchmarks.laws.cell import STREAM_ROW
from experiments.data.streams import ZipfStream
from experiments.lib.cell import HERE, Cell, cell, facts_of
from experiments.lib.charts import GREY
from experiments.lib.experiment import Row, Run
from experiments.lib.measure import measure
from experiments.lib.paper_cpu import PAPER_CPU
from experiments.lib.rows import where
from semistream.budget.sizes import slot_bytes
from semistream.budget.split import KAPPA
from semistream.planning.device import Device
from semistream.planning.laws.published import mesh
from semistream.planning.laws.published.mesh import best_buffer
from semistream.spec import MasterFacts

__all__ = [
    "DISK", "PAPER_MARK", "bounds", "moved", "on_disk", "scan_cell", "timed", "wanted",
]  # fmt: skip

ROWS = 3_500_000
SKEW = 0.5
PREAD = f"{HERE}, pread"
WAITING_ROW = slot_bytes(True) + STREAM_ROW + 1  # bytes of a waiting row here; 100 in the papers
PAPER_MARK = {"color": GREY, "marker": "o", "markerfacecolor": "none", "linestyle": "none",
              "markersize": 8, "label": "published"}  # fmt: skip


def wanted(sizes: Sequence[float], algorithm: str, master: MasterFacts) -> list[int]:
    """Buffers as whole pages, each once."""
    return sorted({in_pages(size, algorithm, master) for size in sizes})


def scan_cell(
    run: Run,
    store: Path,
    master: MasterFacts,
    algorithm: str,
    memory: float,
    buffer: int,
    device: Device | None = DISK,
) -> tuple[Row, Cell] | None:
    """A scan whose buffer and window are `memory` bytes; None where the plan has none such. Warmed
    up until the window has been filled once, then timed for one more: all cycles are alike."""
    budget = budget_for(algorithm, replace(master, mapped=False), memory, buffer)
    if budget is None:
        return None
    window = (memory - buffer) / WAITING_ROW
    large = memory > 100e6
    more = {
        "device": device,
        "params": ss.Params(read_bytes=buffer, sketch=False),
        "columns": ("price",),
        "warm_rows": int(1.15 * window),
        "timed_rows": int((0.6 if large else 1.0) * window),
        "batch_rows": None if device is None else 2_000 if large else 500,
        "segments": 4,
        "io": "pread",
        "seconds": run.pick(0.1, 0.8, 2.0),
    }
    labels = {"room_mb": memory / 1e6, "buffer_mb": buffer / 1e6, "rows": master.rows}
    stream = ZipfStream(master.rows, SKEW)
    return labels, cell(run, store, stream, algorithm, budget, **more)


def bounds(
    run: Run, store: Path, master: MasterFacts, memories: Sequence[float], device: Device | None
) -> Iterator[tuple[Row, Cell]]:
    """Ours with the budget of the best MESHJOIN, tuned by the model, and the bound."""
    stream = ZipfStream(master.rows, SKEW)
    more = {"device": device, "columns": ("price",), "io": "pread", "segments": 2,
            "seconds": run.pick(0.02, 0.5, 2.0)}  # fmt: skip
    for memory in memories:
        labels = {"room_mb": memory / 1e6, "buffer_mb": None, "rows": master.rows}
        buffer = in_pages(best_buffer(memory, KAPPA), "meshjoin", master)
        budget = budget_for("meshjoin", replace(master, mapped=False), memory, buffer)
        ours = cell(run, store, stream, "sweepjoin", budget or int(memory), windows=2, **more)
        yield labels, ours
    labels = {"room_mb": memories[-1] / 1e6, "buffer_mb": None, "rows": master.rows}
    yield labels, cell(run, store, stream, "memory", 0, most_rows=100_000, **more)


def timed(thing: Cell) -> list[Row]:
    """As measured; also the rate by the device's time alone, and that of the paper's equations."""
    rows = measure(thing)
    for row in rows:
        if row.get("io_seconds"):
            row["disk_rate"] = 1 / row["io_seconds"]
            if row["algorithm"] == "meshjoin" and thing.device is not None:
                row["equation"] = by_equation(row, thing)
    return rows


def by_equation(row: Row, thing: Cell) -> float:
    """mu of the paper's eqs. 2 to 4, with this disk, the papers' processor and as many waiting rows
    as there are here."""
    assert thing.device is not None
    assert thing.params.read_bytes is not None
    master = facts_of(thing.store)
    b = thing.params.read_bytes // master.max_page_bytes
    device = thing.device
    symbols = mesh.MeshSymbols(
        n_r=master.pages,
        v_p=master.page_bytes,
        v_r=master.bytes / master.rows,
        v_s=STREAM_ROW,
        c_io=lambda pages: device.seconds(1, pages * master.page_bytes),
        c_h=PAPER_CPU.probe_master,
        c_o=0.0,  # an output row is charged per stream row, as every one has its match
        c_e=PAPER_CPU.expire,
        c_s=PAPER_CPU.take_in + PAPER_CPU.emit,
        c_a=PAPER_CPU.append,
    )
    w = row["slots"] * b / master.pages
    return float(mesh.service_rate(w, mesh.loop_cost(symbols, w, b)))


def moved(row: Row) -> Row:
    """The same measurement on the disk of P2: other seconds for the same requests."""
    there = DISK.seconds(row["reads"], row["bytes"])
    found = {**row, "device": DISK.name, "io_seconds": there}
    for name in ("rate", "rate_low", "rate_high"):
        if row[name] > 0:
            found[name] = 1 / max(1e-9, 1 / row[name] - row["io_seconds"] + there)
    return found


def on_disk(rows: Sequence[Row], **labels: object) -> list[Row]:
    """On the paper's disk, with the processor of its days."""
    return where(rows, device=DISK.name, cpu="paper-era CPU", **labels)
