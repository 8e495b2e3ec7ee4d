"""What pages of a master cost, asked for as joins ask: some at random places, or a scan.

The same call for every kind of master: a store, Parquet, an object store, a database. Each sample
asks twice for the same pages. The first time is cold for a local store, whose files are dropped
from this system's cache before; of other masters nobody here can know. The second time is as warm
as it gets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import SpecError
from ...kernels.arrays import I64
from ...master import Master, Store
from ...planning import Device
from .fitting import LEAST_SECONDS, LEAST_TIME, Clock, Deadline, not_below_zero, quarters
from .reads import EMPTIED, NOT_EMPTIED, forget_files, local_files

READS = (1, 4, 16, 64)  # random pages per call
SCANS = tuple(65536 * 4**i for i in range(4))  # bytes per call: 64 KB to 4 MB
SAMPLES = 50  # of each kind, at most
MARGIN = 1.5  # for what an expectation is worth


@dataclass(frozen=True)
class PageCost:
    """Calls of one kind: what they brought on average, and seconds per call."""

    kind: str  # read | scan
    pages: float
    requests: float  # stretches of neighbouring pages
    bytes: float
    seconds: float  # median of the first call
    low: float  # a quarter took less
    high: float  # a quarter took more
    again: float  # median of the same call right after
    samples: int

    @property
    def per_page(self) -> float:
        """Seconds per page, asked for the first time."""
        return self.seconds / self.pages

    @property
    def per_byte(self) -> float:
        """Seconds per byte, asked for the first time."""
        return self.seconds / max(1.0, self.bytes)


@dataclass(frozen=True)
class PageTable:
    """What calls of a master cost."""

    costs: tuple[PageCost, ...]
    cold: bool  # whether this system's cache was emptied before every first call
    local: bool
    note: str

    def device(self, name: str = "measured", warm: bool = False) -> Device:
        """The device that a join sees behind this master, checksums and decoding included. That
        several reads are in flight makes its requests short, so it has one lane. One that is not
        local has no sequential reads. All calls count by their relative error."""
        counts = np.array([(1.0, c.requests, c.bytes) for c in self.costs], np.float64)
        seconds = np.array([c.again if warm else c.seconds for c in self.costs], np.float64)
        sides = counts / np.maximum(seconds, LEAST_TIME)[:, None]
        call, request, byte = not_below_zero(sides, np.ones(len(sides))).tolist()
        rate = 1 / max(LEAST_SECONDS, byte)
        return Device(name, request, rate, sequential_free=self.local, call_seconds=call)


@dataclass
class _Kind:
    """One kind of call, and the samples of it."""

    kind: str
    amount: int  # pages of a read, bytes of a scan
    first: list[float]
    again: list[float]
    brought: list[tuple[int, int, int]]  # pages, requests, bytes

    @property
    def longest(self) -> float:
        """Seconds of a sample, both calls: the longest so far. Either may be the shorter one: the
        first where it goes on from the last sample, the second where it comes from memory."""
        return max(a + b for a, b in zip(self.first, self.again, strict=True))

    @property
    def least_bytes(self) -> int:
        return max(1, min(size for *_, size in self.brought))


def measure_pages(
    master: Master,
    seconds: float = 10,
    *,
    reads: Sequence[int] = READS,
    scans: Sequence[int] = SCANS,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> PageTable:
    """Measure `master.read` of random pages (where it has an index) and `master.scan` from random
    pages, in `seconds` at most: what is expected not to end in time is not begun, except the very
    first call. All columns are asked for.

    A mapped store should be opened with io="pread" for this: a scan of a map reads nothing until
    its rows are used."""
    deadline = Deadline(seconds, clock)
    info = master.describe()
    if info.pages == 0:
        raise SpecError(f"{info.name} has no pages to measure; use a master with rows")
    local = isinstance(master, Store) and not master.place.remote
    files = local_files(master) if isinstance(master, Store) and local else []
    kinds = _kinds(master, reads, scans)
    rng, cold = np.random.default_rng(seed), local
    for _ in range(SAMPLES):
        for number, kind in enumerate(kinds):
            if deadline.allows(MARGIN * _expected(kinds, number)):
                cold = forget_files(files) and cold
                _sample(master, kind, rng, deadline)
    costs = tuple(_cost(kind) for kind in kinds if kind.first)
    where = EMPTIED if cold else NOT_EMPTIED
    return PageTable(costs, cold, local, where)


def _kinds(master: Master, reads: Sequence[int], scans: Sequence[int]) -> list[_Kind]:
    pages = len(master.first)
    most = pages if master.block_pages is None else min(pages, master.block_pages)
    found = master.describe().indexed and master.ranges
    amounts = [("read", n) for n in sorted(reads) if found and n <= most]
    amounts += [("scan", n) for n in sorted(scans) if master.scans]
    if not amounts:
        raise SpecError(
            f"{master.describe().name} can neither read pages by number nor scan; it cannot be "
            "measured this way"
        )
    return [_Kind(kind, amount, [], [], []) for kind, amount in amounts]


def _expected(kinds: list[_Kind], number: int) -> float:
    """Seconds of a sample: the longest of its kind so far, or of smaller ones of the same sort. The
    first scan: by the bytes, as fast as any read, and no shorter than any."""
    kind = kinds[number]
    known = {k.amount: k.longest for k in kinds[: number + 1] if k.first and k.kind == kind.kind}
    if known:
        most = max(known)
        return known[most] * kind.amount / most
    others = [k for k in kinds if k.first]
    rate = min((k.longest / k.least_bytes for k in others), default=0.0)
    return max(rate * kind.amount, min((k.longest for k in others), default=0.0))


def _sample(master: Master, kind: _Kind, rng: np.random.Generator, deadline: Deadline) -> None:
    columns = master.describe().schema.names
    if kind.kind == "read":
        numbers = np.sort(rng.choice(len(master.first), kind.amount, replace=False))

        def call() -> None:
            pages.append(master.read(numbers.astype(np.int64), columns).numbers)
    else:
        info = master.describe()
        most = -(-kind.amount * info.pages // max(1, info.bytes))  # pages that it may bring
        start = int(rng.integers(0, max(1, info.pages - most)))

        def call() -> None:
            pages.append(master.scan(start, kind.amount, columns).numbers)

    pages: list[I64] = []
    before = master.traffic.bytes
    kind.first.append(deadline.timed(call))
    size = master.traffic.bytes - before or int(master.page_bytes(pages[0]).sum())
    kind.again.append(deadline.timed(call))
    requests = 1 + int((np.diff(pages[0]) != 1).sum())
    kind.brought.append((len(pages[0]), requests, size))


def _cost(kind: _Kind) -> PageCost:
    pages, requests, size = np.mean(np.array(kind.brought, np.float64), 0).tolist()
    again = quarters(kind.again)[0]
    return PageCost(kind.kind, pages, requests, size, *quarters(kind.first), again, len(kind.first))
