"""unique=True: a store keeps one row per key, whoever changes it, and says which key would break
that."""

from __future__ import annotations

import pickle
import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.rows import keys
from semistream.testing import check_master
from tests.helpers.crash_child import check_clean
from tests.helpers.history_data import KINDS


def table(ids: list, what: str = "x") -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": [f"{what} {i}" for i in range(len(ids))]}
    )


@pytest.fixture
def store(tmp_path) -> ss.Store:
    return ss.Store.create(tmp_path / "s", table([*range(100), None, None]), "id", unique=True,
                           page_bytes=512)  # fmt: skip


def refused(call) -> ss.DuplicateKeyError:
    with pytest.raises(ss.DuplicateKeyError) as caught:
        call()
    return caught.value


# --- making one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_key(name, tmp_path) -> None:
    """NULL keys are no duplicates of each other: they match nothing."""
    kind = KINDS[name]
    some = [*kind.values, None, None]
    random.Random(name).shuffle(some)
    content = kind.table(some, "x")
    store = ss.Store.create(tmp_path / "s", content, kind.names, unique=True, page_bytes=512)
    check_master(store, content, kind.names)
    assert store.describe().unique
    twice = kind.table([*some, *kind.values[:2], kind.values[1]], "x")
    error = refused(lambda: ss.Store.create(tmp_path / "t", twice, kind.names, unique=True))
    assert error.count == 2
    assert tuple(error.key[n] for n in kind.names) in kind.values[:2]
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("spill_bytes", [1, 1 << 30])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_all_are_counted_wherever_they_lie(rows, spill_bytes, tmp_path) -> None:
    ids = [k for k in range(300) for _ in range(1 + (k % 10 == 0) * (k % 3 + 1))]
    random.Random(1).shuffle(ids)
    batches = table(ids).to_batches(max_chunksize=rows)
    error = refused(
        lambda: ss.Store.create(
            tmp_path / "s", batches, "id", unique=True, spill_bytes=spill_bytes, page_bytes=512
        )
    )
    assert error.count == 30
    assert error.key["id"] % 10 == 0
    assert "30 keys" in str(error)
    assert f"id={error.key['id']}" in str(error)
    assert "x " not in str(error), "the row is nobody's business"


@pytest.mark.parametrize(
    ("t", "value", "shown"),
    [
        (pa.timestamp("ns"), 1_700_000_000_000_000_001, "'2023-11-14 22:13:20.000000001'"),
        (pa.date32(), 2**31 - 1, "2147483647"),
        (pa.timestamp("us"), 2**62, "4611686018427387904"),
        (pa.duration("ns"), 7, "'7'"),
        (pa.duration("s"), 2**62, "'4611686018427387904'"),
        (pa.decimal256(70, 2), Decimal("1.50"), "Decimal('1.50')"),
        (pa.date64(), 86_400_000 * 10**7, "'29349-01-26'"),
        (pa.time64("ns"), 5, "'00:00:00.000000005'"),
        (pa.date32(), 0, "datetime.date(1970, 1, 1)"),
    ],
)
def test_an_example_of_any_type(t, value, shown, tmp_path) -> None:
    if isinstance(value, int):
        storage = pa.int32() if t.bit_width == 32 else pa.int64()
        array = pa.array([value, value], storage).view(t)
    else:
        array = pa.array([value, value], t)
    error = refused(
        lambda: ss.Store.create(tmp_path / "s", pa.table({"id": array}), "id", unique=True)
    )
    assert error.count == 1
    assert shown in repr(error.key["id"])


def test_keys_that_only_share_a_hash(tmp_path, monkeypatch) -> None:
    """They are different keys; a key that is there twice is found among them."""
    real = keys._hash_column

    def few(array, hashes):
        real(array, hashes)
        hashes %= 3

    monkeypatch.setattr(keys, "_hash_column", few)
    words = pa.table({"id": [f"word {i}" for i in range(40)], "n": range(40)})
    store = ss.Store.create(tmp_path / "s", words, "id", unique=True, page_bytes=300)
    assert store.manifest.unique
    assert not store.describe().unique, "codes are not, which is what joins go by"
    assert store.upsert(words.slice(3, 9)).verify() > 1
    for data in (pa.concat_tables([words, words.slice(7, 1)]).slice(5), words.slice(7, 1)):
        error = refused(lambda data=data: store.newest().append(data))
        assert error.key["id"].startswith("word ")
    some = pa.concat_tables([words.slice(0, 30), words.slice(7, 1)])
    error = refused(lambda: ss.Store.create(tmp_path / "t", some.to_batches(max_chunksize=4), "id",
                                            unique=True))  # fmt: skip
    assert (error.key, error.count) == ({"id": "word 7"}, 1)


# --- changing it ----------------------------------------------------------------------------------


def test_changes_keep_the_promise(store, tmp_path) -> None:
    path = tmp_path / "s"
    error = refused(lambda: store.append(table([500, 7, 8, 501])))
    assert (error.count, error.key) == (2, {"id": 7})
    assert "upsert instead of append" in str(error)
    error = refused(lambda: store.append(table([500, 500])))
    assert (error.count, error.key) == (1, {"id": 500})
    error = refused(lambda: store.upsert(table([3, 4, 3])))
    assert (error.count, error.key) == (1, {"id": 3})
    assert ss.Store.open(path).version == 1
    check_clean(path)
    store = store.append(table([500, 501, None])).upsert(table([3, 4, 700]))
    store = store.delete(pa.table({"id": [5]})).append(table([5]))
    assert store.describe().unique
    assert store.describe().rows == 102 + 3 + 1
    assert store.verify() > 3
    store = store.compact()
    assert store.manifest.unique
    refused(lambda: store.append(table([5])))
    assert ss.Store.open(path).manifest.unique


def test_a_store_without_the_promise_takes_all(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", table([1, 2, 3]), "id")
    assert (store.describe().unique, store.manifest.unique) == (True, False)
    assert not store.append(table([1])).describe().unique


def test_verify_looks(tmp_path) -> None:
    """The promise is checked where it was written without a check."""
    from dataclasses import replace

    store = ss.Store.create(tmp_path / "s", table([1, 2, 2, 3]), "id")
    file = tmp_path / "s" / "manifests" / "00000001.json"
    file.write_bytes(replace(store.manifest, unique=True).to_json())
    with pytest.raises(ss.DamagedError, match=r"promises one row per key.*1 keys.*'id': 2"):
        ss.Store.open(tmp_path / "s").verify()


def test_meshjoin_may_let_rows_go_at_their_match(store) -> None:
    """What is known to be unique can be used."""
    join = ss.SemiStreamJoin(
        store, on="id", algorithm="meshjoin", params=ss.Params(release="match"), memory="300kB"
    )
    out = [*join.push(pa.record_batch({"id": [5, 6, 1000]})), *join.drain()]
    assert sum(map(len, out)) == 2


def test_the_error_travels() -> None:
    error = ss.DuplicateKeyError("why", {"id": 7}, 3)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.key, again.count) == ("why", {"id": 7}, 3)
    assert isinstance(again, ss.MasterError)


def test_spark_tasks_check_it_too(store) -> None:
    """They write with the same design, which carries the promise."""
    from semistream.master.store.run import PartWriter

    assert store.design.unique
    folder = Path(store.place.data)
    writer = PartWriter(folder, f"{'0' * 32}-1.arrow", store.design, "base")
    rows = table([1, 1]).to_batches()[0]
    writer.add(keys.codes_of([rows.column("id")]), rows)
    refused(writer.finish)
    writer.abort()
    assert not [p for p in folder.iterdir() if p.name.startswith(("0" * 32, "."))]
