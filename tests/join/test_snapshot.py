"""Snapshots: damage is noticed before use, any names will do, and a join goes on as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import rows_of
from tests.helpers.damage import every_byte, outcomes

MASTER = pa.table({"k": range(50), "v": range(50)})


def _join(master: object = MASTER, **options: object) -> ss.SemiStreamJoin:
    return ss.SemiStreamJoin(master, **{"on": "k", "how": "left", "algorithm": "sweepjoin",
                                        "memory": "1MB", **options})  # fmt: skip


def _moved(batch: pa.RecordBatch, **options: object) -> list[tuple[object, ...]]:
    """What comes out of a join that was carried over with rows waiting."""
    join = _join(**options)
    out = list(join.push(batch))
    fresh = _join(**options)
    fresh.restore(join.snapshot())
    return sorted(map(repr, rows_of([*out, *fresh.drain()])))


@pytest.mark.parametrize("shed", [False, True])
def test_no_damaged_byte_is_used(shed, tmp_path) -> None:
    options = {"shed": ss.Shedding(tmp_path)} if shed else {}
    batch = pa.record_batch({"k": [1, 2, 99], "text": ["a", "bc", None]})
    join = _join(**options)
    before = rows_of(join.push(batch))
    snapshot = join.snapshot()

    def restored(raw: bytes) -> list[str]:
        fresh = _join(**options)
        fresh.restore(raw)
        return sorted(map(repr, rows_of(fresh.drain())))

    assert len(before) + len(restored(snapshot)) == 3
    assert set(outcomes(snapshot, restored, list(every_byte(snapshot, 3)))) == {"StateError"}


def test_a_join_that_was_not_used_has_a_snapshot_too() -> None:
    fresh = _join()
    fresh.restore(_join().snapshot())
    assert rows_of([*fresh.push(pa.record_batch({"k": [1]})), *fresh.drain()]) == [(1, 1)]
    with pytest.raises(ss.StateError, match="0 bytes are not a whole snapshot"):
        _join().restore(b"")  # a file that was cut short


@pytest.mark.parametrize("name", ["__matched", "__resume", "__age", "__number", "__origin",
                                  "__key_1", "matched", "resume", "age"])  # fmt: skip
@pytest.mark.parametrize("ordered", [False, True])
def test_names_of_ours_do_not_clash_with_the_streams(name, ordered) -> None:
    batch = pa.record_batch({"k": [1, 2, 99], name: [10, 20, 30]})
    expected = [(1, 10, 1), (2, 20, 2), (99, 30, None)]
    if ordered:
        join = _join(ordered=True)
        out = [*join.push(batch), *join.drain()]
        assert out[0].schema.names == ["k", name, "v"]
        assert rows_of(out) == expected
    else:
        assert _moved(batch) == sorted(map(repr, expected))


def test_two_columns_of_one_name() -> None:
    arrays = [pa.array([1, 2]), pa.array([5, 6]), pa.array([7, 8])]
    batch = pa.RecordBatch.from_arrays(arrays, names=["k", "x", "x"])
    assert _moved(batch) == sorted(map(repr, [(1, 5, 7, 1), (2, 6, 8, 2)]))


def test_columns_of_ours_beside_hashed_keys() -> None:
    """Keys in another type are kept beside the stream's own columns, which may have any name."""
    master = pa.table({"k": pa.array(["a", "b"], pa.large_string()), "v": [1, 2]})
    batch = pa.record_batch({"k": ["b", "z"], "__key_2": [1, 2]})
    assert _moved(batch, master=master) == sorted(map(repr, [("b", 1, 2), ("z", 2, None)]))


def test_auto_goes_on_with_the_algorithm_that_was_saved(tmp_path) -> None:
    """By now it would choose another one, and has rows to answer all the same."""
    path = tmp_path / "s"
    store = ss.Store.create(path, pa.table({"k": range(10), "v": range(10)}), key="k")
    auto = {"algorithm": "auto", "memory": "4MB"}
    join = _join(store, **auto)
    assert join.algorithm.name == "memory"
    list(join.push(pa.record_batch({"k": [1, 2]})))
    store = store.upsert(pa.table({"k": range(50_000), "v": range(50_000)}))
    list(join.refresh())
    saved = _join(store, algorithm="hybridjoin", memory="4MB")
    list(saved.push(pa.record_batch({"k": list(range(0, 3000, 7))})))
    assert saved.stats.waiting
    for options in (auto, {**auto, "stream_schema": pa.schema([("k", pa.int64())])}):
        fresh = _join(store, **options)
        assert fresh.algorithm.name != "hybridjoin"
        fresh.restore(saved.snapshot())
        assert fresh.algorithm.name == "hybridjoin"
        assert sum(map(len, fresh.drain())) == saved.stats.waiting
    with pytest.raises(ss.StateError, match=r'algorithm="hybridjoin" or "auto"'):
        _join(store, algorithm="ssij", memory="4MB").restore(saved.snapshot())


def test_rows_of_a_push_that_failed_are_in_the_snapshot(tmp_path, monkeypatch) -> None:
    ss.Store.create(tmp_path / "s", MASTER, key="k")
    store = ss.Store.open(tmp_path / "s", io="pread")

    def broken(*arguments: object) -> None:
        raise ss.MasterError("the disk is gone")

    join = _join(store, algorithm="inlj")
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "read", broken)
        with pytest.raises(ss.MasterError, match="gone"):
            join.push(pa.record_batch({"k": [1, 2]}))
        with pytest.raises(ss.MasterError, match="gone"):
            join.push(pa.record_batch({"k": [3]}))
        snapshot = join.snapshot()
    assert join.stats.rows_in + join.stats.arrived == 3
    fresh = _join(store, algorithm="inlj")
    fresh.restore(snapshot)
    assert sorted(rows_of(fresh.drain())) == [(1, 1), (2, 2), (3, 3)]


def test_wide_waiting_rows_are_saved_in_portions(monkeypatch) -> None:
    monkeypatch.setattr("semistream.join.snapshot.PORTION", 1000)
    batch = pa.record_batch({"k": range(40), "text": ["x" * 300] * 40})
    expected = [repr((i, "x" * 300, i)) for i in range(40)]
    assert _moved(batch) == sorted(expected)


def test_bytes_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ss.StateError, match="5 bytes are not a whole snapshot"):
        _join().restore(b"hello")
