"""What the experiments of the HYBRIDJOIN paper share: its X-HYBRIDJOIN as published, and the rates
that its equations and the renewal law predict.

As published: the pinned pages are asked against the waiting rows in every iteration, and as many
pages are pinned as one read brings. `xhybridjoin` in the charts is the one that users get: knobs
tuned by the model, the pinned rows in a hash table that the stream asks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import semistream as ss
from experiments.data.products import products
from experiments.data.streams import ZipfStream
from experiments.lib.cell import HDD, PAPER, Cell, cell, facts_of, opened, planned
from experiments.lib.experiment import Row, Run
from experiments.lib.measure import measure
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.budget.sizes import STREAM_ROW
from semistream.budget.split import split_memory
from semistream.planning.device import Device
from semistream.planning.laws import renewal, zipf
from semistream.planning.laws.family import SOUGHT
from semistream.planning.laws.published import hybrid
from semistream.planning.laws.published.mesh import service_rate
from semistream.spec import ALGORITHMS, MasterFacts
from semistream.testing import ManualClock

ROWS, MB, SKEW = 2_000_000, 1e6, 1.0  # the paper's master and stream
SHRUNK = 4  # at laptop scale master and memory are a quarter of the paper's
PAGE = 32 << 10  # about 270 rows: small enough to tune by
PUBLISHED = "xhybridjoin as published"
WINDOWS = 6  # timed: the hottest pages free many slots at once, and the rate swings with that
COSTS = hybrid.HybridCosts(
    c_h=1e9 * PAPER_CPU.probe_master,
    c_o=1e9 * PAPER_CPU.emit,
    c_e=1e9 * PAPER_CPU.expire,
    c_s=1e9 * PAPER_CPU.take_in,
    c_a=1e9 * PAPER_CPU.append,
)


def sizes(run: Run, rows: int, megabytes: float) -> tuple[int, int]:
    """Rows of the master and bytes of memory that stand for the paper's."""
    shrunk = run.pick(50, SHRUNK, 1)
    return rows // shrunk, round(megabytes * MB / shrunk)


def master_of(run: Run, rows: int) -> Path:
    return products(run.data, rows, PAGE)


@dataclass(frozen=True)
class Named:
    """A cell, and what its curve is called."""

    name: str
    cell: Cell
    pinned_pages: int = 0  # as published: asked in every iteration


def usual(run: Run, store: Path, stream: ZipfStream, name: str, memory: int, **more: Any) -> Named:
    """One of the family with tuned knobs."""
    length: dict[str, Any] = {"windows": WINDOWS, "segments": 6, "most_rows": 3_000_000}
    if name == "sweepjoin":  # a segment is a round, which takes many rows
        length = {"windows": 3, "segments": 3}
    if name == "memory":
        length = {"most_rows": 200_000, "segments": 4}
    if more.get("device", HDD) is None:
        length = {"segments": 4, "seconds": 0.4}
    if run.scale == "smoke":
        length = {}
    return Named(name, cell(run, store, stream, name, memory, **{**length, **more}))


def published(run: Run, store: Path, stream: ZipfStream, memory: int, **more: Any) -> Named:
    """X-HYBRIDJOIN as published, both parts as large as HYBRIDJOIN's best read."""
    plain = usual(run, store, stream, "hybridjoin", memory, **more)
    master = opened(plain.cell, ManualClock())
    try:
        found = planned(plain.cell, master)
        pages = max(1, found.split.read // found.case.master.max_page_bytes)
        return with_parts(plain.cell, found.case.master, pages, pages)
    finally:
        master.close()


def with_parts(thing: Cell, master: MasterFacts, swapped: int, pinned: int) -> Named:
    """X-HYBRIDJOIN as published, with so many pages in each part."""
    page = master.max_page_bytes + 1024
    params = ss.Params(sketch=False, pinned_probe="waiting", read_bytes=swapped * page)
    whole = split_memory(ALGORITHMS["xhybridjoin"], master, thing.memory, STREAM_ROW,
                         replace(params, front_share=1.0)).front  # fmt: skip
    share = min(1.0, (pinned * page + 64) / max(1, whole))
    params = replace(params, front_share=share)
    return Named(PUBLISHED, replace(thing, algorithm="xhybridjoin", params=params), pinned)


def family(
    run: Run,
    store: Path,
    stream: ZipfStream,
    memory: int,
    names: Sequence[str],
    device: Device | None,
) -> Iterator[Named]:
    for name in names:
        if name == PUBLISHED:
            yield published(run, store, stream, memory, device=device)
        else:
            yield usual(run, store, stream, name, memory, device=device)


def measured(thing: Named) -> list[Row]:
    """As measured. The papers' processor is also charged for asking the pinned rows in every
    iteration, and the laws are worked out beside."""
    rows = [{**row, "algorithm": thing.name} for row in measure(thing.cell)]
    if "refused" in rows[0] or "hybridjoin" not in thing.name or thing.cell.device is None:
        return rows
    master = facts_of(thing.cell.store)
    for row in rows:
        pinned = thing.pinned_pages * master.rows / master.pages
        row["pinned_rows"] = pinned
        if row["cpu"] == PAPER:
            slower(row, row["steps"] * pinned * PAPER_CPU.probe_master)
        if thing.name != "xhybridjoin" and row["cpu"] == PAPER:
            row.update(by_laws(thing, row, master, pinned))
    return rows


def slower(row: Row, seconds: float) -> None:
    """Each stream row takes so many seconds more."""
    for name in ("rate", "rate_low", "rate_high"):
        if row[name] > 0:
            row[name] = 1 / (1 / row[name] + seconds)


def by_laws(thing: Named, row: Row, master: MasterFacts, pinned: float) -> Row:
    """Rows per read and rates: the paper's eqs. 5, 6 and 9, and the renewal law in eqs. 5 and 6,
    both with as many waiting rows as our joins have at a lookup."""
    stream = thing.cell.stream
    assert isinstance(stream, ZipfStream)
    assert thing.cell.device is not None
    block = row["read_bytes"] // master.max_page_bytes * master.rows / master.pages
    found: Row = {"block_rows": block, "rows_per_read": 1 / max(1e-12, row["reads"])}
    held = SOUGHT[False] * row["slots"]
    law = renewal.rows_per_read(held, master.rows, block, stream.skew, True, pinned)
    ways = {"renewal": law}
    if stream.skew == 1:
        ways["equation"] = hybrid.tuples_per_iteration(held, pinned, block, master.rows)
    for name, w in ways.items():
        found[f"{name}_rows_per_read"] = w
        found[name] = rate_of(w, pinned, block, thing.cell.device, master)
    if thing.name == PUBLISHED:
        found["predicted"] = found["renewal"]  # our own model knows the later variant only
    return found


def rate_of(
    w: float, pinned: float, block: float, device: Device, master: MasterFacts | None = None
) -> float:
    """mu of eqs. 5 and 6 for w rows per read, with the papers' processor."""
    width = 120.0 if master is None else master.bytes / master.rows
    io = 1e9 * device.seconds(1, block * width)
    return service_rate(w, hybrid.loop_cost(COSTS, io, pinned, block, w))


def pinned_share(rows: float, pinned: float, skew: float = SKEW) -> float:
    """p_N: the part of the stream that the first rows of the master answer."""
    return float(zipf.share(pinned, rows, skew))


def told(row: Row) -> str:
    if "refused" in row:
        return f"{row['algorithm']} refused"
    return f"{row['algorithm']} on {row['device']}, {row['cpu']}: {row['rate']:,.0f} rows/s"
