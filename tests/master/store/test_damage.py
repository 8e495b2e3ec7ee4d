"""A damaged store gives a typed error or the right rows: never a wrong row, never a crash.

Everything runs on small stores: every byte of every file is flipped in turn, and every file is cut
at every length.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import rows_of

STREAM = pa.record_batch({"id": pa.array([*range(-1, 24), None], pa.int64())})


def tiny_table() -> pa.Table:
    keys = [*range(0, 20, 2), 4, 4, 4, None]
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([None if k == 6 else f"name {k}" for k in keys]),
            "tags": pa.array([[k, 1] for k in keys], pa.list_(pa.int64())),
        }
    )


def string_table() -> pa.Table:
    return pa.table({"id": [f"key {k}" for k in range(12)], "v": pa.array(range(12))})


TABLES = {"int": tiny_table(), "string": string_table()}


@pytest.fixture(scope="module", params=TABLES)
def case(request, tmp_path_factory):
    """A pristine store, a copy to break, and the right answer."""
    table = TABLES[request.param]
    stream = STREAM
    if request.param == "string":
        stream = pa.record_batch({"id": [*table["id"].to_pylist(), "absent", None]})
    root = tmp_path_factory.mktemp("damage") / request.param
    ss.Store.create(root, table, "id", page_bytes=256)
    return Case(root, stream)


class Case:
    def __init__(self, root: Path, stream: pa.RecordBatch) -> None:
        self.root, self.stream = root, stream
        every = [p for p in sorted(root.rglob("*")) if p.is_file()]
        self.files = [p for p in every if p.parent.name != "newest"]  # which says all by its name
        self.right = self.answer("map", "sweepjoin")
        assert len(self.files) == 3
        assert len(self.right) >= len(stream)

    def answer(self, io: str, algorithm: str) -> list[tuple]:
        store = ss.Store.open(self.root, io=io)
        try:
            join = ss.SemiStreamJoin(store, "id", "left", algorithm=algorithm, memory="400kB")
            out = [*join.push(self.stream), *join.drain()]
            return sorted(rows_of(out), key=repr)
        finally:
            store.close()

    def survives(self, what: str, ways: list[tuple[str, str]]) -> bool:
        """The right rows or a typed error, both ways of reading; True if there was an error."""
        failed = False
        for io, algorithm in ways:
            try:
                got = self.answer(io, algorithm)
            except ss.SemiStreamError as error:
                if str(self.root) not in str(error):
                    raise AssertionError(f"{what}: {error} names no file") from error
                failed = True
            else:
                assert got == self.right, f"{what}: wrong rows by {io}, {algorithm}"
        return failed


WAYS = [("map", "sweepjoin"), ("pread", "sweepjoin")]
ALL_WAYS = [(io, name) for io in ("map", "pread") for name in ss.ALGORITHMS]


def changed(path: Path, changes: Iterable[tuple[str, bytes]], check: Callable[[str], None]) -> None:
    """Write each content to the file, check, and put the right one back."""
    content = path.read_bytes()
    try:
        for what, data in changes:
            path.write_bytes(data)
            check(f"{path.name}: {what}")
    finally:
        path.write_bytes(content)


def flips(content: bytes, mask: int, places: range) -> Iterator[tuple[str, bytes]]:
    for at in places:
        data = bytearray(content)
        data[at] ^= mask
        yield f"byte {at} ^ {mask:#04x}", bytes(data)


@pytest.mark.parametrize("number", range(3))
def test_every_byte_flipped(case, number) -> None:
    """Through a map the even bytes, by pread the odd ones, each with another bit."""
    path = case.files[number]
    content = path.read_bytes()
    for first, mask in enumerate((0x01, 0x80)):
        some = flips(content, mask, range(first, len(content), 2))
        changed(path, some, lambda what, first=first: case.survives(what, [WAYS[first]]))


@pytest.mark.parametrize("number", range(3))
def test_verify_finds_every_flip(case, number) -> None:
    def check(what: str) -> None:
        try:
            ss.Store.open(case.root, io="pread").verify()
        except ss.SemiStreamError:
            return
        raise AssertionError(f"{what}: verify found nothing")

    path = case.files[number]
    content = path.read_bytes()
    changed(path, flips(content, 0x10, range(number, len(content), 3)), check)


@pytest.mark.parametrize("number", range(3))
def test_every_file_cut_at_every_length(case, number) -> None:
    """A cut file is always noticed: to read beyond its end through a map would kill the process."""
    path = case.files[number]
    content = path.read_bytes()
    longer = [("a byte more", content + b"\0"), ("twice", content + content)]
    for first, way in enumerate(WAYS):

        def check(what: str, way: tuple[str, str] = way) -> None:
            assert case.survives(what, [way]), f"{what}: not noticed"

        cuts = ((f"cut to {n}", content[:n]) for n in range(first, len(content), 2))
        changed(path, itertools.chain(cuts, longer), check)


@pytest.mark.parametrize("number", range(3))
def test_every_file_removed_or_emptied_or_replaced(case, number) -> None:
    path = case.files[number]
    other = case.files[(number + 1) % 3].read_bytes()
    same_size = other[: path.stat().st_size].ljust(path.stat().st_size, b"x")
    contents = [("emptied", b""), ("another file's content", other), ("same size", same_size)]

    def check(what: str) -> None:
        assert case.survives(what, ALL_WAYS), f"{what}: not noticed"

    changed(path, contents, check)
    content = path.read_bytes()
    path.unlink()
    try:
        assert case.survives(f"{path.name} removed", ALL_WAYS)
    finally:
        path.write_bytes(content)


def test_data_pages_flipped_under_every_algorithm(case) -> None:
    """Damage in the data is seen by the join that reads it, whatever its way of reading."""
    path = next(p for p in case.files if p.suffix == ".arrow")
    content = path.read_bytes()
    places = range(64, len(content), max(1, len(content) // 40))
    some = [
        (f"byte {i}", content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :]) for i in places
    ]
    noticed = []
    changed(path, some, lambda what: noticed.append(case.survives(what, ALL_WAYS)))
    assert any(noticed)


def collect(out: list[pa.RecordBatch], call: Callable[[], Iterator[pa.RecordBatch]]) -> None:
    """What comes before an error counts."""
    for batch in call():
        out.append(batch)


@pytest.mark.parametrize("io", ["map", "pread"])
def test_damage_after_opening_is_found_at_first_use(case, io) -> None:
    path = next(p for p in case.files if p.suffix == ".arrow")
    store = ss.Store.open(case.root, io=io)
    join = ss.SemiStreamJoin(store, "id", "left", algorithm="sweepjoin", memory="400kB")
    out = list(join.push(case.stream))
    content = path.read_bytes()
    broken = bytearray(content)
    broken[len(content) // 2] ^= 0xFF
    with open(path, "r+b") as file:
        file.write(broken)
    try:
        with pytest.raises(ss.DamagedError, match=path.name):
            collect(out, join.drain)
        assert join.stats.waiting > 0, "what could not be read must wait"
    finally:
        with open(path, "r+b") as file:
            file.write(content)
    out += join.drain()
    assert sorted(rows_of(out), key=repr) == case.right, "mended, and nothing is lost or repeated"


def test_a_copied_store_is_a_store(case, tmp_path) -> None:
    shutil.copytree(case.root, tmp_path / "copy")
    assert ss.Store.open(tmp_path / "copy").verify() > 0
