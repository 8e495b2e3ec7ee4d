"""Disks as numbers: seconds per request, bytes per second, how many requests overlap.

Those with a name (`DEVICES`) stand for hardware that is not here; the comment above each says what
its numbers rest on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from ..errors import SpecError
from ..kernels.arrays import F64


def within(name: str, value: float, least: float) -> None:
    if not isinstance(value, int | float) or not least <= value < math.inf:
        raise SpecError(f"{name}={value!r} is not a number from {least:g} on")


@dataclass(frozen=True)
class Device:
    """A disk, or what stands for one. A request waits `request_seconds`, then its bytes come at
    `bytes_per_second`; of the requests asked for together up to `in_flight` do so at a time, and
    all of them share `total_bytes_per_second`.

    `in_flight` is how many requests overlap in effect: where 32 at a time are done ten times as
    fast as one at a time, it is ten. `sequential_free`: a request that goes on where the last
    one ended does not wait. `call_seconds`: what asking takes, for however many requests."""

    name: str
    request_seconds: float
    bytes_per_second: float
    in_flight: float = 1.0
    sequential_free: bool = True
    total_bytes_per_second: float | None = None  # None: one request can have all there is
    call_seconds: float = 0.0

    def __post_init__(self) -> None:
        within("request_seconds", self.request_seconds, 0.0)
        within("bytes_per_second", self.bytes_per_second, 1.0)
        within("in_flight", self.in_flight, 1.0)
        within("total_bytes_per_second", self.total, self.bytes_per_second)
        within("call_seconds", self.call_seconds, 0.0)

    @property
    def total(self) -> float:
        """Bytes per second of all requests together."""
        given = self.total_bytes_per_second
        return self.bytes_per_second if given is None else given

    @overload
    def seconds(self, requests: float, size: float, sequential: float = 0) -> float: ...
    @overload
    def seconds(self, requests: F64, size: F64 | float, sequential: F64 | float = 0) -> F64: ...
    @overload
    def seconds(self, requests: float, size: F64, sequential: F64 | float = 0) -> F64: ...
    def seconds(self, requests: Any, size: Any, sequential: Any = 0) -> Any:
        """Seconds for `requests` that are asked for together, `size` bytes in all; `sequential` of
        them go on where the one before ended.

            waits = requests, less the sequential ones where these are free
            lanes = requests, at most in_flight
            call_seconds + max(size / total,
                               (waits x request_seconds + size / bytes_per_second) / lanes)

        With one lane that is the textbook's sum of seek and transfer; with many it is either the
        lanes or the bandwidth that they share, whichever takes longer. Lanes are filled evenly: 17
        requests in 16 lanes take 17/16 of the time of 16. Requests that wait for each other are
        not asked for together: add their seconds up, call by call."""
        waits = requests - sequential if self.sequential_free else requests
        lanes = np.clip(requests, 1, self.in_flight)
        alone = waits * self.request_seconds + size / self.bytes_per_second
        longer = self.call_seconds + np.maximum(size / self.total, alone / lanes)
        return float(longer) if np.ndim(longer) == 0 else longer

    @property
    def gap_bytes(self) -> int:
        """A gap of fewer bytes than this is cheaper read than skipped: what the device reads in the
        time that one more request adds, all lanes being busy (kappa of the cost model)."""
        together = min(self.total, self.bytes_per_second * self.in_flight)
        return round(self.request_seconds / self.in_flight * together)


# Not measured here, but what data sheets and papers say of hardware that the papers ran on:
#   8.5 ms      average seek of a desktop disk of 7200 rounds per minute
#   4.17 ms     half a round, 60 / 7200 / 2
#   60 MB/s     its rate in order: a cycle over 420 MB takes 7 s, in which the 40,000 rows that wait
#               in 4 MB make 5,700 per second (Polyzotis et al., section 4.2: 6,000)
_HDD = Device("hdd-7200", 0.0085 + 0.00417, 60e6)
# Measured on a virtual machine with 2 cores and a network disk, 4 KB at random places:
#   65 us       15,000 reads per second one at a time, less the 1.7 us that the bytes take
#   2.4 GB/s    in order; also random 64 KB with several in flight
#   10          156,000 reads per second with 32 at a time: 10.4 times as many as with one
_SSD = Device("ssd", 65e-6, 2.4e9, in_flight=10)
# Not measured, round numbers of the kind that providers of object stores publish: tens of
# milliseconds to the first byte, some 100 MB/s per request, as many requests as one opens. A range
# that follows another is a request like any other.
_OBJECTS = Device("object-store", 30e-3, 100e6, 16, False, 16 * 100e6)
DEVICES: Mapping[str, Device] = MappingProxyType({d.name: d for d in (_HDD, _SSD, _OBJECTS)})
