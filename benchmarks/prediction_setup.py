"""The cells of "prediction against measurement": what is joined, with which knobs, and how many
rows it takes until the state is steady."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import semistream as ss
from benchmarks import workload
from benchmarks.core_cell import BATCH
from experiments.lib.modelled import ModelledMaster
from semistream.budget.split import cached_keys
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
WARM_WINDOWS = {"sweep": 7, "scan": 3, "seek": 3, "plan": 3, "lookup": 0, "none": 0}
WARM_CACHE = 32  # misses per key that the front stage answers for: with fewer it still learns


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


def rows_until_steady(found: Prediction) -> float:
    """Stream rows after which a join does what it will do for ever: the front stage knows its keys
    or sleeps, waiting rows have come and gone, the pool is full."""
    case, work, split = found.case, found.work, found.split
    misses = max(0.02, work.misses)
    width = max(16, case.master.row_bytes)
    watched = 2 * cached_keys(split.front, width) if work.asleep else 0
    pool = 4 * split.pool / max(1, case.master.page_bytes)
    window = WARM_WINDOWS[case.algorithm.disk] * work.waiting / misses
    learns = case.algorithm.front == "groups" and work.hits > 0  # what is pinned is there at once
    return max(window, WARM_CACHE * work.cached / misses if learns else 0.0, watched, pool)


@contextmanager
def through_a_map(join: ss.SemiStreamJoin, store: Path) -> Iterator[None]:
    """Have the disk phase of a join that looks up row after row look into a map of the store
    meanwhile: its front stage sees the same rows and is told of the same keys, in less time."""
    assert join._engine is not None  # it has begun
    phase: Any = join._engine.phase
    master, mapped = phase.parts.master, ss.Store.open(store, io="map")
    phase.parts.master, phase._view = mapped, mapped.view(phase.columns)
    try:
        yield
    finally:
        phase.parts.master, phase._view = master, None
        mapped.close()
