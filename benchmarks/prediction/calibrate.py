"""Calibrate this machine, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import semistream as ss
from semistream.cli.calibrate.costs import measure_costs
from semistream.cli.calibrate.pages import measure_pages
from semistream.planning.machine import Machine


@dataclass(frozen=True)
class Calibration:
    store: Path
    seconds: float
    seed: int


def calibrate(given: Calibration) -> Machine:
    """This machine: its processor, and pages of this store that come from the page cache."""
    costs = measure_costs(given.seconds, seed=given.seed)
    pages = measure_pages(ss.Store.open(given.store, io="pread"), given.seconds / 4)
    return Machine(device=pages.device(warm=True), costs=costs.points, measured="in this run")
