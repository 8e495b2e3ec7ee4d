"""Rows that are sorted on disk: in a file that nobody else can open, checked as they come back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.rows.sort import Sorter

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("tags", pa.list_(pa.string()))])


def batches(count: int = 4, rows: int = 50) -> list[pa.RecordBatch]:
    return [
        pa.record_batch(
            {
                "id": pa.array([k * count + i for k in range(rows)], pa.int64()),
                "v": [f"value {k}" for k in range(rows)],
                "tags": [[f"tag {k}"] for k in range(rows)],
            },
            schema=SCHEMA,
        )
        for i in range(count)
    ]


@pytest.fixture
def sorter(tmp_path):
    """One that has put all its rows on disk."""
    made = Sorter(SCHEMA, ["id"], 1, tmp_path)
    for batch in batches():
        made.add(batch)
    yield made
    made.close()


def handles() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


def test_they_come_back_in_order(sorter) -> None:
    pieces = list(sorter.pieces(30))
    assert len(pieces) > 1
    ids = [k for _, rows in pieces for k in rows.column("id").to_pylist()]
    assert ids == list(range(200))


def test_the_file_has_no_name_and_is_private(sorter, tmp_path) -> None:
    assert list(tmp_path.iterdir()) == []
    sorter._spilled.file.flush()
    found = os.fstat(sorter._spilled.file.fileno())
    assert found.st_nlink == 0
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size > 5_000


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at file handles in /proc")
def test_many_spills_take_one_file(tmp_path) -> None:
    made = Sorter(SCHEMA, ["id"], 1, tmp_path)
    for batch in batches(100, 2):
        made.add(batch)
    assert sum(len(rows) for _, rows in made.pieces(10)) == 200
    assert sum(str(tmp_path) in name for name in handles()) <= 2
    made.close()


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_other_bytes_are_noticed_before_they_are_used(place, sorter, tmp_path) -> None:
    file = sorter._spilled.file
    file.flush()
    at = int(os.fstat(file.fileno()).st_size * place)
    before = os.pread(file.fileno(), 1, at)
    os.pwrite(file.fileno(), bytes([before[0] ^ 0x40]), at)
    with pytest.raises(ss.DamagedError, match="temporary file") as caught:
        list(sorter.pieces(30))
    assert str(tmp_path) in str(caught.value)
    assert "try again" in str(caught.value)


def test_a_file_that_was_cut_is_noticed(sorter) -> None:
    """To read beyond its end through a map would end the process."""
    pieces = sorter.pieces(30)
    next(pieces)
    os.ftruncate(sorter._spilled.file.fileno(), 4096)
    with pytest.raises(ss.DamagedError, match="other bytes"):
        list(pieces)


def test_a_store_is_not_made_of_them(tmp_path, monkeypatch) -> None:
    check = Sorter._check

    def damaged(self: Sorter, loc) -> None:
        size = os.fstat(self._spilled.file.fileno()).st_size
        os.pwrite(self._spilled.file.fileno(), b"\xff" * 64, size // 2)
        check(self, loc)

    monkeypatch.setattr(Sorter, "_check", damaged)
    with pytest.raises(ss.DamagedError, match="temporary file"):
        ss.Store.create(tmp_path / "s", batches(), "id", spill_bytes=1)
    assert not (tmp_path / "s").exists()
