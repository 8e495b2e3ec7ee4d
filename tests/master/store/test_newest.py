"""The newest version: found without a look at all others, missed when it is gone, never given the
number of another."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master import from_locator
from semistream.master.storage.place import LocalPlace, place_at
from semistream.master.store import format as fmt
from semistream.safety.sealed import checksum
from semistream.testing import rows_of
from tests.helpers.crash_child import check_clean

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def table(content: dict[int, int]) -> pa.Table:
    return pa.table({"id": list(content), "v": list(content.values())}, schema=SCHEMA)


def content_of(store: ss.Store) -> dict[int, int]:
    return dict(rows_of(pa.Table.from_batches(store.batches(), SCHEMA)))


@pytest.fixture
def path(tmp_path) -> Path:
    """A store of three versions."""
    store = ss.Store.create(tmp_path / "s", table({1: 1, 2: 1, 3: 1}), "id")
    store.upsert(table({2: 2})).upsert(table({3: 3})).close()
    return tmp_path / "s"


def manifest(path: Path, version: int = 3) -> Path:
    return path / "manifests" / f"{version:08d}.json"


def files(path: Path) -> list[str]:
    """All but those of writers, which tell that one has failed."""
    return sorted(p.name for p in path.rglob("*") if p.parent.name != "writers")


# --- a newest manifest that is not there any more -------------------------------------------------


def delete(file: Path) -> None:
    file.unlink()


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("00000002.json")


def replace_by_junk(file: Path) -> None:
    file.write_bytes(b"\0" * 5000)


def replace_by_expired(file: Path) -> None:
    file.write_bytes(fmt.EXPIRED)


def replace_by_older(file: Path) -> None:
    shutil.copy(file.with_name("00000002.json"), file)


def replace_by_another(file: Path) -> None:
    """A sound manifest with the right number, which nobody published."""
    place = place_at(file.parent.parent)
    file.write_bytes(replace(fmt.read_manifest(place, 2), version=3, id="1" * 32).to_json())


LOSSES = [
    delete, replace_by_folder, replace_by_link, replace_by_junk, replace_by_expired,
    replace_by_older, replace_by_another,
]  # fmt: skip


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_newest_manifest_is_noticed(lose, path) -> None:
    """By everyone who asks for the newest version. The older one is there for who names it."""
    store = ss.Store.open(path)
    lose(manifest(path))
    before = files(path)
    calls = {
        "open": lambda: ss.Store.open(path),
        "open_master": lambda: ss.open_master(path),
        "join": lambda: ss.SemiStreamJoin(path, on="id"),
        "newest": lambda: store.newest(),
        "upsert": lambda: store.upsert(table({1: 9})),
        "compact": lambda: store.compact(),
        "retain": lambda: store.retain(1),
        "create": lambda: ss.Store.create(path, table({1: 9}), "id"),
        "version 3": lambda: ss.Store.open(path, 3),
    }
    if lose in (replace_by_another, replace_by_link):
        del calls["version 3"]  # who names a version takes what is there
    for name, call in calls.items():
        if name == "create":
            with pytest.raises(ss.StoreError, match="a store already"):
                call()
            continue
        with pytest.raises(ss.DamagedError, match=r"00000003\.json.*restore") as caught:
            call()
        assert str(path) in str(caught.value), name
    assert content_of(ss.Store.open(path, 2)) == {1: 1, 2: 2, 3: 1}
    assert files(path) == before, "what the lost version is made of must wait for its manifest"


@pytest.mark.parametrize("lose", LOSSES)
def test_an_older_version_restored_gets_a_new_number(lose, path) -> None:
    old = ss.Store.open(path)
    lose(manifest(path))
    store = ss.Store.open(path, 2).restore()
    assert store.version == 4
    assert ss.Store.open(path).manifest == store.manifest
    assert content_of(store) == {1: 1, 2: 2, 3: 1}
    assert store.verify() == 1
    with pytest.raises(ss.ConflictError):
        old.upsert(table({1: 9}))
    assert content_of(store.upsert(table({1: 9}))) == {1: 9, 2: 2, 3: 1}


def test_found_again(path) -> None:
    """Who puts the file back has all rows back, whatever others tried meanwhile."""
    file = manifest(path)
    content = file.read_bytes()
    store = ss.Store.open(path)
    file.unlink()
    for _ in range(2):
        with pytest.raises(ss.DamagedError):
            store.upsert(table({1: 9}))
        with pytest.raises(ss.DamagedError):
            store.expire(0)
    file.write_bytes(content)
    assert content_of(ss.Store.open(path)) == {1: 1, 2: 2, 3: 3}
    ss.Store.open(path).upsert(table({1: 9}))
    check_clean(path)


def test_all_manifests_lost(path) -> None:
    for version in (1, 2, 3):
        manifest(path, version).unlink()
    with pytest.raises(ss.DamagedError, match=r"00000003\.json is missing, .* restore the file$"):
        ss.Store.open(path)
    with pytest.raises(ss.StoreError, match="a store already"):
        ss.Store.create(path, table({1: 9}), "id")


def test_lost_while_a_change_is_made(path) -> None:
    """The change has all that the lost version had: it is published, under the next number."""

    def data():
        yield table({1: 7}).to_batches()[0]
        manifest(path).unlink()

    store = ss.Store.open(path).upsert(data())
    assert store.version == 4
    assert content_of(ss.Store.open(path)) == {1: 7, 2: 2, 3: 3}


def test_restore_of_what_is_the_newest_changes_nothing(path) -> None:
    store = ss.Store.open(path)
    assert store.restore() is store
    assert ss.Store.open(path).version == 3


def test_restore_of_a_version_keeps_what_it_promises(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", table({1: 1}), "id", unique=True, keep=9)
    store.upsert(table({1: 2}))
    again = store.restore()
    assert (again.version, again.manifest.operation) == (3, "restore")
    assert again.manifest.unique
    assert again.manifest.keep == store.manifest.keep
    assert content_of(again) == {1: 1}
    check_clean(tmp_path / "s")


# --- names among the manifests --------------------------------------------------------------------

STRAY = [
    "².json",
    "٣.json",
    "4.json",
    "000000004.json",
    "00000004.JSON",
    "00000004.json~",
    "x.json",
]
STRAY += [
    "-0000004.json",
    "+0000004.json",
    "0000 004.json",
    "00000004.json.tmp",
    "1e8.json",
    ".json",
]


def test_stray_files_are_no_versions(path) -> None:
    for name in STRAY:
        (path / "manifests" / name).write_text("{}")
    for name in ("²", "x", "00000009", "00000009.XYZ", "9.ab", "00000009.ab.tmp"):
        (path / "newest" / name).touch()
    for name in ("x.lock", "notes"):
        (path / "writers" / name).touch()
    store = ss.Store.open(path)
    assert store.version == 3
    assert store.upsert(table({1: 5})).version == 4
    assert fmt.versions(store.place) == [1, 2, 3, 4]
    assert ss.Store.open(path).expire(0) == [1, 2, 3]
    assert sorted(STRAY) == sorted(
        p.name for p in (path / "manifests").iterdir() if p.stat().st_size == 2
    )


# --- who noted what -------------------------------------------------------------------------------


def test_a_store_without_a_note_opens_and_gets_one(path) -> None:
    """As earlier writers left them; and where one was killed before it noted its version."""
    shutil.rmtree(path / "newest")
    shutil.rmtree(path / "writers")
    store = ss.Store.open(path)
    assert store.version == 3
    assert store.newest() is store
    assert store.upsert(table({1: 5})).version == 4
    check_clean(path)


def test_a_note_that_is_behind_hides_nothing(path) -> None:
    """Writers died after they had published: the versions are there, and the next one notes all."""
    (noted,) = (path / "newest").iterdir()
    for version in (4, 5):
        ss.Store.open(path).upsert(table({1: version}))
        for later in (path / "newest").iterdir():
            later.unlink()
        noted.touch()
        store = ss.Store.open(path)
        assert (store.version, content_of(store)[1]) == (version, version)
    assert store.expire(0) == [1, 2, 3, 4]
    assert [int(p.name[:8]) for p in (path / "newest").iterdir()] == [5]
    assert ss.Store.open(path).upsert(table({1: 6})).version == 6
    check_clean(path)


def test_a_store_of_the_first_format_has_ids_too(path) -> None:
    """Where a manifest has no id its checksum stands for one."""
    file = manifest(path, 2)
    body = json.loads(file.read_bytes())
    for name in ("id", "unique", "keep"):
        del body[name]
    body["crc32c"] = crc = _crc(body)
    file.write_text(json.dumps(body))
    store = ss.Store.open(path, 2)
    assert store.identity() == f"{store.manifest.store}/{crc:08x}"
    assert store.manifest.keep is None
    assert not store.manifest.unique


def _crc(body: dict) -> int:
    plain = {k: v for k, v in body.items() if k != "crc32c"}
    return checksum(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


# --- one number, two contents ---------------------------------------------------------------------


@pytest.fixture
def twice(path) -> tuple[ss.Store, ss.Store]:
    """Version 3, and another version 3 after the whole folder was put back to version 2."""
    backup = path.with_name("backup")
    mine = ss.Store.open(path)
    shutil.copytree(path, backup)
    (backup / "manifests" / "00000003.json").unlink()
    for noted in (backup / "newest").iterdir():
        noted.unlink()
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    other = ss.Store.open(path).upsert(table({1: 33}))
    assert mine.version == other.version == 3
    assert mine.manifest.store == other.manifest.store
    return mine, other


def test_they_are_told_apart(twice) -> None:
    mine, other = twice
    assert mine.identity() != other.identity()
    assert mine.newest().manifest == other.manifest
    with pytest.raises(ss.ConflictError):
        mine.upsert(table({1: 9}))
    with pytest.raises(ss.MasterError, match="rebuilt since the query began"):
        from_locator(mine.locator())
    assert content_of(from_locator(mine.locator() | {"version": 2})) == {1: 1, 2: 2, 3: 1}


def test_a_join_follows_from_one_to_the_other(twice) -> None:
    """Keys that only the first version had changed are not answered from its cached rows."""
    mine, _ = twice
    join = ss.SemiStreamJoin(mine, on="id", algorithm="sweepjoin", params=ss.Params(threshold=1))
    asked = pa.record_batch({"id": [1, 2, 3] * 50})
    for _ in range(3):
        out = [*join.push(asked), *join.drain()]
    assert set(rows_of(out)) == {(1, 1), (2, 2), (3, 3)}
    list(join.refresh())
    out = [*join.push(asked), *join.drain()]
    assert set(rows_of(out)) == {(1, 33), (2, 2), (3, 1)}


def test_a_snapshot_is_of_one_of_them(twice) -> None:
    mine, other = twice
    join = ss.SemiStreamJoin(mine, on="id", algorithm="meshjoin", memory="300kB")
    rows = sum(len(out) for out in join.push(pa.record_batch({"id": [1, 3]})))
    assert rows == 0
    with pytest.raises(ss.StateError, match="the snapshot has master"):
        ss.SemiStreamJoin(other, on="id", algorithm="meshjoin", memory="300kB").restore(
            join.snapshot()
        )
    again = ss.SemiStreamJoin(mine, on="id", algorithm="meshjoin", memory="300kB")
    again.restore(join.snapshot())
    assert sorted(rows_of([*again.drain()])) == [(1, 1), (3, 3)]


@pytest.mark.parametrize("version", [1, 2])
def test_changed_since_goes_both_ways(version, path) -> None:
    newest, old = ss.Store.open(path), ss.Store.open(path, version)
    for a, b in ((newest, old), (old, newest)):
        found = a.changed_since(b)
        assert found is not None
        before, after = content_of(b), content_of(a)
        assert set(found.tolist()) >= {k for k in before if before[k] != after[k]}


# --- how much is read -----------------------------------------------------------------------------


class Counting(LocalPlace):
    """Counts what is asked of a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def list(self, folder: str) -> list:
        found = super().list(folder)
        self.asked[f"names in {folder}"] += len(found)
        return found

    def read(self, name: str) -> bytes:
        self.asked[f"read in {name.split('/')[0]}"] += 1
        return super().read(name)


def asked_for(path: Path, versions: int) -> Counter[str]:
    """What opening, changing and following ask for, in a store with so many versions."""
    first = ss.Store.create(path, table({k: k for k in range(50)}), "id")
    for number in range(2, versions + 1):
        newest = replace(first.manifest, version=number, id=f"{number:032x}")
        (path / "manifests" / f"{number:08d}.json").write_bytes(newest.to_json())
    fmt.note(first.place, newest)
    place = Counting(path)
    store = ss.Store.open(place)
    assert store.version == versions
    following = store.upsert(table({1: 7})).delete(pa.table({"id": [2]}))
    assert following.version == versions + 2
    assert store.newest().version == versions + 2
    return place.asked


def test_a_change_does_not_look_at_all_versions(tmp_path) -> None:
    few, many = asked_for(tmp_path / "few", 10), asked_for(tmp_path / "many", 2_000)
    assert few == many
    assert few["names in manifests"] == few["names in data"] == 0
    assert 0 < few["read in manifests"] < 12
