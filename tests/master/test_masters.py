"""One suite over every kind of master."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.master import Master, from_locator
from semistream.master.parquet import master as parquet
from semistream.testing import check_join, check_master
from tests.helpers.database_servers import load
from tests.helpers.sample_data import KEY_VALUES, MASTERS, build, keys_for, products

KEYS = {
    "dense": range(200),
    "duplicates": [k // 7 for k in range(200)],
    "one key": [5] * 200,
    "nulls": [None if k % 5 == 0 else k // 3 for k in range(200)],
    "nulls only": [None] * 50,
    "empty": [],
    "one row": [3],
    "extremes": [-(2**63), 2**63 - 1, 0, -1, 1],
}


def home(kind: str, keys: list[int | None], path: Path, request) -> tuple[Master, pa.Table]:
    """The table in one of the places where masters live, those behind servers included."""
    table = products(keys)
    if kind == "s3":
        bucket = request.getfixturevalue("bucket")
        options = {"storage_options": bucket.options}
        return ss.Store.create(f"{bucket.url}/s", table, "id", page_bytes=512, **options), table
    if kind in ("postgresql", "mariadb"):
        columns = [("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())]
        table = table.select(["id", "name", "price"]).cast(pa.schema(columns))
        server = request.getfixturevalue(kind)
        name = load(server, table, ["id"], "index")
        return ss.open_master(server.url(), "id", table=name, columns=table.column_names), table
    return build(kind, table, "id", path), table


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("kind", [*MASTERS, "s3", "postgresql", "mariadb"])
def test_conforms(kind, keys, tmp_path, request) -> None:
    master, table = home(kind, list(keys), tmp_path, request)
    for seed in range(3 if kind in MASTERS else 1):
        check_master(master, table, "id", rng=seed)


@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet", "unsorted"])
@pytest.mark.parametrize("t", KEY_VALUES, ids=str)
def test_conforms_for_key_types(t, kind, tmp_path) -> None:
    if t == pa.string_view() and kind in ("parquet", "unsorted"):
        return  # pyarrow can neither sort nor take it
    table = pa.table({"key": keys_for(t, 90, random.Random(1)), "v": range(90)})
    master = build(kind, table, "key", tmp_path)
    check_master(master, table, "key")


@pytest.mark.parametrize("kind", MASTERS)
def test_conforms_for_composite_keys(kind, tmp_path) -> None:
    rng = random.Random(2)
    table = pa.table(
        {
            "v": range(120),
            "b": keys_for(pa.string(), 120, rng),
            "a": keys_for(pa.int16(), 120, rng),
        }
    )
    check_master(build(kind, table, ["a", "b"], tmp_path), table, ["a", "b"])


@pytest.mark.parametrize("name", ["row", "k0", "key", "__semistream", "a.b", "ä b"])
@pytest.mark.parametrize("kind", ["memory", "pread", "parquet"])
def test_conforms_whatever_the_key_is_called(kind, name, tmp_path) -> None:
    table = pa.table({name: [3, 1, 2, 1], "v": ["a", "b", "c", "d"]})
    check_master(build(kind, table, name, tmp_path), table, name)


# --- Parquet -----------------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch) -> None:
    """Several pages to a row group, as in large files."""
    monkeypatch.setattr(parquet, "PAGE_BYTES", 400)


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("kind", ["parquet", "unsorted", "folder"])
@pytest.mark.usefixtures("small_pages")
def test_parquet_with_many_pages_to_a_row_group(kind, keys, tmp_path) -> None:
    table = products(list(keys))
    check_master(build(kind, table, "id", tmp_path), table, "id")


@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "inlj", "memory"])
@pytest.mark.usefixtures("small_pages")
def test_joins_on_row_groups_sorted_outside_only(algorithm, tmp_path) -> None:
    """Row groups in order, rows within them not: a key may be on any page of its group."""
    rng = random.Random(3)
    keys = [k for g in range(6) for k in rng.choices(range(20 * g, 20 * g + 21), k=60)]
    table = products(keys)
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=60)
    master = ss.open_master(tmp_path / "m.parquet", "id")
    assert master.describe().indexed
    stream = pa.table(
        {"id": pa.array([rng.randrange(-3, 125) for _ in range(200)]), "n": range(200)}
    )
    check_master(master, table, "id")
    for how in ("inner", "anti"):
        check_join(
            master, stream, on="id", how=how, algorithm=algorithm, memory="2MB", table=table, rng=4
        )


def test_which_parquet_has_an_index(tmp_path) -> None:
    table = products(range(100))
    assert build("parquet", table, "id", tmp_path).describe().indexed
    assert not build("unsorted", table, "id", tmp_path).describe().indexed
    assert not build("parquet", table, "name", tmp_path).describe().indexed, "a hashed key"
    pq.write_table(table, tmp_path / "bare.parquet", write_statistics=False)
    assert not ss.open_master(tmp_path / "bare.parquet", "id").describe().indexed


def test_a_folder_that_is_in_order_has_an_index(tmp_path) -> None:
    master = build("folder", products(range(100)), "id", tmp_path)
    assert master.describe().indexed
    check_master(master, products(range(100)), "id")


def test_parquet_that_cannot_be_a_master(tmp_path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(ss.MasterError, match="no Parquet files"):
        ss.open_master(folder, "id")
    (folder / "part.parquet").write_bytes(b"PAR1 but no more than that")
    with pytest.raises(ss.MasterError, match=r"part\.parquet is not a readable Parquet file"):
        ss.open_master(folder, "id")
    (folder / "part.parquet").unlink()
    pq.write_table(products(range(3)), folder / "a.parquet")
    pq.write_table(products(range(3)).drop(["name"]), folder / "b.parquet")
    with pytest.raises(ss.SpecError, match=r"b\.parquet.*one schema"):
        ss.open_master(folder, "id")


@pytest.mark.parametrize("algorithm", ["meshjoin", "sweepjoin"])
@pytest.mark.usefixtures("small_pages")
def test_parquet_damaged_after_opening_is_an_error_not_a_miss(algorithm, tmp_path) -> None:
    table = products(range(2_000))
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=500, compression="zstd")
    master = ss.open_master(tmp_path / "m.parquet", "id")
    join = ss.SemiStreamJoin(master, "id", "left", algorithm=algorithm, memory="4MB")
    list(join.push(pa.record_batch({"id": pa.array(range(2_000))})))
    content = bytearray((tmp_path / "m.parquet").read_bytes())
    content[200 : len(content) // 2] = bytes(len(content) // 2 - 200)
    (tmp_path / "m.parquet").write_bytes(content)
    with pytest.raises(ss.MasterError, match=r"m\.parquet"):
        list(join.drain())


# --- opening -----------------------------------------------------------------------------------


def test_open_master_by_what_it_is(tmp_path) -> None:
    table = products(range(30))
    ss.Store.create(tmp_path / "s", table, "id")
    pq.write_table(table, tmp_path / "m.parquet")
    batch = table.combine_chunks().to_batches()[0]
    for source in (table, batch, tmp_path / "s", str(tmp_path / "s"), tmp_path / "m.parquet"):
        check_master(ss.open_master(source, key="id"), table, "id")
    store = ss.open_master(tmp_path / "s")
    assert store.describe().key == ("id",)
    assert ss.open_master(store) is store


@pytest.mark.parametrize(
    ("source", "key", "error", "said"),
    [
        (products([1]), None, ss.SpecError, "key="),
        (products([1]), "nope", ss.SpecError, r"'nope'.*'id'"),
        ("nowhere/at/all", "id", ss.MasterError, "does not exist"),
        ("nosuch://bucket/x", "id", ss.MasterError, "nosuch"),
        (42, "id", ss.SpecError, "not int"),
    ],
)
def test_open_master_refuses(source, key, error, said) -> None:
    with pytest.raises(error, match=said):
        ss.open_master(source, key)


def test_a_store_has_one_key(tmp_path) -> None:
    ss.Store.create(tmp_path / "s", products(range(3)), "id")
    with pytest.raises(ss.SpecError, match=r"has key \['id'\]"):
        ss.open_master(tmp_path / "s", key="name")


@pytest.mark.parametrize("kind", MASTERS)
def test_another_process_finds_it_by_its_locator(kind, tmp_path) -> None:
    table = products([3, 1, 1, None] * 10)
    master = build(kind, table, "id", tmp_path)
    again = from_locator(master.locator())
    assert again is not master
    check_master(again, table, "id")


@pytest.mark.parametrize("kind", MASTERS)
def test_traffic_counts_what_is_read(kind, tmp_path) -> None:
    master = build(kind, products(range(200)), "id", tmp_path)
    info = master.describe()
    before = master.traffic.pages
    list(master.batches())
    assert master.traffic.pages - before == info.pages


@pytest.mark.parametrize("kind", MASTERS)
def test_unknown_columns_are_named(kind, tmp_path) -> None:
    master = build(kind, products(range(20)), "id", tmp_path)
    with pytest.raises(ss.SpecError, match=r"'nope'.*'price'"):
        master.scan(0, 1 << 20, ["nope"])


def test_a_suite_that_finds_faults() -> None:
    """check_master itself must fail where a master is wrong."""
    table = products([1, 2, 2, None, 5] * 20)
    right = build("memory", table, "id", None)

    class Wrong:
        def __getattr__(self, name):
            return getattr(right, name)

    def wrong(**parts):
        return type("Broken", (Wrong,), {k: staticmethod(v) for k, v in parts.items()})()

    check_master(wrong(), table, "id")
    low_high = np.zeros(1, np.int32)
    for broken, said in (
        (wrong(seek=lambda codes: (codes * 0, codes * 0)), "seek and read of key"),
        (wrong(lookup=lambda keys: table.slice(0, 3)), "lookup of"),
        (wrong(scan=lambda at, n, c: right.scan(0, n, c)), "scan"),
        (wrong(seek=lambda codes: (low_high[codes * 0], low_high[codes * 0] + 99)), "range"),
    ):
        with pytest.raises(AssertionError, match=said) as caught:
            check_master(broken, table, "id", rng=7)
        assert any("rng=7" in note for note in caught.value.__notes__)
    for lie in (table.slice(1), table.rename_columns(["id", "x", "price", "active", "tags"])):
        with pytest.raises(AssertionError):
            check_master(right, lie, "id")
