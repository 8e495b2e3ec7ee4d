"""A master on a disk that is not here: every page is really read, and the clock goes on by what a
modelled device would take.

    join ──scan, read──> ModelledMaster ──> the master itself, for the rows
                              └──> Device.seconds ──> clock.advance

Pages lie on the device one after another in the order of their numbers. (A store's runs are files
of their own; that moving from one to the next is a seek is left out.) A call is one request for
each stretch of pages without a gap. It reads through gaps that are cheaper read than skipped, as a
sensible driver would, also through one between the end of the last call and its own beginning: the
head is there already. A request that begins where the last one ended goes on.

A modelled device has no map: pages that are read count as memory, whatever the master itself does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from semistream.errors import MasterError
from semistream.kernels.arrays import I64
from semistream.master.base import Master, Pages
from semistream.master.wrapped import WrappedMaster
from semistream.planning.device import Device


class Clock(Protocol):
    """Time that is told how far to go on; `semistream.testing.ManualClock` is one."""

    def __call__(self) -> float: ...
    def advance(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class DeviceUse:
    """What a device was asked for so far. The difference of two is what happened in between."""

    calls: int = 0  # scans and reads
    requests: int = 0
    sequential: int = 0  # of these, requests that went on where the last one ended
    pages: int = 0  # that were asked for
    bytes: int = 0  # that were read, gaps included
    gaps: int = 0  # bytes of gaps that were read through
    seconds: float = 0.0

    def __add__(self, other: DeviceUse) -> DeviceUse:
        return self._with(other, 1)

    def __sub__(self, other: DeviceUse) -> DeviceUse:
        return self._with(other, -1)

    def _with(self, other: DeviceUse, sign: int) -> DeviceUse:
        names = [f.name for f in fields(self)]
        return DeviceUse(*(getattr(self, n) + sign * getattr(other, n) for n in names))


class ModelledMaster(WrappedMaster):
    """Another master, its pages on a modelled device. Rows and pages are those of `master`, time
    is charged to `clock`; `use` says what the device was asked for."""

    def __init__(self, master: Master, device: Device, clock: Clock) -> None:
        info = master.describe()
        if info.indexed and not master.ranges:
            raise MasterError(
                f"{info.name} finds rows by key and has no pages in the order of its key "
                f"{list(info.key)}, so they cannot lie on a modelled device; use a store of it"
            )
        super().__init__(master)
        self.device, self.clock = device, clock
        self._sizes = _sizes_on_device(master)
        self._ends: I64 = np.concatenate([[0], np.cumsum(self._sizes)])
        self._head: int | None = None  # where the last request ended
        self._use = DeviceUse()

    @property
    def use(self) -> DeviceUse:
        """What the device was asked for so far."""
        return self._use

    # --- reading -------------------------------------------------------------------------------

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        return self._charged(self.master.scan(start, max_bytes, columns))

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        return self._charged(self.master.read(numbers, columns))

    def _charged(self, pages: Pages) -> Pages:
        """The clock goes on when the pages are there: a read that failed took no time."""
        if len(pages.numbers) == 0:
            return pages
        use = self._asked(pages.numbers)
        self.clock.advance(use.seconds)
        self._use += use
        if pages.allocated:
            return pages
        return replace(pages, allocated=int(self.page_bytes(pages.numbers).sum()))

    def _asked(self, numbers: I64) -> DeviceUse:
        """The requests for some pages, in ascending order."""
        begin, end = self._ends[numbers], self._ends[numbers + 1]
        head = self._head if self._head is not None else np.iinfo(np.int64).max
        gap = begin - np.concatenate([[head], end[:-1]])
        through = (gap >= 0) & (gap < max(1, self.device.gap_bytes))
        goes_on = bool(through[0]) and self.device.sequential_free
        through[0] = goes_on
        requests = int((~through).sum()) + goes_on
        gaps = int(gap[through].sum())
        size = int((end - begin).sum()) + gaps
        self._head = int(end[-1])
        seconds = self.device.seconds(requests, size, goes_on)
        return DeviceUse(1, requests, int(goes_on), len(numbers), size, gaps, seconds)

    # --- another version ------------------------------------------------------------------------

    def newest(self) -> Master:
        newer = self.master.newest()
        return self if newer is self.master else ModelledMaster(newer, self.device, self.clock)


def _sizes_on_device(master: Master) -> I64:
    """Bytes of every page. Where a master only knows the most that a page can take, all pages share
    its bytes evenly."""
    pages, size = master.describe().pages, master.describe().bytes
    if type(master).page_bytes is not Master.page_bytes:
        return master.page_bytes(np.arange(pages, dtype=np.int64))
    return np.full(pages, -(-size // max(1, pages)), np.int64)
