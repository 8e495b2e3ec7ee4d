"""Damage in a store of several runs: a typed error that names the file, never a wrong row."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.store import change as store_change
from semistream.testing import rows_of
from tests.helpers.crash_child import check_clean

STREAM = pa.record_batch({"id": pa.array([*range(-1, 70), None], pa.int64())})
ALL_WAYS = [(io, name) for io in ("map", "pread") for name in ss.ALGORITHMS]
KINDS = ("index", "claims", "arrow", "json")


def rows(keys: range, what: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "v": [f"{what} {k:02}" for k in keys]})


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A base and four changes, two of which have files of the same sizes."""
    path = tmp_path_factory.mktemp("damage") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_change, "merge_from", lambda runs, most: len(runs) - 1)
        store = ss.Store.create(path, rows(range(60), "base"), "id", page_bytes=256)
        store = store.upsert(rows(range(10, 30), "new"))
        store = store.upsert(rows(range(20, 40), "now"))
        nobody = pa.table({"id": pa.array([None] * 9, pa.int64()), "v": ["nobody"] * 9})
        store = store.append(pa.concat_tables([rows(range(50, 65), "more"), nobody]))
        store = store.delete(pa.table({"id": range(3, 5)}))
    assert len(store.manifest.runs) == 5
    return path


def manifests(path: Path) -> list[Path]:
    return sorted((path / "manifests").glob("*.json"))


def files(path: Path, kind: str) -> list[Path]:
    """Of the latest version."""
    if kind == "json":
        return manifests(path)[-1:]
    return sorted((path / "data").glob(f"*.{kind}"))


def answer(path: Path, io: str, algorithm: str) -> list[tuple]:
    store = ss.Store.open(path, io=io)
    try:
        join = ss.SemiStreamJoin(store, "id", "left", algorithm=algorithm, memory="600kB")
        return sorted(rows_of([*join.push(STREAM), *join.drain()]), key=repr)
    finally:
        store.close()


@pytest.fixture(scope="module")
def right(root) -> list[tuple]:
    found = answer(root, "map", "sweepjoin")
    assert ("now 25",) in [row[1:] for row in found]
    return found


def noticed(root: Path, path: Path, right: list[tuple], ways: Iterable[tuple[str, str]]) -> bool:
    """The right rows, or an error that names the file; True: an error."""
    failed = False
    for io, algorithm in ways:
        try:
            got = answer(root, io, algorithm)
        except ss.StoreError as error:
            names(error, path)
            failed = True
        else:
            assert got == right, f"{path.name}: wrong rows by {io}, {algorithm}"
    return failed


def verify_notices(root: Path, path: Path) -> bool:
    try:
        ss.Store.open(root, io="pread").verify()
    except ss.StoreError as error:
        names(error, path)
        return True
    return False


def names(error: Exception, *paths: Path) -> None:
    if not any(path.name in str(error) for path in paths):
        raise AssertionError(f"{error} names none of {paths}") from error


def broken(path: Path, contents: Iterable[bytes], check: Callable[[], None]) -> None:
    content = path.read_bytes()
    try:
        for data in contents:
            path.write_bytes(data)
            check()
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_flipped(kind, root, right) -> None:
    rng = random.Random(kind)
    for path in files(root, kind):
        content = path.read_bytes()
        flips = []
        for at in rng.sample(range(len(content)), min(60, len(content))):
            data = bytearray(content)
            data[at] ^= 1 << rng.randrange(8)
            flips.append(bytes(data))

        def check(path: Path = path) -> None:
            noticed(root, path, right, [rng.choice(ALL_WAYS)])
            assert verify_notices(root, path), f"verify did not see a flip in {path.name}"

        broken(path, flips, check)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short_or_too_long_or_missing(kind, root, right) -> None:
    rng = random.Random(kind)
    for path in files(root, kind):
        content = path.read_bytes()
        cuts = [content[: rng.randrange(len(content))] for _ in range(12)]

        def check(path: Path = path) -> None:
            assert noticed(root, path, right, [rng.choice(ALL_WAYS)])
            assert verify_notices(root, path)

        broken(path, [b"", *cuts, content[:-1], content + b"\0"], check)
        if kind != "json":
            path.unlink()
            try:
                check(path)
            finally:
                path.write_bytes(content)


@pytest.mark.parametrize("kind", ["index", "claims", "arrow"])
def test_files_of_two_runs_exchanged(kind, root, right) -> None:
    """Also where both have the same size."""
    same = 0
    for one, other in itertools.combinations(files(root, kind), 2):
        a, b = one.read_bytes(), other.read_bytes()
        same += len(a) == len(b)
        try:
            one.write_bytes(b)
            other.write_bytes(a)
            for way in ALL_WAYS:
                try:
                    answer(root, *way)
                except ss.StoreError as error:
                    names(error, one, other)
                else:
                    raise AssertionError(f"{way} did not see it")
            with pytest.raises(ss.StoreError):
                ss.Store.open(root).verify()
        finally:
            one.write_bytes(a)
            other.write_bytes(b)
    assert same >= 1


def test_runs_reordered_or_dropped_in_the_manifest(root, right) -> None:
    path = manifests(root)[-1]
    body = json.loads(path.read_bytes())
    runs = body["runs"]
    others = [runs[::-1], runs[:-1], runs[1:], [], [*runs, runs[-1]]]
    others += [[*runs[:i], *runs[i + 1 :]] for i in range(len(runs))]
    others += [[runs[0], runs[2], runs[1], *runs[3:]]]
    contents = [json.dumps({**body, "runs": some}).encode() for some in others]

    def check() -> None:
        assert noticed(root, path, right, ALL_WAYS[:2])

    broken(path, contents, check)
    older = [p.read_bytes() for p in manifests(root)[:-1]]
    broken(path, older, check)


def test_damaged_stores_are_not_changed(root, right) -> None:
    """What a change would have to read is checked as it is by a join. Nothing is left over."""
    check_clean(root)
    changes: dict[str, Callable[[ss.Store], object]] = {
        "append": lambda s: s.append(rows(range(60), "x")),
        "compact": lambda s: s.compact(),
    }
    base = root / "data" / ss.Store.open(root).manifest.runs[0].shards[0].name
    content = base.read_bytes()

    def check() -> None:
        for change in changes.values():
            with pytest.raises(ss.DamagedError, match=base.name):
                change(ss.Store.open(root))
        check_clean(root)

    broken(base, [content.replace(b"base 06", b"base 07")], check)
    assert answer(root, "pread", "sweepjoin") == right


def test_a_damaged_old_version_stops_nobody(root, right) -> None:
    """A change goes on; what the old version needs is unknown, so no file is removed."""
    old = manifests(root)[0]
    content = old.read_bytes()
    before = {p.name for p in (root / "data").iterdir()}
    old.write_bytes(content[:-9])
    try:
        store = ss.Store.open(root)
        newer = store.upsert(rows(range(100, 101), "x"))
        assert newer.version == store.version + 1
        assert before <= {p.name for p in (root / "data").iterdir()}
        with pytest.raises(ss.DamagedError, match=old.name):
            ss.Store.open(root, 1)
        assert answer(root, "map", "sweepjoin") == right
        newer.place.remove(f"manifests/{newer.version:08d}.json")
    finally:
        old.write_bytes(content)
