"""A machine as numbers: the law of devices, costs between sizes, and the file they are kept in."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import semistream as ss
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.planning import machine
from semistream.planning.device import DEVICES, Device
from semistream.planning.machine import CHECK, DEFAULT_MACHINE, FORMAT, PLACE, Machine, ReadCost
from tests.helpers.damage import outcomes

HDD, SSD, OBJECTS = DEVICES["hdd-7200"], DEVICES["ssd"], DEVICES["object-store"]
DEVICE = st.builds(
    Device,
    st.just("any"),
    st.floats(0, 0.1),
    st.floats(1e6, 1e9),
    st.floats(1, 64),
    st.booleans(),
    st.floats(1e9, 1e10),
)


# --- devices --------------------------------------------------------------------------------------


def test_one_lane_adds_seek_and_transfer() -> None:
    assert HDD.seconds(1, 60e6) == pytest.approx(0.01267 + 1)
    assert HDD.seconds(5, 60e6) == pytest.approx(5 * 0.01267 + 1)
    assert HDD.seconds(5, 60e6, sequential=5) == 1, "going on where the last one ended is free"


def test_the_ssd_is_what_was_measured() -> None:
    """15 k reads of 4 KB per second one at a time, 156 k with many; 64 KB at 2.4 GB/s."""
    assert 1 / SSD.seconds(1, 4096) == pytest.approx(15_000, rel=0.03)
    assert 32 / SSD.seconds(32, 32 * 4096) == pytest.approx(156_000, rel=0.05)
    assert (1 << 21) / SSD.seconds(32, 1 << 21) == pytest.approx(2.4e9)


def test_an_object_store_has_no_sequential_reads_and_a_rate_per_request() -> None:
    assert OBJECTS.seconds(1, 1e6, sequential=1) == pytest.approx(0.04)
    assert OBJECTS.seconds(16, 16e6) == pytest.approx(0.04), "16 take as long as one"
    assert OBJECTS.seconds(32, 32e6) == pytest.approx(0.08)


def test_gaps() -> None:
    assert HDD.gap_bytes == round(0.01267 * 60e6)
    assert SSD.gap_bytes == round(6.5e-6 * 2.4e9)
    assert OBJECTS.gap_bytes == 3_000_000


@given(DEVICE, st.integers(1, 1000), st.integers(0, 10**9))
def test_reading_a_gap_of_gap_bytes_costs_what_a_request_costs(device, requests, size) -> None:
    """Where all lanes are busy and neither law is near its change to the other."""
    requests += math.ceil(device.in_flight)
    alone = requests * device.request_seconds + size / device.bytes_per_second
    assume(alone / device.in_flight > 1.1 * (size + device.gap_bytes) / device.total)
    assume(device.total >= device.bytes_per_second * device.in_flight)
    skipped = device.seconds(requests + 1, size)
    through = device.seconds(requests, size + device.gap_bytes)
    assert through == pytest.approx(skipped, rel=1e-3, abs=1 / device.bytes_per_second)


@given(DEVICE, st.integers(1, 1000), st.integers(0, 10**9), st.integers(0, 1000))
def test_more_never_takes_less(device, requests, size, sequential) -> None:
    sequential = min(sequential, requests)
    seconds = device.seconds(requests, size, sequential)
    assert device.seconds(requests, size + 1000, sequential) >= seconds
    assert device.seconds(requests, size) >= seconds
    assert seconds >= size / device.total * (1 - 1e-12)
    one_by_one = requests * device.seconds(1, size / requests)
    assert device.seconds(requests, size) <= one_by_one * (1 + 1e-9)


def test_many_at_once_are_the_same_numbers() -> None:
    requests, sizes = np.array([1.0, 7, 40]), np.array([4096.0, 1e6, 1e9])
    for device in DEVICES.values():
        one = [device.seconds(a, b) for a, b in zip(requests, sizes, strict=True)]
        assert device.seconds(requests, sizes).tolist() == one


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_seconds": -1},
        {"request_seconds": math.nan},
        {"bytes_per_second": 0},
        {"bytes_per_second": math.inf},
        {"in_flight": 0.5},
        {"total_bytes_per_second": 1e6},
        {"request_seconds": "fast"},
    ],
)
def test_what_is_no_device_is_refused(wrong) -> None:
    with pytest.raises(ss.SpecError, match=next(iter(wrong))):
        replace(HDD, **wrong)


def test_the_papers_processor_gives_the_papers_rates() -> None:
    """1 / rate = disk share / M + cost per row, the share such that 4 MB give 6,000 per second."""
    cost = PAPER_CPU.take_in + PAPER_CPU.append + PAPER_CPU.expire + PAPER_CPU.emit
    share = 4 * (1 / 6000 - cost)
    assert 1 / (share / 40 + cost) == pytest.approx(26_000, rel=0.01)
    assert 1 / (share / 2 + cost) == pytest.approx(3_500, rel=0.1)
    assert 1 / (share / 20 + cost + 155 * PAPER_CPU.emit) >= 9_000


# --- costs ----------------------------------------------------------------------------------------

MACHINE = Machine(
    SSD,
    reads=(ReadCost(4096, 1, 66e-6, 60e-6, 70e-6, 9), ReadCost(65536, 1, 92e-6, 90e-6, 99e-6, 9)),
    costs={"probe": ((1e3, 1e-9), (1e5, 3e-9), (1e7, 30e-9))},
    spread={"probe": 0.1},
    measured="2026-11-16T09:30:00+00:00",
    host="here",
)


def test_costs_lie_between_those_measured() -> None:
    assert MACHINE.cost("probe", 1e4) == pytest.approx(2e-9), "half way in the logarithm"
    sizes = np.array([1.0, 1e3, 1e5, 1e6, 1e7, 1e12])
    wanted = [1e-9, 1e-9, 3e-9, 16.5e-9, 30e-9, 30e-9]
    assert MACHINE.cost("probe", sizes) == pytest.approx(wanted)
    with pytest.raises(ss.SpecError, match=r"'gather'.*probe"):
        MACHINE.cost("gather", 1)


@pytest.mark.parametrize("points", [(), ((2.0, 1.0), (1.0, 1.0)), ((0.0, 1.0),), ((1.0, -1.0),)])
def test_costs_that_are_none_are_refused(points) -> None:
    with pytest.raises(ss.SpecError, match="probe"):
        Machine(SSD, costs={"probe": points})


def test_reads_lie_between_those_measured() -> None:
    assert MACHINE.read_seconds(4096) == pytest.approx(66e-6)
    assert 66e-6 < MACHINE.read_seconds(16384) < 92e-6
    assert MACHINE.read_seconds(65536 + 2.4e9) == pytest.approx(1 + 92e-6)
    assert DEFAULT_MACHINE.read_seconds(4096, 32) == SSD.seconds(32, 32 * 4096) / 32


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture
def no_home(monkeypatch, tmp_path) -> Path:
    """Nothing in the environment names a place, and homes are below this folder."""
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_saved_and_loaded(no_home, monkeypatch) -> None:
    assert Machine.load() == DEFAULT_MACHINE
    assert MACHINE.save() == no_home / "cache/semistream/machine.json"
    assert Machine.load() == MACHINE
    named = no_home / "named.json"
    monkeypatch.setenv(PLACE, str(named))
    assert Machine.load() == DEFAULT_MACHINE
    other = replace(MACHINE, host="there")
    assert other.save() == named
    assert Machine.load() == Machine.load(named) == other
    assert [p.name for p in no_home.iterdir()] == ["cache", "named.json"], "no halves are left"


def test_what_is_saved_has_no_note(no_home) -> None:
    """A note is about how a machine was found, not about the machine."""
    assert Machine.load(DEFAULT_MACHINE.save()).note == ""


def test_no_home_that_can_be_written(no_home, monkeypatch) -> None:
    (no_home / "cache").write_text("a file where the folder should be")
    place = MACHINE.save()
    assert place == no_home / f"semistream-{os.geteuid()}" / "machine.json"
    assert Machine.load() == MACHINE
    monkeypatch.setenv(PLACE, str(no_home / "cache" / "x.json"))
    with pytest.raises(ss.MachineError, match=rf"x\.json cannot be written.*{PLACE}"):
        MACHINE.save()
    assert Machine.load() == DEFAULT_MACHINE


def test_a_file_of_someone_else_among_temporary_files(no_home, monkeypatch) -> None:
    """Ignored, unless the environment names it."""
    (no_home / "cache").write_text("a file where the folder should be")
    place = MACHINE.save()
    someone = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: someone)
    monkeypatch.setattr("semistream.planning.machine._places", lambda: [place])
    assert Machine.load() == DEFAULT_MACHINE
    monkeypatch.setenv(PLACE, str(place))
    assert Machine.load() == MACHINE


def sealed(fields: dict[str, object]) -> dict[str, object]:
    return {**FORMAT, CHECK: machine._check(fields), **fields}


def damaged() -> dict[str, str]:
    device = {"name": "d", "request_seconds": 1, "bytes_per_second": 10}
    good = {"reads": [], "costs": {}, "device": device}
    wrong = {
        "older": {**good, "kind": "semistream machine", "format": 1},
        "newer": {**sealed(good), "format": 3},
        "foreign": {"hello": 1},
        "a list": [1, 2],
        "no checksum": {**FORMAT, **good},
        "wrong checksum": {**sealed(good), "reads": [1]},
        "no device": sealed({k: v for k, v in good.items() if k != "device"}),
        "bad device": sealed({**good, "device": {"name": "d"}}),
        "no rate": sealed({**good, "device": {**device, "bytes_per_second": 0}}),
        "bad costs": sealed({**good, "costs": {"probe": [[1, "x"]]}}),
        "no cost": sealed({**good, "costs": {"probe": []}}),
        "costs a list": sealed({**good, "costs": []}),
        "unknown": sealed({**good, "colour": "red"}),
    }
    whole = json.dumps(sealed(good))
    found = {"cut": whole[:-9], "empty": "", "deep": "[" * 100_000}
    return found | {k: json.dumps(v) for k, v in wrong.items()}


@pytest.mark.parametrize("content", damaged().values(), ids=damaged())
def test_a_file_that_is_none(content, no_home) -> None:
    """Named: an error of its own. Found: ignored, and the note says so."""
    place = MACHINE.save()
    place.write_text(content)
    with pytest.raises(ss.MachineError, match=r"machine\.json.*calibrate again"):
        Machine.load(place)
    found = Machine.load()
    assert replace(found, note="") == replace(DEFAULT_MACHINE, note="")
    assert str(place) in found.note


def test_every_damaged_byte_of_the_file_is_noticed(tmp_path) -> None:
    """Or makes no difference: an E for an e in a number, the last line without its end."""
    small = Machine(SSD, costs={"probe": ((1e3, 1e-9),)})
    place = small.save(tmp_path / "machine.json")

    def use(raw: bytes) -> Machine:
        place.unlink(missing_ok=True)  # file systems are slow to cut a file and write it again
        place.write_bytes(raw)
        return Machine.load(place)

    found = outcomes(place.read_bytes(), use)
    assert set(found) == {"MachineError", "same"}
    assert found["same"] < 20


def test_a_place_that_others_can_write_is_not_used(no_home) -> None:
    """Neither to keep the file nor to find one."""
    home = no_home / "cache" / "semistream"
    home.mkdir(parents=True)
    home.chmod(0o777)
    place = MACHINE.save()
    assert place == no_home / f"semistream-{os.geteuid()}" / "machine.json"
    assert list(home.iterdir()) == []
    replace(MACHINE, host="theirs").save(home / "machine.json")
    assert Machine.load() == MACHINE
    place.chmod(0o666)
    assert Machine.load() == DEFAULT_MACHINE


def test_a_file_that_is_missing(no_home) -> None:
    with pytest.raises(ss.MachineError, match=r"nothing\.json cannot be read.*calibrate first"):
        Machine.load(no_home / "nothing.json")
    with pytest.raises(ss.MachineError, match="cannot be read"):
        Machine.load(no_home)


def test_a_crash_while_saving_leaves_the_old_file(no_home, monkeypatch) -> None:
    place = MACHINE.save()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(ss.MachineError, match="No space left"):
        replace(MACHINE, host="there").save(place)
    assert Machine.load() == MACHINE
    assert [p.name for p in place.parent.iterdir()] == ["machine.json"]


def test_a_file_that_lacks_a_cost_is_still_of_use(tmp_path) -> None:
    """One that was written before an operation had a name of its own."""
    kept = Machine(DEVICES["ssd"], costs={"take": ((1e6, 1e-7),)}, measured="2026-01-01")
    machine = Machine.load(kept.save(tmp_path / "machine.json"))
    assert machine.cost("take", 1e6) == 1e-7
    assert machine.cost("piece", 1e6) == DEFAULT_MACHINE.cost("piece", 1e6)


def test_no_home_and_no_temporary_folder(monkeypatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SEMISTREAM_MACHINE", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert Machine.load() is DEFAULT_MACHINE
    with pytest.raises(ss.MachineError, match="SEMISTREAM_MACHINE"):
        MACHINE.save()
