"""What the processor takes for each operation of a join, from short joins that really run.

    samples.py: short joins ──> seconds of the processor, and how often each operation was done
      ──least squares, nothing below zero──> seconds per operation, by the bytes it works on

No operation is timed alone: that would leave out what it does to the caches of the others.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import SpecError
from ...planning import DEFAULT_MACHINE, Points
from .fitting import Deadline, not_below_zero
from .samples import Progress, Sample, measured, samples_of

UNIT = 1 << 20  # up to about so many bytes an operation costs the same
SIZES = tuple(float(UNIT << i) for i in range(0, 17, 2))  # 1 MB to 64 GB
SIZED = (
    "ask",
    "hit",
    "link scan",
    "link seek",
    "find",
    "look",
    "scan",
    "seek",
)  # cost more on more bytes
PRIOR = 0.05  # weight of what is usual, beside samples of weight 1


@dataclass(frozen=True)
class Costs:
    """Seconds per operation, and how far the samples are from what these add up to."""

    points: Mapping[str, Points]
    error: Mapping[str, float]  # by algorithm: median of the relative error
    samples: int


def measure_costs(seconds: float = 40.0, progress: Progress | None = None, seed: int = 0) -> Costs:
    """Run joins for about so long, and find what each operation costs."""
    deadline = Deadline(seconds, time.perf_counter)
    with tempfile.TemporaryDirectory(prefix="semistream-calibrate-") as folder:
        samples = list(samples_of(Path(folder), deadline, seconds, progress, seed))
    met = {sample.algorithm for sample in samples}
    wanted = measured()
    if met != set(wanted):
        raise SpecError(
            f"{seconds:g} seconds were too short to measure {len(wanted) - len(met)} of "
            f"{len(wanted)} algorithms; give more, or wait until the machine is less busy"
        )
    return fit(samples)


def fit(samples: Sequence[Sample]) -> Costs:
    """Costs whose sums come closest to the samples, all counting by their relative error."""
    names = sorted({o.name for s in samples for o in s.operations})
    terms = [(name, False) for name in names] + [(name, True) for name in names if name in SIZED]
    place = {term: i for i, term in enumerate(terms)}
    sides = np.zeros((len(samples), len(terms)))
    for row, sample in enumerate(samples):
        for done in sample.operations:
            sides[row, place[done.name, False]] += done.count / sample.seconds
            if done.name in SIZED:
                far = done.count * np.log2(1 + done.size / UNIT)
                sides[row, place[done.name, True]] += far / sample.seconds
    usual = np.array([_usual(name, far) for name, far in terms])
    # What the samples cannot tell stays near what is usual: each cost counts as a weak sample.
    prior = PRIOR * np.diag(1 / usual)
    wanted = np.concatenate([np.ones(len(samples)), np.full(len(terms), PRIOR)])
    found = not_below_zero(np.concatenate([sides, prior]), wanted)
    error = np.abs(sides @ found - 1)
    by_name = {
        name: float(
            np.median([e for e, s in zip(error, samples, strict=True) if s.algorithm == name])
        )
        for name in dict.fromkeys(s.algorithm for s in samples)
    }
    points = {
        name: _points(found[place[name, False]], found[place[name, True]] if name in SIZED else 0.0)
        for name in names
    }
    return Costs(points, by_name, len(samples))


def _usual(name: str, far: bool) -> float:
    """The cost of an operation where nothing was measured: near the processor, or what each
    doubling of the table adds."""
    near = DEFAULT_MACHINE.cost(name, float(UNIT))
    if not far:
        return near
    large = float(UNIT << 10)
    return max(0.01 * near, (DEFAULT_MACHINE.cost(name, large) - near) / 10)


def _points(near: float, far: float) -> Points:
    if far == 0:
        return ((SIZES[0], float(near)),)
    return tuple((size, float(near + far * np.log2(1 + size / UNIT))) for size in SIZES)
