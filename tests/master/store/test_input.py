"""What changes of a store are given: the right columns, in any order, or an error."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.store.expire import seconds
from tests.helpers.crash_child import check_clean

BASE = pa.table(
    {
        "shop": ["a", "a", "b"],
        "id": pa.array([1, 2, 1], pa.int64()),
        "price": [1.5, 2.5, 3.5],
    }
)
SECRET = "4711 secret"


@pytest.fixture
def store(tmp_path) -> ss.Store:
    return ss.Store.create(tmp_path / "s", BASE, ["shop", "id"])


def content(store: ss.Store) -> list[tuple]:
    return sorted(tuple(r.values()) for b in store.batches() for r in b.to_pylist())


def row(**changes) -> pa.Table:
    columns = {"shop": pa.array(["a"]), "id": pa.array([2], pa.int64()), "price": pa.array([9.0])}
    return pa.table({name: c for name, c in (columns | changes).items() if c is not None})


def refused(store: ss.Store, change: Callable[[], object], *said: str) -> None:
    """An error with these words, without row contents, and nothing has happened."""
    with pytest.raises(ss.SpecError) as caught:
        change()
    for word in said:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"
    assert SECRET not in str(caught.value)
    assert store.newest() is store
    check_clean(Path(store.place.name))


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["append", "upsert"])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (row(price=None), ["missing are ['price']", "rename"]),
        (row(more=pa.array([SECRET])), ["not expected ['more']", "select"]),
        (row().rename_columns(["shop", "id", "cost"]), ["'price'", "'cost'"]),
        (row(id=pa.array([2], pa.int32())), ["'id' is int32", "not int64", "cast"]),
        (row(id=pa.array([SECRET])), ["'id' is string", "not int64", "cast"]),
        (row(price=pa.array([1])), ["'price' is int64", "not double", "cast"]),
        (row(shop=pa.array(["a"], pa.large_string())), ["'shop' is large_string", "cast"]),
    ],
    ids=["missing", "extra", "renamed", "narrower", "text", "castable", "large"],
)
def test_other_columns_are_refused(data, said, empty, verb, store) -> None:
    """Also where there are no rows; also an exact wider type: to cast is one word for the caller,
    and a store that guesses would guess for years."""
    data = data.slice(0, 0) if empty else data
    for form in (data, data.to_reader(), data.schema.empty_table() if empty else data):
        refused(store, lambda form=form: getattr(store, verb)(form), *said)


@pytest.mark.parametrize("verb", ["append", "upsert"])
def test_columns_in_any_order_and_any_clothes(verb, store) -> None:
    """Reordered, dictionary-encoded, with metadata, from pandas, in several kinds of iterables."""
    plain = row()
    forms = [
        plain.select(["price", "id", "shop"]),
        plain.set_column(0, "shop", plain["shop"].dictionary_encode()),
        plain.replace_schema_metadata({"who": "cares"}),
        pa.Table.from_pandas(plain.to_pandas()),
        plain.to_reader(),
        plain.combine_chunks().to_batches()[0],
        (batch for batch in plain.to_batches()),
    ]
    for form in forms:
        changed = getattr(store, verb)(form)
        assert changed.manifest.schema.equals(BASE.schema, check_metadata=True)
        store = changed.upsert(plain)
        assert content(store) == sorted([("a", 1, 1.5), ("b", 1, 3.5), ("a", 2, 9.0)])


def test_nothing_to_change(store) -> None:
    for form in (BASE.slice(0, 0), BASE.schema.empty_table()):
        assert store.upsert(form) is store
        assert store.append(form.to_reader()) is store
        assert store.delete(form.select(["shop", "id"])) is store
    assert store.compact() is store
    check_clean(Path(store.place.name))


@pytest.mark.parametrize("nothing", [[], None, 7, "rows", [1], {"id": [1]}, iter(())])
@pytest.mark.parametrize("verb", ["append", "upsert", "delete"])
def test_what_is_no_table(verb, nothing, store) -> None:
    refused(store, lambda: getattr(store, verb)(nothing), "pyarrow Table")


def test_a_later_batch_that_is_none(store) -> None:
    refused(store, lambda: store.upsert([*row().to_batches(), "x"]), "RecordBatches", "str")


def test_nulls_where_none_are_declared(tmp_path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    store = ss.Store.create(tmp_path / "s", pa.table({"id": [1], "v": ["x"]}, schema=schema), "id")
    refused(
        store,
        lambda: store.upsert(pa.table({"id": [1], "v": pa.array([None], pa.string())})),
        "'v' has 1 NULLs",
    )
    check_clean(tmp_path / "s")


# --- keys ----------------------------------------------------------------------------------------


def test_null_keys(store) -> None:
    null = row(shop=pa.array([None], pa.string()))
    refused(
        store, lambda: store.upsert(null), "1 rows have a NULL in the key ['shop', 'id']", "append"
    )
    appended = store.append(null)
    assert appended.describe().rows == 4
    deleted = appended.delete(null.select(["shop", "id"]))
    assert deleted is appended, "a NULL is no key"


def test_delete_by_key_columns(store) -> None:
    refused(store, lambda: store.delete(row()), "not expected ['price']", "select")
    refused(store, lambda: store.delete(row().select(["id"])), "missing are ['shop']")
    refused(
        store,
        lambda: store.delete(row(id=pa.array([1], pa.int8())).select(["shop", "id"])),
        "'id' is int8",
    )
    left = store.delete(row().select(["id", "shop"]))  # in another order
    assert content(left) == [("a", 1, 1.5), ("b", 1, 3.5)]
    assert left.delete(row().select(["shop", "id"])) is left, "it is gone already"


# --- sources that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["append", "upsert", "delete"])
@pytest.mark.parametrize("spill_bytes", [1, 1 << 30])
def test_a_source_that_fails_half_way(spill_bytes, verb, store) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield from (row() if verb != "delete" else row().select(["shop", "id"])).to_batches()
        raise ZeroDivisionError("the source failed")

    with pytest.raises(ZeroDivisionError):
        getattr(store, verb)(broken(), spill_bytes=spill_bytes)
    assert store.newest() is store
    check_clean(Path(store.place.name))


def test_progress_that_fails(store) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upsert(row(), progress=stop)
    changed = store.upsert(row())
    with pytest.raises(KeyboardInterrupt):
        changed.compact(progress=stop)
    assert changed.newest() is changed
    check_clean(Path(store.place.name))


# --- expiry --------------------------------------------------------------------------------------


def test_keep(store) -> None:
    for price in range(4):
        store = store.upsert(row(price=pa.array([float(price)])))
    for keep in (0, -1):
        refused(store, lambda keep=keep: store.expire(0.0, keep=keep), f"keep={keep}", "at least 1")
    for keep in (5, 6, 7, 9, 1000):
        assert store.expire(0.0, keep=keep) == [], f"keep={keep} of 5 versions"
    assert store.expire("1h", keep=1) == []
    assert store.expire(0.0, keep=4) == [1]
    assert store.expire(0.0, keep=2) == [2, 3]
    assert store.expire(0) == [4]
    assert store.verify() >= 1
    check_clean(Path(store.place.name))


@pytest.mark.parametrize("age", [-1, "-1d", "1 year", "", "7", None, float("nan"), True, [1]])
def test_bad_ages(age, store) -> None:
    refused(store, lambda: store.expire(age), repr(age), '"7d"')


def test_ages() -> None:
    assert [seconds(a) for a in (0, 1.5, "90s", "30m", "12h", " 7 d ", "2w", "0.5h")] == [
        0, 1.5, 90, 1800, 43_200, 604_800, 1_209_600, 1800,
    ]  # fmt: skip


# --- places --------------------------------------------------------------------------------------


def test_a_path_that_is_a_file(tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ss.StoreError, match="file cannot be made a folder"):
        ss.Store.create(tmp_path / "file", BASE, "id")
    with pytest.raises(ss.StoreError, match="not a store"):
        ss.Store.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_folder_that_is_read_only(store, monkeypatch) -> None:
    """Told by the system, whoever runs this test."""
    real = os.open

    def refuse(path, flags, *more, **named):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    for change in (lambda: store.upsert(row()), lambda: store.expire(0)):
        with pytest.raises(ss.StoreError, match=r"s cannot be written to: Read-only.*right"):
            change()
    assert content(store) == sorted(tuple(r.values()) for r in BASE.to_pylist())


def test_the_data_folder_is_missing(store) -> None:
    path = Path(store.place.name)
    shutil.rmtree(path / "data")
    with pytest.raises(ss.StoreError, match=r"data/.* cannot be written: No such file.*nothing"):
        store.upsert(row())
    with pytest.raises(ss.DamagedError, match=r"data/.* cannot be opened: No such file"):
        ss.Store.open(path)
    assert not (path / "data").exists()
