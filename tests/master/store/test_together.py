"""Many processes at one store: every change happens once, every reader sees one version."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import rows_of
from tests.helpers.crash_child import check_clean
from tests.helpers.sample_data import ALGORITHMS

SPAWN = multiprocessing.get_context("spawn")
COUNTER = -1  # a row whose value says how many log rows there are
CHANGES = 8  # of each writer


def rows(content: dict[int, int]) -> pa.Table:
    return pa.table({"id": pa.array(content, pa.int64()), "n": pa.array(content.values())})


def write(path: Path, who: int) -> None:
    """Each change adds one to the counter, and a row of its own; whoever is late tries again."""
    for i in range(CHANGES):
        while True:
            store = ss.Store.open(path)
            (found,) = store.lookup(pa.record_batch({"id": [COUNTER]})).to_pylist()
            try:
                store.upsert(rows({COUNTER: found["n"] + 1, who * 1000 + i: store.version}))
                break
            except ss.ConflictError:
                store.close()


def tidy(path: Path, done, errors) -> None:
    """Compact and expire as fast as it goes."""
    try:
        while not done.is_set():
            store = ss.Store.open(path)
            store.expire(0.0)
            try:
                store.compact()
            except ss.ConflictError:
                store.close()
    except BaseException as error:
        errors.put(repr(error))
        raise


def read(path: Path, seed: int, done, errors) -> None:
    """In every version the counter fits the rows."""
    rng, looks, newest = random.Random(seed), 0, 0
    everything = pa.record_batch(
        {"id": [COUNTER, *(w * 1000 + i for w in (1, 2) for i in range(20))]}
    )
    try:
        while looks < 20 or not done.is_set():
            store = ss.Store.open(path, io=rng.choice(["map", "pread"]))
            assert store.version >= newest, "time went backwards"
            newest = store.version
            if rng.random() < 0.3:
                store.verify()
            algorithm = rng.choice(ALGORITHMS)
            out = list(ss.join_batches([everything], store, "id", algorithm=algorithm))
            found = dict(rows_of(out))
            assert found[COUNTER] == len(found) - 1, f"{found} in version {newest}"
            assert store.describe().rows == len(found)
            store.close()
            looks += 1
    except BaseException as error:
        errors.put(f"{error!r} after {looks} looks")
        raise


def drain(errors) -> list[str]:
    found = []
    while not errors.empty():
        found.append(errors.get())
    return found


@pytest.fixture
def path(tmp_path) -> Path:
    ss.Store.create(tmp_path / "s", rows({COUNTER: 0}), "id", page_bytes=256).close()
    return tmp_path / "s"


def test_writers_readers_compaction_and_expiry_at_once(path) -> None:
    done, errors = SPAWN.Event(), SPAWN.Queue()
    first = {io: ss.Store.open(path, 1, io=io) for io in ("map", "pread")}
    writers = [SPAWN.Process(target=write, args=(path, who)) for who in (1, 2)]
    others = [
        SPAWN.Process(target=tidy, args=(path, done, errors)),
        SPAWN.Process(target=read, args=(path, 1, done, errors)),
        SPAWN.Process(target=read, args=(path, 2, done, errors)),
    ]
    for process in [*writers, *others]:
        process.start()
    for process in writers:
        process.join(120)
    done.set()
    for process in others:
        process.join(120)
    assert drain(errors) == []
    assert [p.exitcode for p in [*writers, *others]] == [0] * 5
    last = ss.Store.open(path)
    content = dict(rows_of(pa.Table.from_batches(last.batches())))
    versions = [v for k, v in content.items() if k != COUNTER]
    assert content[COUNTER] == len(versions) == 2 * CHANGES
    assert len(set(versions)) == 2 * CHANGES, "two changes of the same version"
    for io, store in first.items():  # expired long ago, and still there for those who have it
        with pytest.raises(ss.StoreError, match="has no version 1; it has"):
            ss.Store.open(path, 1, io=io)
        stream = pa.record_batch({"id": [COUNTER, 1000]})
        assert rows_of(list(ss.join_batches([stream], store, "id"))) == [(COUNTER, 0)]
        store.verify()
    last.upsert(rows({7: 7}))
    check_clean(path)


def make(path: Path, who: int, barrier, results) -> None:
    barrier.wait(60)
    try:
        ss.Store.create(path, rows(dict.fromkeys(range(50), who)), "id", page_bytes=256)
        results.put(who)
    except ss.StoreError:
        results.put(None)


def test_two_make_the_same_store(tmp_path) -> None:
    barrier, results = SPAWN.Barrier(3), SPAWN.Queue()
    paths = [tmp_path / "deep" / "er" / "s"] * 3
    makers = [
        SPAWN.Process(target=make, args=(p, i, barrier, results)) for i, p in enumerate(paths)
    ]
    for process in makers:
        process.start()
    for process in makers:
        process.join(120)
        assert process.exitcode == 0
    (winner,) = [who for who in (results.get() for _ in makers) if who is not None]
    store = ss.Store.open(paths[0])
    assert store.verify() > 1
    assert {n for _, n in rows_of(pa.Table.from_batches(store.batches()))} == {winner}
    store.upsert(rows({1: 1}))
    check_clean(paths[0])


# --- one process, where the order is known --------------------------------------------------------


def busy(path: Path, verb: str) -> Iterator[pa.RecordBatch]:
    """Rows of a change; in the midst of it, others are at work."""
    yield from rows({1: 10}).to_batches()
    other = ss.Store.open(path)
    before = set((path / "data").iterdir())
    assert any(p.suffix == ".tmp" for p in before)
    if verb == "expire":
        assert other.expire(0.0) == []
    elif verb == "compact":
        assert other.compact() is other, "there is only a base"
    elif verb == "no change":
        assert other.delete(pa.table({"id": [999]})) is other
    else:
        other.upsert(rows({1: 20}))
    assert before <= set((path / "data").iterdir()), "files of a living writer were removed"
    yield from rows({2: 10}).to_batches()


@pytest.mark.parametrize("verb", ["expire", "compact", "no change"])
def test_files_of_a_living_writer_stay(verb, path) -> None:
    store = ss.Store.open(path).upsert(busy(path, verb), spill_bytes=1)
    assert dict(rows_of(pa.Table.from_batches(store.batches()))) == {COUNTER: 0, 1: 10, 2: 10}
    store.verify()
    check_clean(path)


def test_who_fails_beside_a_living_writer_is_cleaned_up_later(path) -> None:
    """It may not look for what is left while another one works, so it leaves word of it."""

    def inner() -> Iterator[pa.RecordBatch]:
        yield from rows({5: 5}).to_batches()
        (
            path / "data" / f".{'0' * 32}-00000.arrow.x.tmp"
        ).touch()  # as if it could not take it back
        raise ZeroDivisionError

    def outer() -> Iterator[pa.RecordBatch]:
        yield from rows({1: 10}).to_batches()
        with pytest.raises(ZeroDivisionError):
            ss.Store.open(path).upsert(inner())
        assert len(list((path / "writers").iterdir())) == 2
        yield from rows({2: 10}).to_batches()

    store = ss.Store.open(path).upsert(outer())
    assert len(list((path / "writers").iterdir())) == 1, "one writer failed, and left something"
    store.upsert(rows({3: 10}))
    check_clean(path)


def test_a_lock_that_may_not_be_looked_at_is_that_of_a_living_writer(path, monkeypatch) -> None:
    """Another user's, on a store that both may change."""
    lock = path / "writers" / f"{'1' * 32}.lock"
    lock.touch()
    left = path / "data" / f"{'1' * 32}-00000.arrow"
    left.touch()
    open_ = os.open

    def forbidden(name, *more, **named):
        if os.fspath(name) == str(lock):
            raise PermissionError(13, "Permission denied")
        return open_(name, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidden)
        ss.Store.open(path).upsert(rows({1: 1}))
        ss.Store.open(path).expire(0)
        assert left.exists()
    ss.Store.open(path).upsert(rows({2: 1}))
    assert not left.exists()
    check_clean(path)


def test_a_writer_of_an_earlier_release_is_respected(path) -> None:
    """Its lock lies in the data folder."""
    lock = path / "data" / f".writer-{'2' * 32}.lock"
    left = path / "data" / f"{'2' * 32}-00000.arrow"
    left.touch()
    with open(lock, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ss.Store.open(path).expire(0)
        assert left.exists()
    ss.Store.open(path).expire(0)
    assert not left.exists()


def test_the_slower_of_two_writers_leaves_nothing(path) -> None:
    with pytest.raises(ss.ConflictError, match=r"version 2 .*open the store again and retry"):
        ss.Store.open(path).upsert(busy(path, "upsert"), spill_bytes=1)
    assert dict(rows_of(pa.Table.from_batches(ss.Store.open(path).batches()))) == {
        COUNTER: 0,
        1: 20,
    }
    check_clean(path)


def overtaken(path: Path) -> Iterator[pa.RecordBatch]:
    """Rows of a change of version 1; meanwhile others publish 2 and 3, and 2 expires."""
    yield from rows({1: 10}).to_batches()
    ss.Store.open(path).upsert(rows({1: 20})).upsert(rows({1: 30})).expire(0.0)


def test_a_number_that_expired_is_not_given_again(path) -> None:
    """Version 2 would be free, and nobody would ever see a change that took it."""
    with pytest.raises(ss.ConflictError, match=r"version 2 .*open the store again and retry"):
        ss.Store.open(path).upsert(overtaken(path))
    store = ss.Store.open(path)
    assert store.version == 3
    assert dict(rows_of(pa.Table.from_batches(store.batches()))) == {COUNTER: 0, 1: 30}
    taken = {p.name: p.stat().st_size > 8 for p in (path / "manifests").iterdir()}
    assert taken == {"00000001.json": False, "00000002.json": False, "00000003.json": True}
    store.expire(0.0)  # no other writer is at work: nobody could take the names any more
    assert [p.name for p in (path / "manifests").iterdir()] == ["00000003.json"]
    check_clean(path)


def test_a_version_that_expires_while_it_is_opened(path, monkeypatch) -> None:
    """The manifest was listed, and is gone when it is read; or its files are."""
    from semistream.master.store import format as fmt

    listed, read_manifest = [], fmt.read_manifest

    def slow(place, version):
        listed.append(version)
        if len(listed) == 1:
            monkeypatch.setattr(fmt, "read_manifest", read_manifest)
            change_and_expire(path)
            monkeypatch.setattr(fmt, "read_manifest", after)
        return read_manifest(place, version)

    def after(place, version):
        """The second time the manifest is read, but then its files go."""
        found = read_manifest(place, version)
        listed.append(version)
        if len(listed) == 2:
            monkeypatch.setattr(fmt, "read_manifest", read_manifest)
            change_and_expire(path)
        return found

    monkeypatch.setattr(fmt, "read_manifest", slow)
    store = ss.Store.open(path)
    assert listed == [1, 3]
    assert store.version == 5
    store.verify()
    with pytest.raises(ss.StoreError, match="has no version 3; it has 5"):
        ss.Store.open(path, 3)


def change_and_expire(path: Path) -> None:
    ss.Store.open(path).upsert(rows({1: 1})).compact().expire(0.0)


def test_a_cleaner_beside_expiry_keeps_what_newer_versions_share(path, monkeypatch) -> None:
    """It has listed version 2; now 3 appears, which shares files with 2, and 2 expires."""
    from semistream.master.store import format as fmt
    from semistream.master.store.writers import clean

    ss.Store.open(path).upsert(rows({k: k for k in range(40)}))
    versions, calls = fmt.versions, []

    def slow(place):
        found = versions(place)
        calls.append(found)
        if len(calls) == 1:
            monkeypatch.setattr(fmt, "versions", versions)
            store = ss.Store.open(path).upsert(rows({1: 1}))
            assert len(store.manifest.runs) == 3
            for version in (1, 2):
                store.place.remove(fmt.manifest_name(version))
            monkeypatch.setattr(fmt, "versions", slow)
        return found

    place = ss.Store.open(path).place
    monkeypatch.setattr(fmt, "versions", slow)
    clean(place)
    monkeypatch.setattr(fmt, "versions", versions)
    store = ss.Store.open(path)
    assert store.version == 3
    store.verify()
    check_clean(path)


def test_a_store_that_was_built_anew_in_its_place(path, tmp_path) -> None:
    """The same path, the same version number, and another store: nothing is mixed."""
    import shutil

    old = ss.Store.open(path)
    join = ss.SemiStreamJoin(old, "id", "left")
    shutil.rmtree(path)
    with pytest.raises(ss.StoreError, match="cannot be written to"):
        old.upsert(rows({1: 1}))
    assert not path.exists()
    ss.Store.create(path, rows({COUNTER: 77}), "id")
    with pytest.raises(ss.ConflictError):
        old.upsert(rows({1: 1}))
    assert old.newest() is not old
    stream = pa.record_batch({"id": [COUNTER]})
    out = list(join.push(stream)) + list(join.refresh())
    assert rows_of(out) == [(COUNTER, 0)]
    out = [*join.push(stream), *join.drain()]
    assert rows_of(out) == [(COUNTER, 77)]
    assert ss.Store.open(path).verify() == 1
