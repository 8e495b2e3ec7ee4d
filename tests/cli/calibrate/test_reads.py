"""Calibration of reads: what is measured is what the device takes, and it ends in time."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from experiments.lib.modelled import ModelledMaster
from semistream.cli.calibrate import measure_pages, measure_reads
from semistream.cli.calibrate.fitting import fit_device, fit_line
from semistream.cli.calibrate.reads import FLIGHTS, SIZES, FileReader, forget_files
from semistream.planning.device import DEVICES, Device
from semistream.planning.machine import ReadCost
from semistream.testing import ManualClock
from tests.helpers.sample_data import build, products

HDD, SSD = DEVICES["hdd-7200"], DEVICES["ssd"]


class DeviceReader:
    """Reads that take what a device would take, give or take some."""

    def __init__(self, device: Device, noise: float = 0.0, size: int = 1 << 34) -> None:
        self.device, self.size, self.clock = device, size, ManualClock()
        self.noise, self.rng = noise, np.random.default_rng(7)
        self.cache = True

    def slots(self, size: int) -> int:
        return self.size // size

    def forget(self) -> bool:
        return self.cache

    def read(self, size: int, slots: np.ndarray, in_flight: int) -> None:
        assert len(np.unique(slots)) == len(slots) > 0
        assert 0 <= slots.min() <= slots.max() < self.slots(size)
        lanes = min(in_flight, self.device.in_flight)
        seconds = replace(self.device, in_flight=lanes).seconds(len(slots), size * len(slots))
        self.clock.advance(seconds * float(np.exp(self.noise * self.rng.standard_normal())))

    def close(self) -> None:
        self.closed = True


def measured(reader: DeviceReader, seconds: float = 60.0, **more):
    return measure_reads("unused", seconds, clock=reader.clock, reader=reader, **more)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [HDD, SSD, Device("other", 1e-3, 1e8, 7.5, True, 4e8)],
                         ids=lambda device: device.name)  # fmt: skip
def test_the_device_is_found_again(device) -> None:
    table = measured(DeviceReader(device))
    assert {(c.size, c.in_flight) for c in table.costs} == {(s, f) for s in SIZES for f in FLIGHTS}
    found = table.device("found")
    assert found.request_seconds == pytest.approx(device.request_seconds)
    assert found.bytes_per_second == pytest.approx(device.bytes_per_second)
    assert found.total == pytest.approx(device.total)
    assert found.in_flight == pytest.approx(device.in_flight)


def test_a_device_that_is_not_steady_is_found_nearly() -> None:
    table = measured(DeviceReader(SSD, noise=0.3))
    found = table.device()
    assert found.request_seconds == pytest.approx(SSD.request_seconds, rel=0.2)
    assert found.bytes_per_second == pytest.approx(SSD.bytes_per_second, rel=0.2)
    assert found.in_flight == pytest.approx(SSD.in_flight, rel=0.3)
    for cost in table.costs:
        assert 0.6 < cost.low / cost.seconds < 1 < cost.high / cost.seconds < 1.7


@settings(max_examples=25)
@given(
    st.floats(1e-6, 0.02), st.floats(1e7, 3e9), st.floats(1, 32), st.floats(0.2, 20),
    st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_it_ends_in_time(wait, rate, lanes, seconds, noise) -> None:
    reader = DeviceReader(Device("any", wait, rate, lanes), noise)
    table = measured(reader, seconds)
    assert reader.clock() <= seconds
    assert reader.closed
    assert (SIZES[0], 1) in [(c.size, c.in_flight) for c in table.costs]


def test_little_time_gives_a_part_of_the_table() -> None:
    reader = DeviceReader(HDD)
    table = measured(reader, 1.0)
    assert 4 <= len(table.costs) < len(SIZES) * len(FLIGHTS)
    assert 0.1 < reader.clock() <= 1
    assert table.device().request_seconds == pytest.approx(HDD.request_seconds)


def test_sizes_beyond_the_file_are_left_out() -> None:
    table = measured(DeviceReader(SSD, size=100_000))
    assert {c.size for c in table.costs} == {4096, 16384, 65536}
    with pytest.raises(ss.SpecError, match="smaller than 4096 bytes; measure a larger store"):
        measured(DeviceReader(SSD, size=4095))


def test_it_says_what_is_cold() -> None:
    reader = DeviceReader(SSD)
    assert measured(reader).cold
    reader.cache = False
    table = measured(reader)
    assert not table.cold
    assert "may have come from memory" in str(table)


def test_fits_that_have_no_answer() -> None:
    with pytest.raises(ss.SpecError, match="one at a time"):
        fit_device([ReadCost(4096, 4, 1e-3, 1e-3, 1e-3, 1)], "none")
    one, size = np.ones(3), np.array([1e3, 1e4, 1e5])
    assert fit_line(one, size, np.array([3.0, 2.0, 1.0]))[0] > 0, "larger is faster: no rate"
    wait, per_byte = fit_line(one, size, np.array([0.5, 10.0, 150.0]))
    assert wait == 0, "more than in proportion: no wait"
    assert per_byte > 0
    with pytest.raises(ss.SpecError, match="seconds=0"):
        measured(DeviceReader(SSD), 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("calibrate") / "s"
    rows = np.arange(4_000)
    table = pa.table({"id": rows, "v": [f"{i} ".ljust(100, ".") for i in rows]})
    ss.Store.create(path, table, "id", page_bytes=4096).close()
    return path


def test_a_real_store(path) -> None:
    with_path = measure_reads(path, 0.3, sizes=[4096, 65536], in_flight=[1, 4])
    assert {c.size for c in with_path.costs} == {4096, 65536}
    assert all(0 < c.low <= c.seconds <= c.high for c in with_path.costs)
    assert with_path.device().bytes_per_second > 0
    store = ss.Store.open(path, io="pread")
    file = Path(store.files[0].path)
    for source in (store, file):
        assert measure_reads(source, 0.1, sizes=[4096], in_flight=[1]).costs[0].samples > 0
    with pytest.raises(ss.StoreError, match="is not a store"):
        measure_reads(path / "nothing", 0.1)


def test_an_object_store_is_not_measured_by_its_files() -> None:
    store = ss.Store.create("memory://calibrate/s", products(range(50)), "id")
    with pytest.raises(ss.SpecError, match="not a local folder; use measure_pages"):
        measure_reads(store, 0.1)
    assert not measure_pages(store, 0.2).local


def test_every_slot_is_read_once(tmp_path, monkeypatch) -> None:
    for name, size in (("a", 10_000), ("b", 3_000), ("c", 25_000)):
        (tmp_path / name).write_bytes(os.urandom(size))
    reader = FileReader(sorted(tmp_path.iterdir()), 4)
    read: list[tuple[int, int, int]] = []
    real = os.preadv

    def preadv(handle: int, target: list[memoryview], offset: int) -> int:
        some = [target[0][:700]]  # a short read now and then
        read.append((handle, offset, real(handle, some, offset)))
        return read[-1][2]

    monkeypatch.setattr(os, "preadv", preadv)
    assert reader.slots(1000) == 10 + 3 + 25
    for in_flight in (1, 4):
        read.clear()
        reader.read(1000, np.random.default_rng(1).permutation(38), in_flight)
        assert sum(count for *_, count in read) == 38_000
        assert len({(handle, offset) for handle, offset, _ in read}) == len(read) == 2 * 38
    reader.close()


def resident(path: Path) -> int:
    """Pages of a file in this system's cache."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        count = -(-len(mapped) // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * count)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), flags) == 0
        return sum(flag & 1 for flag in flags)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_the_cache_is_emptied(path) -> None:
    file = Path(ss.Store.open(path, io="pread").files[0].path)
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    file.read_bytes()
    before = resident(file)
    assert before > 50
    assert forget_files([file])
    after = resident(file)
    if after == before:
        pytest.skip("this file system keeps files in memory for good")
    assert after == 0
    assert not forget_files([])


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asking", [0.0, 0.002])
def test_the_device_behind_a_master_is_found_again(path, asking) -> None:
    """Where gaps are not worth reading through."""
    clock, device = ManualClock(), Device("slow", 1e-3, 1e6, call_seconds=asking)
    assert device.gap_bytes < 4096 / 2
    master = ModelledMaster(ss.Store.open(path, io="pread"), device, clock)
    table = measure_pages(master, 30, clock=clock)
    assert [round(c.pages) for c in table.costs if c.kind == "read"] == [1, 4, 16, 64]
    assert clock() <= 30
    found = table.device()
    assert found.request_seconds == pytest.approx(1e-3, rel=0.06 if asking else 0.03)
    assert found.bytes_per_second == pytest.approx(1e6, rel=0.01)
    assert found.call_seconds == pytest.approx(asking, abs=1e-4)
    single = table.costs[0]
    expected = asking + 1e-3 + single.bytes / 1e6
    assert single.per_page == single.seconds == pytest.approx(expected, rel=0.1)
    assert single.per_byte == pytest.approx(single.seconds / single.bytes)


@settings(max_examples=20)  # each makes hundreds of calls
@given(st.floats(0, 0.3), st.floats(1e5, 1e9), st.floats(1, 20))
def test_measuring_pages_ends_in_time(path_of_store, wait, rate, seconds) -> None:
    clock = ManualClock()
    master = ModelledMaster(path_of_store, Device("any", wait, rate), clock)
    first = master.device.seconds(1, 1 << 13)
    table = measure_pages(master, seconds, clock=clock, reads=[1, 8], scans=[4096, 65536])
    assert clock() <= max(seconds, 3 * first)
    assert table.costs


@pytest.fixture(scope="module")
def path_of_store(path) -> ss.Store:
    return ss.Store.open(path, io="pread")


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("pread", {("read", 1), ("read", 4), ("scan", 1)}),
        ("memory", {("read", 1), ("read", 4), ("scan", 1)}),
        ("parquet", {("read", 1), ("scan", 1)}),  # a page at a time
        ("unsorted", {("scan", 1)}),  # no index
    ],
)
def test_every_kind_of_master(kind, calls, tmp_path) -> None:
    rng = random.Random(1)
    master = build(kind, products(rng.sample(range(400), 200)), "id", tmp_path)
    table = measure_pages(master, 0.3, reads=[1, 4, 10**6], scans=[1])
    assert {(c.kind, round(c.pages)) for c in table.costs} == calls
    assert all(c.seconds > 0 and c.bytes > 0 for c in table.costs)
    assert table.local == table.cold == (kind == "pread")
    if len(calls) > 1:
        assert table.device(warm=True).sequential_free == table.local


def test_nothing_to_measure() -> None:
    with pytest.raises(ss.SpecError, match="no pages to measure"):
        measure_pages(ss.open_master(products([]), "id"), 1)
    with pytest.raises(ss.SpecError, match="neither read pages by number nor scan"):
        measure_pages(ss.open_master(products([1]), "id"), 1, reads=[64], scans=[])
