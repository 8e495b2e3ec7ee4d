"""A machine as numbers: what its disk and its processor take for what a join does.

    Device      a disk: seconds per request, bytes per second, how many requests overlap
    Cpu         seconds per row of the operations that the papers count
    Machine     a device and costs as they were measured, kept as JSON per machine

Devices with a name (`DEVICES`) and the processor of the papers (`PAPER_CPU`) stand for hardware
that is not here; the comment above each says what its numbers rest on.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from .errors import MachineError, SpecError

Floats: TypeAlias = "NDArray[np.float64]"
Points: TypeAlias = tuple[tuple[float, float], ...]
FORMAT = {"kind": "semistream machine", "format": 1}
PLACE = "SEMISTREAM_MACHINE"  # the environment variable that names the file


def _within(name: str, value: float, least: float) -> None:
    if not isinstance(value, int | float) or not least <= value < math.inf:
        raise SpecError(f"{name}={value!r} is not a number from {least:g} on")


@dataclass(frozen=True)
class Device:
    """A disk, or what stands for one. A request waits `request_seconds`, then its bytes come at
    `bytes_per_second`; of the requests asked for together up to `in_flight` do so at a time, and
    all of them share `total_bytes_per_second`.

    `in_flight` is how many requests overlap in effect: where 32 at a time are done ten times as
    fast as one at a time, it is ten. `sequential_free`: a request that goes on where the last
    one ended does not wait."""

    name: str
    request_seconds: float
    bytes_per_second: float
    in_flight: float = 1.0
    sequential_free: bool = True
    total_bytes_per_second: float | None = None  # None: one request can have all there is

    def __post_init__(self) -> None:
        _within("request_seconds", self.request_seconds, 0.0)
        _within("bytes_per_second", self.bytes_per_second, 1.0)
        _within("in_flight", self.in_flight, 1.0)
        _within("total_bytes_per_second", self.total, self.bytes_per_second)

    @property
    def total(self) -> float:
        """Bytes per second of all requests together."""
        given = self.total_bytes_per_second
        return self.bytes_per_second if given is None else given

    @overload
    def seconds(self, requests: float, size: float, sequential: float = 0) -> float: ...
    @overload
    def seconds(
        self, requests: Floats, size: Floats | float, sequential: Floats | float = 0
    ) -> Floats: ...
    @overload
    def seconds(self, requests: float, size: Floats, sequential: Floats | float = 0) -> Floats: ...
    def seconds(self, requests: Any, size: Any, sequential: Any = 0) -> Any:
        """Seconds for `requests` that are asked for together, `size` bytes in all; `sequential` of
        them go on where the one before ended.

            waits = requests, less the sequential ones where these are free
            lanes = requests, at most in_flight
            max(size / total, (waits x request_seconds + size / bytes_per_second) / lanes)

        With one lane that is the textbook's sum of seek and transfer; with many it is either the
        lanes or the bandwidth that they share, whichever takes longer. Lanes are filled evenly: 17
        requests in 16 lanes take 17/16 of the time of 16. Requests that wait for each other are
        not asked for together: add their seconds up, call by call."""
        waits = requests - sequential if self.sequential_free else requests
        lanes = np.clip(requests, 1, self.in_flight)
        alone = waits * self.request_seconds + size / self.bytes_per_second
        longer = np.maximum(size / self.total, alone / lanes)
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


@dataclass(frozen=True)
class Cpu:
    """Seconds per row of what the papers count, apart from reading."""

    take_in: float  # a stream row into the stream buffer (c_S)
    probe: float  # a stream row asks the front stage (c_H)
    append: float  # a stream row into the table of waiting rows and the queue (c_A)
    expire: float  # a stream row out of both (c_E)
    probe_master: float  # a master row asks the waiting rows, or a waiting row a page (c_H)
    emit: float  # an output row (c_O)


# No paper prints a cost. (HYBRIDJOIN's table 1 gives nanoseconds as the unit, and no number.) These
# follow from rates in section 4.2 of the MESHJOIN paper, a Pentium IV of 3 GHz:
#   1 / rate = disk share / M + c  for 6,000 rows per second at 4 MB and 26,000 at 40 MB gives
#   c = 24.2 us per stream row for take_in + append + expire + emit (3,235 at 2 MB; printed: 3,500).
#   At least 9,000 rows per second at 20 MB with 156 matches each: emit takes 0.37 us at most.
# Chosen, since the paper cannot tell: take_in 1 us; append and expire alike; probes of 0.1 us, that
# is 0.35 s of a cycle of 7 s: small, as the rate follows the memory closely where that is scarce.
PAPER_CPU = Cpu(
    take_in=1e-6, probe=0.1e-6, append=11.4e-6, expire=11.4e-6, probe_master=0.1e-6, emit=0.37e-6
)


@dataclass(frozen=True)
class ReadCost:
    """Reads of one size, so many at a time: seconds per read, and how they were spread."""

    size: int
    in_flight: int
    seconds: float  # median
    low: float  # a quarter took less
    high: float  # a quarter took more
    samples: int


@dataclass(frozen=True)
class Machine:
    """What reading and computing cost on one machine. `costs` are seconds by the bytes of the table
    that is worked on, under a name for the operation; `spread` is how far, relative to the median,
    three quarters of the samples of a cost reach."""

    device: Device
    reads: tuple[ReadCost, ...] = ()
    costs: Mapping[str, Points] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    cpu: Cpu | None = None  # a processor that is not here, in the place of `costs`
    measured: str = ""  # when, as in 2026-11-16T09:30:00+00:00; empty: not measured
    host: str = ""  # where
    note: str = ""  # why these are not the numbers that one might expect

    def __post_init__(self) -> None:
        for name, points in self.costs.items():
            sizes = [size for size, _ in points]
            if not points or sizes != sorted(set(sizes)) or sizes[0] <= 0:
                raise SpecError(f"costs[{name!r}] must be at rising sizes above 0, not {sizes}")
            for _, seconds in points:
                _within(f"costs[{name!r}]", seconds, 0.0)

    @overload
    def cost(self, name: str, size: float) -> float: ...
    @overload
    def cost(self, name: str, size: Floats) -> Floats: ...
    def cost(self, name: str, size: Any) -> Any:
        """Seconds of an operation on a table of `size` bytes: a straight line over the logarithm of
        the size between the points measured, level beyond them."""
        if name not in self.costs:
            known = ", ".join(self.costs) or "none"
            raise SpecError(f"cost {name!r} is not among those measured ({known}); calibrate again")
        sizes, seconds = np.array(self.costs[name], np.float64).T
        found = np.interp(np.log(np.maximum(size, sizes[0])), np.log(sizes), seconds)
        return float(found) if np.ndim(found) == 0 else found

    def read_seconds(self, size: float, in_flight: int = 1) -> float:
        """Seconds of one read of `size` bytes among `in_flight` at a time: between the sizes that
        were measured with the nearest number in flight; where none was, by the device's law."""
        if not self.reads:
            return self.device.seconds(in_flight, in_flight * size) / in_flight
        flights = {read.in_flight for read in self.reads}
        nearest = min(flights, key=lambda n: (abs(math.log(n / in_flight)), n))
        some = sorted((r.size, r.seconds) for r in self.reads if r.in_flight == nearest)
        sizes, seconds = np.log(np.array(some, np.float64)).T
        if size > some[-1][0]:  # beyond: by the device's rate
            return some[-1][1] + (size - some[-1][0]) / self.device.total
        return float(np.exp(np.interp(math.log(max(1.0, size)), sizes, seconds)))

    # --- kept as a file ------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write it to `path`; without one to $SEMISTREAM_MACHINE, else to semistream/machine.json
        in $XDG_CACHE_HOME or ~/.cache, and where that cannot be written, among temporary files.
        Returns where it is now. All of it or nothing."""
        content = json.dumps({**FORMAT, **asdict(replace(self, note=""))}, indent=1) + "\n"
        places = [Path(path)] if path is not None else _places()
        for place in places:
            try:
                return _write(place, content)
            except OSError as error:
                failed = error
        raise MachineError(
            f"{places[-1]} cannot be written: {failed.strerror}; name a file that can, with a path "
            f"or with {PLACE} in the environment"
        ) from failed

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Machine:
        """The machine that `save` wrote. A file given as `path` that is missing, damaged or of
        another kind is a MachineError. Without `path` nobody asked for that file, and a worse guess
        is no reason to stop: then it is DEFAULT_MACHINE, whose `note` says what is wrong."""
        if path is not None:
            return _read(Path(path))
        for place in _places():
            if not _is_ours(place):
                continue
            try:
                return _read(place)
            except MachineError as error:
                return replace(DEFAULT_MACHINE, note=f"not used: {error}")
        return DEFAULT_MACHINE


def this_machine() -> Machine:
    """What `Machine.load` finds, read once for every time that the file is written."""
    stamps = []
    for place in _places():
        try:
            stamps.append((str(place), place.stat().st_mtime_ns))
        except OSError:
            stamps.append((str(place), 0))
    return _loaded(tuple(stamps))


@lru_cache(maxsize=4)
def _loaded(_: tuple[tuple[str, int], ...]) -> Machine:
    return Machine.load()


def _places() -> list[Path]:
    """Where the file may be, the best place first."""
    named = os.environ.get(PLACE)
    if named:
        return [Path(named)]
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    scratch = Path(tempfile.gettempdir()) / f"semistream-{os.getuid()}"
    return [home / "semistream" / "machine.json", scratch / "machine.json"]


def _is_ours(place: Path) -> bool:
    """Whether there is a file to be trusted: among temporary files it may be anybody's."""
    with suppress(OSError):
        shared = place.is_relative_to(tempfile.gettempdir()) and not os.environ.get(PLACE)
        return place.stat().st_uid == os.getuid() or not shared
    return False


def _write(place: Path, content: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, half = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(handle, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, place)
    except BaseException:
        Path(half).unlink(missing_ok=True)
        raise
    return place


def _read(place: Path) -> Machine:
    try:
        found = json.loads(place.read_text())
        if not isinstance(found, dict) or any(found.pop(k, None) != v for k, v in FORMAT.items()):
            raise MachineError(f"{place} is not a machine's file of format 1; calibrate again")
        costs = {n: tuple((float(a), float(b)) for a, b in p) for n, p in found["costs"].items()}
        reads = tuple(ReadCost(**read) for read in found["reads"])
        device = Device(**found["device"])
        cpu = None if found.get("cpu") is None else Cpu(**found["cpu"])
        known = {"device": device, "reads": reads, "costs": costs, "cpu": cpu}
        return Machine(**{**found, **known})
    except OSError as error:
        raise MachineError(f"{place} cannot be read: {error.strerror}; calibrate first") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MachineError(
            f"{place} is damaged ({error}); delete it and calibrate again"
        ) from error


# What is assumed where nothing was measured: the virtual machine above, one thread, keys of 64
# bits, 2^20 rows in the table that is asked.
DEFAULT_MACHINE = Machine(
    device=_SSD,
    costs={
        "take": ((1e6, 20e-9),),
        "piece": ((1e6, 150e-6),),
        "ask": ((1e6, 25e-9), (1e9, 120e-9)),
        "hit": ((1e6, 3e-9), (1e9, 8e-9)),
        "wait": ((1e6, 60e-9),),
        "link scan": ((1e6, 60e-9), (1e9, 200e-9)),
        "link seek": ((1e6, 120e-9), (1e9, 400e-9)),
        "learn": ((1e6, 90e-9),),
        "find": ((1e6, 4e-9), (1e9, 12e-9)),
        "touch": ((1e6, 500e-9),),
        "look": ((1e6, 100e-9), (1e9, 450e-9)),
        "scan": ((1e6, 4e-9), (1e9, 16e-9)),
        "block": ((1e6, 5e-6),),
        "seek": ((1e6, 2e-9), (1e9, 16e-9)),
        "plan": ((1e6, 30e-9),),
        "step sweep": ((1e6, 200e-6),),
        "step scan": ((1e6, 250e-6),),
        "step seek": ((1e6, 250e-6),),
        "step lookup": ((1e6, 200e-6),),
        "step plan": ((1e6, 400e-6),),
    },
    note="nothing was measured on this machine; run: semistream calibrate",
)
