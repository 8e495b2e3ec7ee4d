"""From times to numbers: the median and quarters of samples, the device that fits some times best,
and who may still be measured before the time is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...errors import SpecError
from ...kernels.arrays import F64
from ...planning import Device, ReadCost

Clock: TypeAlias = Callable[[], float]
LEAST_SECONDS = 1e-12  # per byte: no device reads faster
LEAST_TIME = 1e-9  # of a sample: no clock tells less
RESERVE = 0.05  # of the time, for reads that take longer than was to be expected


class Deadline:
    """How much time is left, and whether something that is expected to take long still fits."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        if not 0 < seconds < float("inf"):
            raise SpecError(f"seconds={seconds!r} is no time to measure in; give some, such as 10")
        self.clock, self._end = clock, clock() + (1 - RESERVE) * seconds

    @property
    def left(self) -> float:
        return self._end - self.clock()

    def allows(self, expected: float) -> bool:
        return expected < self.left

    def timed(self, work: Callable[[], object]) -> float:
        begin = self.clock()
        work()
        return self.clock() - begin


def quarters(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, and what a quarter of the samples is below and above."""
    low, middle, high = np.quantile(np.array(samples, np.float64), [0.25, 0.5, 0.75])
    return float(middle), float(low), float(high)


def fit_line(requests: F64, size: F64, seconds: F64) -> tuple[float, float]:
    """Seconds per request and per byte that come closest to the times, all counting by their
    relative error: else the largest reads alone would decide. Neither is below zero."""
    sides = np.stack([requests, size], 1) / np.maximum(seconds, LEAST_TIME)[:, None]
    one = np.ones(len(seconds))
    per_request, per_byte = np.linalg.lstsq(sides, one, rcond=None)[0]
    if per_request < 0:
        return 0.0, max(LEAST_SECONDS, _through_zero(sides[:, 1]))
    if per_byte < LEAST_SECONDS:
        return _through_zero(sides[:, 0]), LEAST_SECONDS
    return float(per_request), float(per_byte)


def _through_zero(side: F64) -> float:
    return float(side.sum() / (side * side).sum())


def not_below_zero(sides: F64, wanted: F64, rounds: int = 3_000) -> F64:
    """The x >= 0 that brings sides @ x closest to `wanted`: one coordinate after another."""
    scale = np.maximum(np.abs(sides).max(axis=0), 1e-300)
    sides = sides / scale
    products, target = sides.T @ sides, sides.T @ wanted
    diagonal = np.diag(products) + 1e-12
    x = np.zeros(len(target))
    for _ in range(rounds):
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (target[i] - products[i] @ x) / diagonal[i])
    return np.asarray(x / scale, np.float64)


def fit_device(costs: Sequence[ReadCost], name: str) -> Device:
    """The device that reads of files show. One read at a time gives the wait and the rate of a
    request; many at a time how many overlap, by the smallest reads, and the rate of all."""
    alone = [c for c in costs if c.in_flight == 1]
    if not alone:
        raise SpecError("reads one at a time were not measured; give more seconds")
    size, seconds = np.array([(c.size, c.seconds) for c in alone], np.float64).T
    wait, per_byte = fit_line(np.ones(len(alone)), size, seconds)
    smallest = min(alone, key=lambda c: c.size)
    same = [c.seconds for c in costs if c.size == smallest.size]
    overlap = max(1.0, smallest.seconds / max(LEAST_TIME, min(same)))
    best = max(c.size / max(LEAST_TIME, c.seconds) for c in costs)
    return Device(name, wait, 1 / per_byte, overlap, True, max(1 / per_byte, best))
