"""A master on a modelled device: the same rows, and a time that anybody can work out."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream as ss
from experiments.lib.modelled import DeviceUse, ModelledMaster
from experiments.lib.paper_cpu import PAPER_CPU, Cpu, charge_cpu, cpu_seconds
from semistream.join.stats import Stats
from semistream.master import Master
from semistream.master.table import TableMaster
from semistream.planning.device import DEVICES, Device
from semistream.testing import ManualClock, check_join, check_master
from tests.helpers.sample_data import ALGORITHMS, DISK, build, products, sales

HDD, SSD, OBJECTS = DEVICES["hdd-7200"], DEVICES["ssd"], DEVICES["object-store"]
KINDS = ("memory", "map", "pread", "changed", "parquet", "unsorted")
TABLE = products([*range(200), *[7] * 20, None, None])


def on(device: Device, master: Master) -> ModelledMaster:
    return ModelledMaster(master, device, ManualClock())


# --- like the master itself -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_conforms(kind, tmp_path) -> None:
    master = on(HDD, build(kind, TABLE, "id", tmp_path))
    for seed in range(2):
        check_master(master, TABLE, "id", rng=seed)
    assert master.use.seconds == pytest.approx(master.clock())
    assert master.view(["id"]) is None, "every page is asked for"
    assert not master.mapped
    master.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["memory", "pread", "changed"])
def test_joins(kind, algorithm, tmp_path) -> None:
    master = on(HDD, build(kind, TABLE, "id", tmp_path))
    stream = sales(random.Random(3), 120, [*range(0, 260, 2), *[7] * 30, None])
    check_join(master, stream, on="id", how="left", memory="1MB", algorithm=algorithm, table=TABLE)
    assert master.use.pages > 0


def test_newer_versions_stay_on_the_device(tmp_path) -> None:
    store = build("pread", TABLE, "id", tmp_path)
    old = on(HDD, store)
    assert old.newest() is old
    assert len(old.changed_since(old)) == 0
    store.upsert(products([5]).cast(TABLE.schema))
    new = old.newest()
    assert isinstance(new, ModelledMaster)
    assert (new.device, new.clock) == (old.device, old.clock)
    assert new.changed_since(old).tolist() == [5]
    join = ss.SemiStreamJoin(old, "id", algorithm="hybridjoin")
    before = [*join.push(pa.record_batch({"id": [5]})), *join.refresh()]
    after = [*join.push(pa.record_batch({"id": [5]})), *join.drain()]
    assert [pa.Table.from_batches(o)["name"].to_pylist() for o in (before, after)] == [
        ["product 5"],
        [None],
    ]
    assert isinstance(join.master, ModelledMaster)


def test_pages_of_a_mapped_master_count_as_memory() -> None:
    """Else a pool of pages would never be full."""
    master = on(HDD, TableMaster(TABLE, "id", page_rows=8))
    pages = master.read(np.array([1, 5], np.int64), ["name"])
    assert pages.allocated == master.page_bytes(np.array([1, 5])).sum() > 0
    join = ss.SemiStreamJoin(master, "id", algorithm="inlj", memory="60kB",
                             params=ss.Params(page_pool=0.1))  # fmt: skip
    for batch in sales(random.Random(1), 600, range(200)).to_batches(max_chunksize=20):
        list(join.push(batch))
    assert master.use.pages > 3 * master.describe().pages, "pages were pushed out and read again"


def test_what_finds_rows_by_key_only_is_refused() -> None:
    class ByKey(TableMaster):
        ranges = False

    with pytest.raises(ss.MasterError, match="cannot lie on a modelled device; use a store"):
        on(HDD, ByKey(TABLE, "id"))


# --- what is charged ------------------------------------------------------------------------------


class Pages(TableMaster):
    """Pages of given sizes on the device."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(products(range(len(sizes))), "id", page_rows=1)
        self.sizes = np.array(sizes, np.int64)

    def page_bytes(self, numbers: np.ndarray) -> np.ndarray:
        return self.sizes[numbers]


def read(master: ModelledMaster, *numbers: int) -> DeviceUse:
    before = master.use
    master.read(np.array(numbers, np.int64), ["id"])
    return master.use - before


def test_a_request_per_stretch_and_free_continuation() -> None:
    master = on(replace(HDD, request_seconds=0.01, bytes_per_second=1000.0), Pages([100] * 40))
    assert master.device.gap_bytes == 10, "no gap is that small"
    first = read(master, 3, 4, 5, 9)
    assert first == DeviceUse(1, 2, 0, 4, 400, 0, pytest.approx(0.42))
    assert read(master, 10, 11) == DeviceUse(1, 1, 1, 2, 200, 0, pytest.approx(0.2))
    assert read(master, 12, 20) == DeviceUse(1, 2, 1, 2, 200, 0, pytest.approx(0.21))
    assert read(master, 20) == DeviceUse(1, 1, 0, 1, 100, 0, pytest.approx(0.11)), "back: a seek"
    assert read(master) == DeviceUse(), "nothing asked for"
    assert master.clock() == pytest.approx(0.94) == master.use.seconds


def test_gaps_are_read_through_where_that_is_cheaper() -> None:
    master = on(replace(HDD, request_seconds=0.25, bytes_per_second=1000.0), Pages([100] * 40))
    assert master.device.gap_bytes == 250
    assert read(master, 1, 4, 8) == DeviceUse(1, 2, 0, 3, 500, 200, pytest.approx(1.0))
    assert read(master, 10) == DeviceUse(1, 1, 1, 1, 200, 100, pytest.approx(0.2)), "passing by"
    assert read(master, 14) == DeviceUse(1, 1, 0, 1, 100, 0, pytest.approx(0.35)), "3 pages: skip"


def test_an_object_store_is_asked_for_every_range() -> None:
    master = on(replace(OBJECTS, request_seconds=0.0), Pages([1000] * 40))
    assert read(master, 0, 1, 2).requests == 1
    assert read(master, 3, 4, 7, 9) == DeviceUse(1, 3, 0, 4, 4000, 0, pytest.approx(4e-5 / 3))


def test_scans_are_sequential_until_they_wrap() -> None:
    master = on(HDD, Pages([1000] * 10))
    for start in (0, 4, 8):
        master.scan(start, 4 * master.describe().max_page_bytes, ["id"])
    assert master.use == DeviceUse(3, 3, 2, 10, 10_000, 0, pytest.approx(0.01267 + 10_000 / 60e6))
    master.scan(0, 1, ["id"])
    assert (master.use.requests, master.use.sequential) == (4, 2)


def by_hand(device: Device, sizes: list[int], calls: list[list[int]]) -> DeviceUse:
    """The same, page by page."""
    begin = [sum(sizes[:i]) for i in range(len(sizes))]
    head, total = None, DeviceUse()
    for pages in calls:
        requests = sequential = size = gaps = 0
        for i, page in enumerate(pages):
            gap = None if head is None else begin[page] - head
            near = gap is not None and (gap == 0 or 0 < gap < device.gap_bytes)
            if i == 0 and not device.sequential_free:
                near = False
            if not near:
                requests += 1
            else:
                requests += i == 0
                sequential += i == 0
                gaps += gap
                size += gap
            size += sizes[page]
            head = begin[page] + sizes[page]
        seconds = device.seconds(requests, size, sequential)
        total += DeviceUse(1, requests, sequential, len(pages), size, gaps, seconds)
    return total


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=30),
    st.lists(st.sets(st.integers(0, 29), min_size=1), max_size=8),
    st.sampled_from([0.0, 0.1, 0.4, 3.0]),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_charged_as_by_hand(sizes, wanted, wait, lanes, free) -> None:
    device = Device("any", wait, 1000.0, lanes, free)
    calls = [sorted({p % len(sizes) for p in pages}) for pages in wanted]
    master = on(device, Pages(sizes))
    for pages in calls:
        read(master, *pages)
    expected = by_hand(device, sizes, calls)
    assert master.use == replace(expected, seconds=pytest.approx(expected.seconds))
    assert master.clock() == pytest.approx(expected.seconds)


def test_a_read_that_fails_takes_no_time() -> None:
    class Fails(Pages):
        def read(self, numbers: np.ndarray, columns: list[str]) -> None:
            raise ss.MasterError("injected")

    master = on(HDD, Fails([10] * 5))
    with pytest.raises(ss.MasterError, match="injected"):
        read(master, 1)
    assert (master.use, master.clock()) == (DeviceUse(), 0.0)


# --- joins: the same again, every time ------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ss.Store:
    path = tmp_path_factory.mktemp("modelled") / "s"
    rows = range(5_000)
    table = pa.table({"id": rows, "v": [f"{i} ".ljust(100, ".") for i in rows]})
    ss.Store.create(path, table, "id", page_bytes=4096).close()
    return ss.Store.open(path, io="pread")


def stream(seed: int) -> list[pa.RecordBatch]:
    """Skewed keys, some unknown."""
    rng = np.random.default_rng(seed)
    return [
        pa.record_batch({"id": (5_250 * rng.random(150) ** 3).astype(np.int64), "n": range(150)})
        for _ in range(4)
    ]


def run(store: ss.Store, device: Device, algorithm: str) -> tuple[DeviceUse, float, Stats]:
    master = on(device, store)
    clock = master.clock
    assert isinstance(clock, ManualClock)
    rows = store.describe().rows / store.describe().pages
    memory = "32MB" if algorithm == "memory" else "150kB"
    join = ss.SemiStreamJoin(master, "id", algorithm=algorithm, memory=memory)
    for batch in stream(1):
        before = join.stats
        list(join.push(batch))
        charge_cpu(clock, before, join.stats, rows)
    before = join.stats
    list(join.drain())
    charge_cpu(clock, before, join.stats, rows)
    stats = join.stats
    join.close()
    return master.use, clock(), replace(stats, disk_seconds=0.0, seconds=0.0)


@pytest.mark.parametrize(
    ("algorithm", "device"),
    [*((name, HDD) for name in ALGORITHMS), ("sweepjoin", SSD), ("sweepjoin", OBJECTS)],
)
def test_the_same_seed_gives_the_same_counts_and_seconds(algorithm, device, store) -> None:
    use, seconds, stats = run(store, device, algorithm)
    assert run(store, device, algorithm) == (use, seconds, stats)
    assert use.pages == stats.pages_read
    assert use.bytes - use.gaps == stats.bytes_read
    assert 0 < use.seconds < seconds


def test_the_disk_decides_who_is_ahead(store) -> None:
    """One lookup per row is the worst that a disk with a seek can be asked for, with a pool of
    pages or a cache before it or without; a scan asks for a seek per cycle."""
    seconds = {name: run(store, HDD, name)[0] for name in DISK}
    slowest = sorted(seconds, key=lambda name: seconds[name].seconds)[-2:]
    assert set(slowest) == {"inlj", "cinlj"}
    assert seconds["sweepjoin"].seconds < seconds["hybridjoin"].seconds < seconds["inlj"].seconds
    scan = seconds["rmeshjoin"]
    assert scan.requests - scan.sequential <= 2 * scan.pages / store.describe().pages + 2


# --- the processor --------------------------------------------------------------------------------

NOTHING = Stats("meshjoin", *[0] * 12)


def test_what_the_processor_is_charged_for() -> None:
    cpu = Cpu(take_in=1, probe=100, append=10_000, expire=10**6, probe_master=10**8, emit=10**11)
    counts = {"rows_in": 9, "front_hits": 2, "rows_matched": 5, "rows_unmatched": 1}
    some = {**counts, "rows_out": 7, "pages_read": 3, "waiting": 3}
    wanted = {
        "meshjoin": 9 + 7 * 10_000 + 4 * 10**6 + 12 * 10**8 + 7 * 10**11,
        "chybridjoin": 9 + 900 + 7 * 10_000 + 4 * 10**6 + 12 * 10**8 + 7 * 10**11,
        "sweepjoin": 9 + 900 + 7 * 10_000 + 4 * 10**6 + 4 * 10**8 + 7 * 10**11,
        "inlj": 9 + 7 * 10_000 + 4 * 10**6 + 4 * 10**8 + 7 * 10**11,
        "memory": 9 + 900 + 7 * 10**11,
    }
    for name, seconds in wanted.items():
        after = replace(NOTHING, algorithm=name, **some)
        assert cpu_seconds(NOTHING, after, 4, cpu) == seconds
        assert cpu_seconds(after, after, 4, cpu) == 0


def test_the_clock_is_charged() -> None:
    clock = ManualClock(5)
    after = replace(NOTHING, rows_in=1000)
    assert charge_cpu(clock, NOTHING, after, 30) == pytest.approx(1000 * 12.4e-6)
    assert (
        clock() == clock.now() == pytest.approx(5 + 1000 * (PAPER_CPU.take_in + PAPER_CPU.append))
    )
    with pytest.raises(ss.SpecError, match="not by -1"):
        clock.advance(-1)


def test_a_pool_serves_keys_whose_rows_span_pages() -> None:
    """Each page is read once, whether a key's rows end within it or not."""
    keys = np.repeat(np.arange(40), 30)
    table = pa.table({"id": keys, "v": np.arange(len(keys))})
    clock = ManualClock()
    master = ModelledMaster(TableMaster(table, "id", page_rows=64), DEVICES["hdd-7200"], clock)
    join = ss.SemiStreamJoin(
        master, "id", algorithm="inlj", memory="400kB", params=ss.Params(page_pool=0.8)
    )
    for _ in range(3):
        stream = pa.record_batch({"id": np.arange(40), "n": np.arange(40)})
        assert sum(len(batch) for batch in join.push(stream)) == len(keys)
    assert join.stats.pages_read == master.describe().pages
