"""The cells of "prediction against measurement": what is joined, and with which knobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.stores import BATCH
from experiments.lib.modelled import ModelledMaster
from semistream.master import Master
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine
from semistream.planning.predict import Prediction
from semistream.planning.tune import tune
from semistream.planning.work import Case
from semistream.spec import ALGORITHMS, MasterFacts, Workload
from semistream.testing import ManualClock

BATCH_SECONDS = 0.1  # of the wall clock that a batch should take at most
MODELLED_BATCH, LOOKUP_BATCH = 2_000, 500
LEAST_BATCH = 500


@dataclass(frozen=True)
class Cell:
    store: Path
    device: str  # map | pread | the name of a modelled one
    algorithm: str
    memory: float  # share of the master's bytes
    skew: float
    machine: Machine
    seed: int = 0  # of the stream
    warm_seconds: float = 2.0  # real devices: at most
    timed_seconds: float = 1.0  # real devices: about
    segments: int = 3

    @property
    def modelled(self) -> bool:
        return self.device in DEVICES


def open_on(device: str, store: Path, clock: ManualClock | None = None) -> Master:
    """The master as a cell on this device sees it."""
    if device in DEVICES:
        real = ss.Store.open(store, io="map")
        return ModelledMaster(real, DEVICES[device], clock or ManualClock())
    return ss.Store.open(store, io=device)


def known_stream(skew: float, batch_rows: int = BATCH) -> Workload:
    """The stream of every cell in numbers, as a sketch of it would have them."""
    some = workload.stream_table(np.random.default_rng(0), 1000, 1000, skew)
    return Workload(
        skew,
        row_bytes=round(some.nbytes / len(some)),
        columns=some.num_columns,
        batch_rows=batch_rows,
    )


def proposed(cell: Cell, master: MasterFacts) -> Prediction:
    """What the tuner proposes for the cell. Batches are so small that one does not outlast a
    segment: a join that reads a page per row would take half a minute for 100,000 rows."""
    algorithm = ALGORITHMS[cell.algorithm]
    rows = BATCH
    if cell.modelled:
        rows = LOOKUP_BATCH if algorithm.disk == "lookup" else MODELLED_BATCH
    memory = int(cell.memory * master.bytes)
    case = Case(algorithm, master, known_stream(cell.skew, rows), memory)
    found = tune(case, cell.machine)
    fewer = int(min(rows, max(LEAST_BATCH, BATCH_SECONDS * found.rate)))
    if cell.modelled or fewer == rows:
        return found
    return tune(replace(case, workload=replace(case.workload, batch_rows=fewer)), cell.machine)
