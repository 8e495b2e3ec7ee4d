"""A join that gets more rows than it can serve, on a modelled disk or on this machine.

modelled disk   rows arrive at a steady rate by the clock: as many per iteration as the last one
                took time for. The clock is the disk's time, that of the papers' processor, and
                that of moving shed rows. To the same disk, a segment goes on where the last one
                ended unless the master was read meanwhile; then it has to seek, and so has the
                next read of the master. Or over a network. Segments are kept in memory.
this machine    segments go to a folder, or through a socket to a receiver. As many rows arrive per
                iteration as the last ones have served, times the factor: by the wall clock, the
                time that shedding takes would bring more rows to shed, without end. The clock runs
                inside the join.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.running import answered
from experiments.data.streams import ZipfStream
from experiments.lib.cell import HDD, HERE, MEASURED, PAPER, Cell, planned
from experiments.lib.experiment import Row
from experiments.lib.measure import interval
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, cpu_seconds
from semistream.join.shed.segment import Segment
from semistream.join.shed.target import FoundSegments, Target
from semistream.join.stats import Stats
from semistream.master import Master
from semistream.planning.device import Device
from semistream.testing import ManualClock

DISK, NETWORK = "disk", "network"
# Ethernet of the papers' days: a gigabit per second, a fifth of a millisecond there and back.
ETHERNET = Device("ethernet", 0.2e-3, 125e6)
MEASURE_OF_LOAD = "chybridjoin"
FIRST_ARRIVALS, MOST_ARRIVALS = 2_000, 200_000  # at a time
Mark = tuple[Stats, tuple[float, float]]  # counters, and two clocks


@dataclass(frozen=True)
class Overload:
    """What is measured."""

    store: Path
    rows: int  # of the master
    ordered: bool  # popular keys lie at its beginning
    algorithm: str
    victims: str
    lookup: float
    memory: int
    target: str = DISK
    device: Device | None = HDD
    factor: float = 4.0  # arrivals, times what chybridjoin can serve without shedding, by the model
    iterations: tuple[int, int] = (300, 600)  # warm-up, and counted
    seconds: float = 1.0  # this machine: of each of the two
    segments: int = 6
    seed: int = 1


class Kept(Target):
    """Segments in memory, their transport charged to a clock."""

    place, allocates = "modelled", True

    def __init__(self, clock: ManualClock, device: Device, master: ModelledMaster | None) -> None:
        self._clock, self._device, self._master = clock, device, master
        self._there: dict[str, tuple[Segment, pa.RecordBatch]] = {}
        self._calls = -1  # of the master, when a segment was last written or read

    def _charge(self, size: int) -> None:
        calls = self._master.use.calls if self._master is not None else 0
        goes_on = calls == self._calls and self._master is not None
        self._clock.advance(self._device.seconds(1, size, goes_on))
        self._calls = calls
        if self._master is not None:
            self._master._head = None  # it went to the segment

    def put(self, name: str, rows: pa.RecordBatch, question: str) -> int:
        size = int(rows.nbytes)
        self._charge(size)
        self._there[name] = (Segment(name, len(rows), size, question), rows)
        return size

    def get(self, name: str, size: int | None = None) -> pa.RecordBatch:
        self._charge(self._there[name][1].nbytes)
        return self._there[name][1]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._there.pop(name, None)

    def look(self) -> FoundSegments:
        return FoundSegments([segment for segment, _ in self._there.values()])


class Course:
    """A join under too many rows."""

    def __init__(self, load: Overload, target: str | Path) -> None:
        self.load, self.clock = load, ManualClock()
        stream = ZipfStream(load.rows, 1.0, load.ordered)
        cell = Cell(load.store, stream, load.algorithm, load.memory, load.device,
                    seed=load.seed, io="pread")  # fmt: skip
        self.master = self._open(cell)
        found = planned(cell, self.master)
        self.capacity = found.rate
        # The same for all that are compared, whatever they could serve themselves.
        self.arriving = (
            load.factor * planned(replace(cell, algorithm=MEASURE_OF_LOAD), self.master).rate
        )
        self.join = ss.SemiStreamJoin(
            self.master, workload.KEY, algorithm=load.algorithm, memory=load.memory,
            params=replace(found.case.params, lookup=load.lookup),
            shed=ss.Shedding(target, load.victims, load.seed), stream_schema=stream.schema,
        )  # fmt: skip
        if load.device is not None:
            self._keep_segments()
        info = self.master.describe()
        self._first, self._page_rows = self.join.stats, info.rows / max(1, info.pages)
        self._rows = _rows_of(stream, load.seed)
        self.busy, self._wall = 0.0, 0.0
        self._last = self.now()
        self._served = float(FIRST_ARRIVALS)  # per iteration, of late

    def _open(self, cell: Cell) -> Master:
        store = ss.Store.open(cell.store, io="pread" if cell.device is None else "map")
        return store if cell.device is None else ModelledMaster(store, cell.device, self.clock)

    def _keep_segments(self) -> None:
        """In the place of the folder that was asked for. (There is no public way to do so.)"""
        assert isinstance(self.master, ModelledMaster)
        assert self.load.device is not None
        far = self.load.target == NETWORK
        kept = Kept(self.clock, ETHERNET if far else self.load.device, None if far else self.master)
        engine = self.join._engine
        engine.outside.target = self.join._target = kept  # type: ignore[union-attr]

    def now(self) -> float:
        if self.load.device is None:
            return self._wall
        return self.clock() + cpu_seconds(self._first, self.join.stats, self._page_rows, PAPER_CPU)

    def go(self) -> None:
        """One iteration, after the rows that came during the last one."""
        now, before = self.now(), answered(self.join.stats)
        came = self.arriving * (now - self._last)
        if self.load.device is None:
            came = self.load.factor * self._served
        self._last = now
        count = min(MOST_ARRIVALS, max(1, int(came)))
        rows = self._rows(count)
        begin, wall = time.process_time(), time.perf_counter()
        for _ in self.join.push(rows):
            pass
        self.busy += time.process_time() - begin
        self._wall += time.perf_counter() - wall
        self._served = (self._served + answered(self.join.stats) - before) / 2

    def mark(self) -> Mark:
        """Counters, time, and time with this processor in the place of the papers'."""
        return self.join.stats, (self.now(), self.clock() + self.busy)

    def close(self) -> None:
        self.join.close()
        self.master.close()


class _rows_of:
    """The stream, any number of rows at a time."""

    def __init__(self, stream: ZipfStream, seed: int) -> None:
        self._batches = stream.batches(seed, 100_000)
        self._rest = next(self._batches)

    def __call__(self, count: int) -> pa.RecordBatch:
        parts = []
        while count > len(self._rest):
            parts.append(self._rest)
            count -= len(self._rest)
            self._rest = next(self._batches)
        parts.append(self._rest.slice(0, count))
        self._rest = self._rest.slice(count)
        return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


@contextmanager
def shed_place(load: Overload) -> Iterator[str | Path]:
    """A folder, or a receiver on this machine."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if load.device is None and load.target == NETWORK:
            receiver = stack.enter_context(ss.ShedReceiver(folder).start())
            yield receiver.address
        else:
            yield Path(folder)


def overloaded(load: Overload) -> list[Row]:
    """Rows served per second while the load is shed."""
    with shed_place(load) as place:
        course = Course(load, place)
        _go_on(course, load.iterations[0], load.seconds)
        marks = [course.mark()]
        for _ in range(load.segments):
            _go_on(course, load.iterations[1] // load.segments, load.seconds / load.segments)
            marks.append(course.mark())
        found = [_row(course, marks, 0, PAPER if load.device else MEASURED)]
        if load.device is not None:
            found.append(_row(course, marks, 1, MEASURED))
        course.close()
    return found


def _go_on(course: Course, iterations: int, seconds: float) -> None:
    if course.load.device is not None:
        for _ in range(iterations):
            course.go()
        return
    begin = time.perf_counter()
    course.go()
    while time.perf_counter() - begin < seconds:
        course.go()


def _row(course: Course, marks: list[Mark], clock: int, cpu: str) -> Row:
    load, first, last = course.load, marks[0], marks[-1]
    pairs = list(pairwise(marks))
    each = [(answered(b[0]) - answered(a[0])) / (b[1][clock] - a[1][clock]) for a, b in pairs]
    served = answered(last[0]) - answered(first[0])
    seconds = last[1][clock] - first[1][clock]
    rate = served / seconds
    low, high = interval(each)
    stats = last[0]
    kept = stats.waiting + stats.buffered + stats.shed_out + answered(stats) == stats.rows_in
    return {
        "algorithm": load.algorithm,
        "device": load.device.name if load.device is not None else f"{HERE}, pread",
        "cpu": cpu,
        "memory": load.memory,
        "rate": rate,
        "rate_low": min(low, rate),
        "rate_high": max(high, rate),
        "arriving": (last[0].rows_in - first[0].rows_in) / seconds,
        "predicted": course.capacity,
        "hits": (last[0].front_hits - first[0].front_hits) / max(1, served),
        "served_per_read": served / max(1, last[0].steps - first[0].steps),
        "shed": last[0].shed - first[0].shed,
        "reloaded": last[0].reloaded - first[0].reloaded,
        "slots": last[0].slots,
        "waiting": last[0].waiting,
        "nothing_lost": int(kept),
    }
