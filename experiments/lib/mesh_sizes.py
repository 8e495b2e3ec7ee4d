"""MESHJOIN's memory as its paper counts it, beside ours.

    the paper   the disk buffer, and per waiting row 4 B in the queue and 4.8 times its bytes in the
                hash table (eq. 1): 100 B for a row of 20
    ours        everything that is held: 109 B and the row per waiting row, the index of the pages,
                a batch on its way in and one on its way out

A join of ours has the paper's memory when as many rows wait as eq. 1 gives.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import semistream as ss
from benchmarks.laws.buffer import budget_for, in_pages
from experiments.lib.cell import TUNED, Cell, opened, planned
from experiments.lib.experiment import Row
from experiments.lib.paper_cpu import PAPER_CPU, Cpu
from semistream.budget.sizes import slot_bytes
from semistream.errors import BudgetError
from semistream.master.facts import facts
from semistream.planning.device import Device
from semistream.planning.laws.published import mesh
from semistream.planning.work import Case
from semistream.spec import ALGORITHMS, MasterFacts
from semistream.testing import ManualClock

STREAM_ROW = 20
WIDTH = STREAM_ROW + 1  # as it waits: a byte more, for its NULLs
OURS, PAPERS = "all that is held", "the paper's accounting"


def facts_of(store: Path, mapped: bool = False) -> MasterFacts:
    with closing(ss.Store.open(store)) as master:
        return replace(facts(master), mapped=mapped)


def symbols(
    master: MasterFacts, device: Device, cpu: Cpu, accounting: str = PAPERS
) -> mesh.MeshSymbols:
    """What the equations know. The work for an output row is counted per stream row, since each has
    one: the selectivity that eq. 2 wants depends on how many rows wait."""
    waits = 0.0 if device.sequential_free else device.request_seconds
    pointer, f = 4.0, 4.8
    if accounting == OURS:
        pointer, f = float(slot_bytes(True)), WIDTH / STREAM_ROW
    return mesh.MeshSymbols(
        n_r=master.bytes / master.page_bytes,
        v_p=master.page_bytes,
        v_r=master.bytes / master.rows,
        v_s=STREAM_ROW,
        c_io=lambda b: waits + b * master.page_bytes / device.bytes_per_second,
        c_h=cpu.probe_master,
        c_o=0.0,
        c_e=cpu.expire,
        c_s=cpu.take_in,
        c_a=cpu.append + cpu.emit,
        f=f,
        pointer=pointer,
    )


def window(known: mesh.MeshSymbols, memory: float, buffer: float) -> float:
    """Rows that can wait in `memory` beside a disk buffer, by eq. 1."""
    pages = buffer / known.v_p
    return mesh.tuples_for_memory(known, memory, pages) * known.n_r / pages


def whole_pages(size: float, master: MasterFacts) -> int:
    return in_pages(size, "meshjoin", master)


def case_of(cell: Cell) -> Case:
    """What the model knows of a cell, all knobs open."""
    with closing(opened(cell, ManualClock())) as master:
        return replace(planned(cell, master).case, params=cell.params)


def tuned_buffer(cell: Cell) -> int:
    """The disk buffer that the model takes for a cell."""
    with closing(opened(cell, ManualClock())) as master:
        return planned(cell, master).split.read


def as_published(cell: Cell, known: mesh.MeshSymbols, buffer: int) -> Cell | None:
    """The same cell with the paper's window for its memory."""
    return with_window(cell, window(known, cell.memory, buffer), buffer)


def with_window(cell: Cell, rows: float, buffer: int) -> Cell | None:
    """The same cell with the memory that lets so many rows wait beside such a buffer; None where
    our plan never gives reads such a part. Not every slot can be used: rows wait in chunks, one
    for each read, and those take bytes as well."""
    if rows < 1:
        return None
    master = facts_of(cell.store, mapped=cell.device is None and cell.io == "map")
    params, slots = replace(TUNED, read_bytes=buffer), rows
    for _ in range(5):
        total = slots * (slot_bytes(True) + WIDTH) + buffer
        given = budget_for("meshjoin", master, total, buffer)
        if given is None:
            return None
        found = replace(cell, memory=given, params=params)
        short = rows / rows_in_use(found)
        if abs(short - 1) < 0.002:
            break
        slots *= short
    return found


def rows_in_use(cell: Cell) -> float:
    """Rows that wait in a meshjoin, by the model: as many as share one cycle."""
    with closing(opened(cell, ManualClock())) as master:
        return master.describe().pages / planned(cell, master).work.disk.pages


def briefly(cell: Cell, warm: float, segments: int, cycles: int = 1) -> Cell:
    """Warmed up for so many fillings of the window, where each row makes much output, and timed for
    one: a scan for just one cycle, or as many as are asked for."""
    with closing(opened(cell, ManualClock())) as master:
        try:
            work = planned(cell, master).work
        except BudgetError:  # whoever measures it will say so
            return cell
    rows = max(200.0, work.waiting / max(0.05, work.misses))
    warmed = replace(cell, warm_rows=int(warm * rows), cycles=cycles, segments=segments)
    scans = ALGORITHMS[cell.algorithm].disk == "scan" and cell.device is not None
    return warmed if scans else replace(warmed, timed_rows=int(rows))


def with_output(row: Row, cpu: Cpu = PAPER_CPU) -> float:
    """The predicted rate of a join whose rows have many matches. The model knows of one each, so
    the others are added, by what the papers' processor takes to make an output row."""
    return 1 / (1 / float(row["predicted"]) + (float(row["matches"]) - 1) * cpu.emit)
