"""One cell of an experiment's grid: a join, its data, the disk, and the knobs that the model
proposes for it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import semistream as ss
from experiments.data.streams import Stream, known
from experiments.lib.experiment import Run
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.master import Master
from semistream.master.facts import facts
from semistream.planning.device import DEVICES, Device
from semistream.planning.machine import DEFAULT_MACHINE, Machine, this_machine
from semistream.planning.predict import Prediction
from semistream.planning.tune import tune
from semistream.planning.work import Case, with_params
from semistream.spec import ALGORITHMS, MasterFacts
from semistream.testing import ManualClock

HDD = DEVICES["hdd-7200"]
HERE = "this machine"
PAPER, MEASURED = "paper-era CPU", "this CPU"
TOUCHED = 256  # pages that are read together before the clock runs
BATCH, LOOKUP_BATCH, LEAST_BATCH, REAL_BATCH = 2_000, 500, 100, 20_000
TUNED = ss.Params(sketch=False)  # all knobs open


@dataclass(frozen=True)
class Cell:
    """What is measured. Knobs that `params` leaves open are tuned for the device by the model."""

    store: Path
    stream: Stream
    algorithm: str
    memory: int  # bytes; the algorithm `memory` takes what it needs
    device: Device | None = HDD  # None: this machine's own
    params: ss.Params = TUNED
    how: str = "inner"
    columns: tuple[str, ...] | None = None  # of the master, in the output; None: all
    batch_rows: int | None = None
    warm_rows: int | None = None  # None: until the model says that the state is steady
    timed_rows: int | None = None  # this machine: at least
    windows: float | None = None  # that are timed, of waiting rows; None: by the disk phase
    most_rows: int = 2_000_000  # of the warm-up, and of what is timed
    seconds: float = 0.8  # this machine: of the warm-up, and of what is timed, at most about
    segments: int = 8
    cycles: int = 2  # of a scan on a modelled disk, that are timed if `timed_rows` does not say
    misses: int = 2_000  # that are counted at least
    io: str = "map"  # this machine: map | pread
    seed: int = 1


def cell(run: Run, store: Path, stream: Stream, algorithm: str, memory: int, **more: Any) -> Cell:
    """A cell of this run: its seed, and at smoke scale just enough rows to see that it works."""
    if run.scale == "smoke":
        more = {
            "most_rows": 15_000,
            "seconds": 0.02,
            "segments": 2,
            "cycles": 1,
            "misses": 200,
            **more,
        }
    return Cell(store, stream, algorithm, memory, seed=run.seed, **more)


def opened(cell: Cell, clock: ManualClock) -> Master:
    """The master as the cell sees it. On this machine all its pages are touched first, so that none
    is read from disk, or checked for the first time, while the clock runs."""
    if cell.device is not None:
        return ModelledMaster(ss.Store.open(cell.store, io="map"), cell.device, clock)
    store = ss.Store.open(cell.store, io=cell.io)
    info = store.describe()
    if store.mapped:
        store.touch(np.ones(info.pages, np.bool_))
    for first in () if store.mapped else range(0, info.pages, TOUCHED):
        store.read(np.arange(first, min(info.pages, first + TOUCHED)), info.key)
    return store


def facts_of(store: Path) -> MasterFacts:
    """What the model knows of a store where nothing is mapped."""
    with closing(ss.Store.open(store, io="pread")) as master:
        return facts(master)


def machine_of(cell: Cell, cpu: str = PAPER) -> Machine:
    """What the model should know for this cell. On a modelled disk the costs of operations do not
    depend on whether this machine was calibrated, nor do the knobs and the reads."""
    if cell.device is None:
        return this_machine()
    if cpu == PAPER:
        return Machine(device=cell.device, cpu=PAPER_CPU)
    return replace(DEFAULT_MACHINE, device=cell.device)


def planned(cell: Cell, master: Master) -> Prediction:
    """The knobs that the model proposes, and what it predicts of them."""
    algorithm, known_master = ALGORITHMS[cell.algorithm], facts(master)
    usual = REAL_BATCH if cell.device is None else BATCH
    slow = cell.device is not None and algorithm.disk == "lookup"  # a seek for each row
    rows = cell.batch_rows or (LOOKUP_BATCH if slow else usual)
    stream = known(cell.stream, cell.seed, rows, known_master.rows)
    shown = None if cell.columns is None else len(cell.columns)
    memory = cell.memory
    if algorithm.name == "memory":
        memory = 8 * known_master.bytes + (64 << 20)
    case = Case(algorithm, known_master, stream, memory, cell.params, shown)
    found = tuned(case, cell)
    if cell.device is None or cell.batch_rows is not None or algorithm.disk in ("lookup", "none"):
        return found
    # Few rows wait where memory is scarce: a batch must not be a whole segment.
    fewer = int(min(rows, max(LEAST_BATCH, found.work.waiting / cell.segments)))
    return tuned(replace(case, workload=replace(stream, batch_rows=fewer)), cell)


def tuned(case: Case, cell: Cell) -> Prediction:
    """On a modelled disk the size of reads is tuned for this processor, as the papers' costs have
    none per read and the smallest would always be best, and the rest for the papers' processor, by
    which claims are judged."""
    found = tune(case, machine_of(cell, MEASURED))
    if cell.device is None:
        return found
    rest = with_params(case, read_bytes=found.case.params.read_bytes)
    return tune(rest, machine_of(cell, PAPER))
