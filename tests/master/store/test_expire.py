"""keep=: every change lets old versions expire, but for those that are kept."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.storage.place import place_at
from semistream.master.store import expire as store_expire
from semistream.master.store import format as fmt
from semistream.testing import rows_of
from tests.helpers.crash_child import check_clean


def table(content: dict[int, int]) -> pa.Table:
    return pa.table({"id": pa.array(content, pa.int64()), "v": pa.array(content.values())})


@pytest.fixture
def path(tmp_path) -> Path:
    ss.Store.create(tmp_path / "s", table({k: 0 for k in range(50)}), "id", keep=3).close()
    return tmp_path / "s"


def change(path: Path, number: int) -> ss.Store:
    return ss.Store.open(path).upsert(table({number: number}))


def there(path: Path) -> list[int]:
    return fmt.versions(place_at(path))


def test_every_change_lets_old_ones_go(path) -> None:
    for number in range(2, 12):
        store = change(path, number)
        assert store.version == number
        assert there(path) == [*range(max(1, number - 2), number + 1)]
        check_clean(path)
        for version in there(path):
            assert ss.Store.open(path, version).verify() > 0
    assert store.compact().version == 12
    assert there(path) == [10, 11, 12]
    ss.Store.open(path).delete(pa.table({"id": [1]}))
    assert there(path) == [11, 12, 13]
    names = [p.name for p in (path / "manifests").iterdir()]
    assert len(names) == 3, "no name stays while nobody else writes"


def test_readers_of_an_expired_version_go_on(path) -> None:
    stores = {io: ss.Store.open(path, 1, io=io) for io in ("map", "pread")}
    for number in range(2, 9):
        change(path, number)
    for store in stores.values():
        found = rows_of(list(ss.join_batches([pa.record_batch({"id": [5]})], store, "id")))
        assert found == [(5, 0)]


def test_pinned_versions_stay(path, tmp_path) -> None:
    pins = tmp_path / "pins" / "query"
    pins.mkdir(parents=True)
    store = ss.Store.open(path).retain(2, pins=tmp_path / "pins")
    pin = {"master": str(path.absolute()), "version": store.version}
    (pins / "0.pin").write_text(json.dumps(pin))
    for number in range(3, 8):
        change(path, number)
    assert there(path) == [2, 6, 7]
    (pins / "0.pin").unlink()
    change(path, 8)
    assert there(path) == [7, 8]
    check_clean(path)


def test_where_pins_cannot_be_read_nothing_goes(path, tmp_path, caplog) -> None:
    """The change is made all the same, and a log says why versions stay."""
    (tmp_path / "pins").mkdir()
    ss.Store.open(path).retain(1, pins=[tmp_path / "pins"])
    assert there(path) == [2]
    shutil.rmtree(tmp_path / "pins")
    with caplog.at_level(logging.WARNING, "semistream"):
        assert change(path, 3).version == 3
    assert there(path) == [2, 3]
    assert "stay for now" in caplog.text
    assert "pins" in caplog.text
    with pytest.raises(ss.StoreError, match="does not exist"):
        ss.Store.open(path).expire(0, pins=tmp_path / "pins")


def test_age_counts_too(path, monkeypatch) -> None:
    """Beyond the last ones only those go that were replaced long enough ago."""
    store = ss.Store.open(path).retain(1, older_than="1h")
    for number in (3, 4):
        store = change(path, number)
    for minutes, left in ((30, [1, 2, 3, 4, 5]), (120, [6])):

        class Clock:
            time = staticmethod(lambda m=minutes, c=store.manifest.created: c + 60.0 * m)

        monkeypatch.setattr(store_expire, "time", Clock)
        change(path, minutes)
        assert there(path) == left


def test_the_rule_can_be_changed(path) -> None:
    for number in (2, 3):
        store = change(path, number)
    store = store.retain(None)
    assert (store.version, store.manifest.operation, store.manifest.keep) == (4, "retain", None)
    for number in (5, 6, 7):
        store = change(path, number)
    assert there(path) == [1, 2, 3, 4, 5, 6, 7]
    assert store.retain(None) is store
    store = store.retain(2)
    assert there(path) == [7, 8]
    assert store.retain(2) is store
    assert rows_of(pa.Table.from_batches(store.batches()))
    for wrong in (0, -1, True, 1.5, "3"):
        with pytest.raises(ss.SpecError, match="keep at least 1"):
            store.retain(wrong)
        with pytest.raises(ss.SpecError, match="keep at least 1"):
            ss.Store.create(path.with_name("t"), table({1: 1}), "id", keep=wrong)
    assert not path.with_name("t").exists()


def test_a_late_writer_cannot_take_a_number_that_expired(path) -> None:
    """It works while others publish versions and let them go: names stay until it has failed."""

    def data():
        yield table({1: 10}).to_batches()[0]
        for number in range(2, 8):
            change(path, number)

    with pytest.raises(ss.ConflictError):
        ss.Store.open(path).upsert(data())
    assert there(path) == [5, 6, 7]
    assert len(list((path / "manifests").iterdir())) > 3
    change(path, 8)
    assert len(list((path / "manifests").iterdir())) == 3
    check_clean(path)


def test_a_version_that_expires_as_soon_as_it_is_published(path, monkeypatch) -> None:
    """The change was made: what comes back is a version that has it, and no error."""
    from semistream.master.store import change as store_change

    ss.Store.open(path).retain(1)
    keep_as_told = store_change.keep_as_told

    def late(*arguments) -> None:
        monkeypatch.setattr(store_change, "keep_as_told", keep_as_told)
        ss.Store.open(path).compact()
        keep_as_told(*arguments)

    monkeypatch.setattr(store_change, "keep_as_told", late)
    store = ss.Store.open(path).upsert(table({7: 77}))
    assert store.version == 4
    assert (7, 77) in rows_of(pa.Table.from_batches(store.batches()))
    assert there(path) == [4]


def test_two_writers_and_few_versions(path) -> None:
    """Versions go as fast as they come, and no change is lost."""
    ss.Store.open(path).retain(1)
    failed: list[BaseException] = []

    def write(who: int) -> None:
        try:
            for i in range(12):
                while True:
                    try:
                        ss.Store.open(path).upsert(table({who * 1000 + i: i}))
                        break
                    except ss.ConflictError:
                        continue
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(who,)) for who in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    store = ss.Store.open(path)
    assert store.version == 2 + 24
    assert store.describe().rows == 50 + 24
    assert store.verify() > 0
    store.upsert(table({1: 1}))
    check_clean(path)
