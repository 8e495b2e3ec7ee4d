"""What reads of a local store's files cost, by their size and how many are in flight.

Reads are at random places that do not overlap, by threads, as a store reads. Before every sample
this system's cache of the files is emptied (posix_fadvise). The caches of a hypervisor and of
the disk itself cannot be emptied from here, nor that of pages which some process has mapped, so
"cold" means: not in this system's memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from ...errors import MasterError, SpecError
from ...kernels.arrays import I64
from ...master import Store
from ...planning import Device, ReadCost
from .fitting import Clock, Deadline, fit_device, quarters

SIZES = tuple(4096 * 4**i for i in range(6))  # 4 KB to 4 MB
FLIGHTS = (1, 4, 16, 32)
SAMPLES = 50  # of each kind, at most
READS = 64  # in a row by one thread, at most
ROUNDS = 4  # samples of each kind that there should be time for
EMPTIED = (
    "this system's cache was emptied before every sample; those of a hypervisor or of the disk "
    "cannot be"
)
NOT_EMPTIED = "this system's cache could not be emptied: reads may have come from memory"


@dataclass(frozen=True)
class ReadTable:
    """Seconds per read, by size and reads in flight; cells without time to measure are absent."""

    costs: tuple[ReadCost, ...]
    cold: bool  # whether this system's cache was emptied
    note: str

    def device(self, name: str = "measured") -> Device:
        """The device whose law comes closest."""
        return fit_device(self.costs, name)

    def __str__(self) -> str:
        lines = [f"{c.size:>9,} {c.in_flight:>3} {1e6 * c.seconds:>11,.1f} "
                 f"{1e6 * c.low:>11,.1f} {1e6 * c.high:>11,.1f} {c.samples:>4}"
                 for c in self.costs]  # fmt: skip
        head = (
            f"{'bytes':>9} {'at':>3} {'us per read':>11} {'quarter <':>11} {'quarter >':>11}    n"
        )
        return "\n".join([head, *lines, self.note])


class Reader(Protocol):
    """What is measured; for tests, something that lets a clock go on instead."""

    def slots(self, size: int) -> int:
        """How many reads of a size there are that do not overlap."""

    def forget(self) -> bool:
        """Empty the cache; False: it cannot be."""

    def read(self, size: int, slots: I64, in_flight: int) -> None:
        """Read some slots, so many at a time."""

    def close(self) -> None: ...


def measure_reads(
    source: str | os.PathLike[str] | Store,
    seconds: float = 10,
    *,
    sizes: Sequence[int] = SIZES,
    in_flight: Sequence[int] = FLIGHTS,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    reader: Reader | None = None,
) -> ReadTable:
    """Measure reads of a local store (open, or its path) or of a single file, in `seconds` at most.

    Sizes larger than the files are left out. Every kind is measured in turn, so that a passing
    disturbance meets all of them; what is expected not to end in time is not begun."""
    deadline = Deadline(seconds, clock)
    reading = reader or FileReader(local_files(source), max(in_flight))
    try:
        return _measure(reading, deadline, seconds, sorted(sizes), sorted(in_flight), seed)
    finally:
        reading.close()


def _measure(
    reader: Reader,
    deadline: Deadline,
    seconds: float,
    sizes: Sequence[int],
    flights: Sequence[int],
    seed: int,
) -> ReadTable:
    rng, cold = np.random.default_rng(seed), True
    kinds = [(size, at) for size in sizes for at in flights if reader.slots(size)]
    if not kinds:
        raise SpecError(f"the files are smaller than {min(sizes)} bytes; measure a larger store")
    share = seconds / (ROUNDS * len(kinds))
    found: dict[tuple[int, int], list[float]] = {}
    for _ in range(SAMPLES):
        for size, at in kinds:
            guess = _expected(found, size, at)
            count = at * max(1, min(READS, int(share / (guess * at)))) if guess else at
            if not deadline.allows(2 * count * guess):  # half for what a guess is worth
                continue
            slots = _some(rng, reader.slots(size), count)
            cold = reader.forget() and cold
            took = deadline.timed(partial(reader.read, size, slots, at))
            found.setdefault((size, at), []).append(took / len(slots))
    costs = [
        ReadCost(size, at, *quarters(some), len(some)) for (size, at), some in sorted(found.items())
    ]
    return ReadTable(tuple(costs), cold, EMPTIED if cold else NOT_EMPTIED)


def _expected(found: dict[tuple[int, int], list[float]], size: int, at: int) -> float:
    """Seconds of a read, from what is known of it, or of fewer at a time, or of smaller ones. 0:
    nothing is known, and the first read is a small one."""
    if (size, at) in found:
        return float(np.median(found[size, at]))
    fewer = [a for s, a in found if s == size and a < at]
    if fewer:
        return float(np.max(found[size, max(fewer)]))
    smaller = [s for s, _ in found if s < size]
    if not smaller:
        return 0.0
    most = max(smaller)
    return max(found[most, a][-1] for s, a in found if s == most) * size / most


def _some(rng: np.random.Generator, slots: int, count: int) -> I64:
    """Different slots in random order, about `count`."""
    if count >= slots:
        return rng.permutation(slots)
    chosen = np.unique(rng.integers(0, slots, count))
    return rng.permutation(chosen)


# --- files --------------------------------------------------------------------------------------


class FileReader:
    """Local files, read at random places by threads."""

    def __init__(self, paths: Sequence[Path], threads: int) -> None:
        self._handles = [os.open(path, os.O_RDONLY) for path in paths]
        self._sizes = np.array([os.fstat(h).st_size for h in self._handles], np.int64)
        self._pool = ThreadPoolExecutor(threads, "semistream-measure")
        for handle in self._handles:
            _advise(handle, "POSIX_FADV_RANDOM")  # nothing is to be read ahead

    def slots(self, size: int) -> int:
        return int((self._sizes // size).sum())

    def forget(self) -> bool:
        return all([_advise(handle, "POSIX_FADV_DONTNEED") for handle in self._handles])

    def read(self, size: int, slots: I64, in_flight: int) -> None:
        ends = np.cumsum(self._sizes // size)
        file = np.searchsorted(ends, slots, "right")
        offset = (slots - np.concatenate([[0], ends])[file]) * size
        places = list(zip(file.tolist(), offset.tolist(), strict=True))
        lanes = [places[i::in_flight] for i in range(in_flight)]
        if in_flight == 1:
            self._read_all(size, places)
        else:
            list(self._pool.map(lambda some: self._read_all(size, some), lanes))

    def _read_all(self, size: int, places: list[tuple[int, int]]) -> None:
        """A loop over reads, not over rows: each is a call of the system."""
        target = memoryview(bytearray(size))
        for file, offset in places:
            done = 0
            while done < size:
                count = os.preadv(self._handles[file], [target[done:]], offset + done)
                if count == 0:
                    raise MasterError("a file became shorter while it was measured; try again")
                done += count

    def close(self) -> None:
        self._pool.shutdown()
        for handle in self._handles:
            os.close(handle)


def local_files(source: str | os.PathLike[str] | Store) -> list[Path]:
    """The files that hold the pages of a local store, or a file itself."""
    if isinstance(source, Store):
        files = [file.path for file in source.files]
        if source.place.remote:
            raise SpecError(f"{source.place} is not a local folder; use measure_pages for it")
        return [Path(path) for path in files]
    path = Path(source)
    if path.is_file():
        return [path]
    store = Store.open(source, io="pread")
    try:
        return local_files(store)
    finally:
        store.close()


def forget_files(paths: Sequence[Path]) -> bool:
    """Empty this system's cache of some files; False: it cannot be."""
    done = bool(paths)
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            done = _advise(handle, "POSIX_FADV_DONTNEED") and done
        finally:
            os.close(handle)
    return done


def _advise(handle: int, advice: str) -> bool:
    with suppress(OSError, AttributeError):  # not every system and file system knows it
        os.posix_fadvise(handle, 0, 0, getattr(os, advice))
        return True
    return False
