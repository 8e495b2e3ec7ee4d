"""A machine as numbers: what reading and computing cost there, measured or assumed, kept as JSON
per machine. People read that file, so it is no sealed block of bytes; a checksum stands in it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

import numpy as np

from ..errors import MachineError, SpecError
from ..kernels.arrays import F64
from ..safety import (
    cache_home,
    checksum,
    is_private,
    own_name,
    private_folder,
    read_private,
    temporary_home,
    write_private,
)
from .device import DEVICES, Device, within

if TYPE_CHECKING:
    from .work import Case, Work

Points: TypeAlias = tuple[tuple[float, float], ...]
FORMAT = {"kind": "semistream machine", "format": 2}
CHECK = "crc32c"  # of all the other fields
PLACE = "SEMISTREAM_MACHINE"  # the environment variable that names the file


@dataclass(frozen=True)
class ReadCost:
    """Reads of one size, so many at a time: seconds per read, and how they were spread."""

    size: int
    in_flight: int
    seconds: float  # median
    low: float  # a quarter took less
    high: float  # a quarter took more
    samples: int


class Processor(Protocol):
    """A processor that is not here, such as one that a paper ran on."""

    def seconds(self, case: Case, work: Work) -> dict[str, float]:
        """What it takes per stream row, by part."""


@dataclass(frozen=True)
class Machine:
    """What reading and computing cost on one machine. `costs` are seconds by the bytes of the table
    that is worked on, under a name for the operation; `spread` is how far, relative to the median,
    three quarters of the samples of a cost reach."""

    device: Device
    reads: tuple[ReadCost, ...] = ()
    costs: Mapping[str, Points] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    cpu: Processor | None = None  # a processor that is not here, in the place of `costs`
    measured: str = ""  # when, as in 2026-11-16T09:30:00+00:00; empty: not measured
    host: str = ""  # where
    note: str = ""  # why these are not the numbers that one might expect

    def __post_init__(self) -> None:
        for name, points in self.costs.items():
            sizes = [size for size, _ in points]
            if not points or sizes != sorted(set(sizes)) or sizes[0] <= 0:
                raise SpecError(f"costs[{name!r}] must be at rising sizes above 0, not {sizes}")
            for _, seconds in points:
                within(f"costs[{name!r}]", seconds, 0.0)

    @overload
    def cost(self, name: str, size: float) -> float: ...
    @overload
    def cost(self, name: str, size: F64) -> F64: ...
    def cost(self, name: str, size: Any) -> Any:
        """Seconds of an operation on a table of `size` bytes: a straight line over the logarithm of
        the size between the points measured, level beyond them."""
        points = self.costs.get(name) or DEFAULT_MACHINE.costs.get(name)  # a file may be older
        if points is None:
            known = ", ".join(self.costs) or "none"
            raise SpecError(f"cost {name!r} is not among those measured ({known}); calibrate again")
        sizes, seconds = np.array(points, np.float64).T
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
        in $XDG_CACHE_HOME or ~/.cache, and where that cannot be written or others can write, too,
        among temporary files. Returns where it is now. All of it or nothing."""
        if self.cpu is not None:
            raise MachineError("costs of a processor that is not here are not kept; leave out cpu=")
        fields = asdict(replace(self, note=""))
        content = json.dumps({**FORMAT, CHECK: _check(fields), **fields}, indent=1) + "\n"
        places = [Path(path)] if path is not None else _places()
        failed = OSError(0, "there is no folder for it")
        for place in places:
            try:
                if path is None and _chosen_by_us():
                    private_folder(place.parent.parent, place.parent.name)
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                write_private(place, content.encode(), sync=True)
                return place
            except OSError as error:
                failed = error
        raise MachineError(
            f"{places[-1] if places else 'it'} cannot be written: {failed.strerror}; name a file "
            f"that can, with a path or with {PLACE} in the environment"
        ) from failed

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Machine:
        """The machine that `save` wrote. A file given as `path` that is missing, damaged or of
        another kind is a MachineError. Without `path` nobody asked for that file, and a worse guess
        is no reason to stop: then it is DEFAULT_MACHINE, whose `note` says what is wrong."""
        if path is not None:
            return _read(Path(path))
        for place in _places():
            if not place.exists() or (_chosen_by_us() and not _is_private(place)):
                continue  # among temporary files it may be anybody's
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
    home, scratch = cache_home(), temporary_home()
    places = [home / "semistream" / "machine.json"] if home is not None else []
    if scratch is not None:
        places.append(scratch / own_name() / "machine.json")
    return places


def _chosen_by_us() -> bool:
    """Whoever names a file may trust whom they like; what we find by ourselves must be ours."""
    return not os.environ.get(PLACE)


def _is_private(place: Path) -> bool:
    with suppress(OSError):
        read_private(place)
        return is_private(place.parent.parent, place.parent.name)
    return False


def _read(place: Path) -> Machine:
    try:
        found = json.loads(place.read_bytes())
        if not isinstance(found, dict) or any(found.pop(k, None) != v for k, v in FORMAT.items()):
            raise MachineError(f"{place} is not a machine's file of format 2; calibrate again")
        if found.pop(CHECK, None) != _check(found):
            raise ValueError("it does not match its checksum")
        costs = {n: tuple((float(a), float(b)) for a, b in p) for n, p in found["costs"].items()}
        reads = tuple(ReadCost(**read) for read in found["reads"])
        device = Device(**found["device"])
        if found.get("cpu") is not None:
            raise ValueError("it names a processor that is not here")
        known = {"device": device, "reads": reads, "costs": costs}
        return Machine(**{**found, **known})
    except OSError as error:
        raise MachineError(f"{place} cannot be read: {error.strerror}; calibrate first") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MachineError(
            f"{place} is damaged ({error}); delete it and calibrate again"
        ) from error


def _check(fields: Mapping[str, Any]) -> str:
    """The same for the same fields, however they are laid out."""
    plain = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{checksum(plain.encode()):08x}"


# What is assumed where nothing was measured: what `calibrate` found on a quiet virtual machine with
# 2 cores (95 joins; it could not tell steps of sweeps and lookups from pieces: these are a guess; a
# later run, with pages read, gave the calls; that of a scan costs too little to be told: a guess).
DEFAULT_MACHINE = Machine(
    device=DEVICES["ssd"],
    costs={
        "take": ((1e6, 2.2e-8),),
        "piece": ((1e6, 3.5e-4),),
        "ask": ((1e6, 8.3e-9), (1e9, 4.3e-8)),
        "hit": ((1e6, 2.5e-9),),
        "wait": ((1e6, 4.5e-8),),
        "link scan": ((1e6, 4.7e-8), (1e9, 2.2e-7)),
        "link seek": ((1e6, 4.5e-7), (1e9, 6.6e-7)),
        "learn": ((1e6, 1.2e-7),),
        "find": ((1e6, 6.9e-9), (1e9, 1.2e-8)),
        "touch": ((1e6, 7e-7),),
        "look": ((1e6, 6.7e-8), (1e9, 1.8e-7)),
        "scan": ((1e6, 8.2e-9), (1e9, 2.9e-8)),
        "block": ((1e6, 6.2e-7),),
        "seek": ((1e6, 4.5e-9), (1e9, 2.7e-8)),
        "plan": ((1e6, 8.9e-8),),
        "call sweep": ((1e6, 3.5e-4),),
        "call scan": ((1e6, 2e-5),),
        "call seek": ((1e6, 2.8e-4),),
        "call lookup": ((1e6, 2.7e-4),),
        "call plan": ((1e6, 2.3e-4),),
        "step sweep": ((1e6, 1e-4),),
        "step scan": ((1e6, 2e-4),),
        "step seek": ((1e6, 1.2e-4),),
        "step lookup": ((1e6, 1e-4),),
        "step plan": ((1e6, 2.5e-4),),
    },
    note="nothing was measured on this machine; run: semistream calibrate",
)
