"""The store: created from anything, sorted, paged, atomic, readable by any Arrow tool."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, check_master, oracle
from tests.helpers.sample_data import KEY_VALUES, keys_for, products


def joined(store: ss.Store, keys: list[int | None]) -> list[pa.RecordBatch]:
    batch = pa.record_batch({"id": pa.array(keys, pa.int64())})
    return list(ss.join_batches([batch], store, on="id", algorithm="sweepjoin"))


# --- creating ------------------------------------------------------------------------------------

TABLE = products([5, 3, None, 3, 9, 1, None, 7] * 20)


@pytest.mark.parametrize(
    "data",
    [
        lambda: TABLE,
        lambda: TABLE.combine_chunks().to_batches()[0],
        lambda: TABLE.to_batches(max_chunksize=7),
        lambda: TABLE.to_reader(max_chunksize=11),
        lambda: (batch for batch in TABLE.to_batches(max_chunksize=13)),
        lambda: pa.concat_tables([TABLE.slice(0, 50), TABLE.slice(50)]),
    ],
    ids=["table", "batch", "list", "reader", "generator", "chunked table"],
)
@pytest.mark.parametrize("spill_bytes", [1, 2_000, 1 << 30])
def test_create_from_anything(data, spill_bytes, tmp_path) -> None:
    """Also when rows are sorted on disk, from one batch at a time up to all at once."""
    seen = []
    store = ss.Store.create(
        tmp_path / "s",
        data(),
        "id",
        page_bytes=512,
        spill_bytes=spill_bytes,
        progress=seen.append,
    )
    check_master(store, TABLE, "id")
    assert store.verify() == store.describe().pages > 3
    assert seen == sorted(seen)
    assert seen[-1] == TABLE.num_rows - TABLE["id"].null_count
    assert_same_rows(joined(store, [3, 5, None]), oracle(_ids([3, 5, None]), TABLE, "id", "inner"))
    left_over = [p.name for p in (tmp_path / "s").rglob("*") if p.name.startswith(".")]
    assert left_over == []


def _ids(keys: list[int | None]) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64())})


def test_many_rows_spilled_in_many_runs(tmp_path) -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(-(2**62), 2**62, 30_000)
    table = pa.table({"id": keys, "n": np.arange(30_000)})
    store = ss.Store.create(
        tmp_path / "s", table.to_batches(max_chunksize=1_000), "id", spill_bytes=40_000
    )
    assert store.verify() > 5
    rows = pa.Table.from_batches(store.batches())
    order = np.argsort(keys, kind="stable")
    assert rows["id"].to_numpy().tolist() == keys[order].tolist()
    assert sorted(rows["n"].to_pylist()) == list(range(30_000))


@pytest.mark.parametrize("nothing", [TABLE.slice(0, 0), TABLE.slice(0, 0).to_reader()])
def test_an_empty_table(nothing, tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", nothing, "id")
    check_master(store, TABLE.slice(0, 0), "id")
    assert store.verify() == 0
    assert joined(store, [1, None]) == []


@pytest.mark.parametrize("nothing", [[], None, 7, "products", [1, 2], {"id": [1]}])
def test_what_is_no_table(nothing, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match="pyarrow Table"):
        ss.Store.create(tmp_path / "s", nothing, "id")
    assert not (tmp_path / "s").exists()


def test_only_two_rows_whose_codes_are_far_apart(tmp_path) -> None:
    """The difference of two codes does not fit into 64 bits."""
    for i, keys in enumerate(([-(2**63), 2**63 - 1], [2**63 - 1, -5, -(2**63)])):
        table = pa.table({"id": pa.array(keys, pa.int64()), "v": range(len(keys))})
        store = ss.Store.create(tmp_path / str(i), table, "id")
        check_master(store, table, "id")
        assert store.verify() == 1


@pytest.mark.parametrize("seed", range(12))
def test_two_string_keys(seed, tmp_path) -> None:
    table = pa.table({"id": [f"{seed}", f"other {seed}"], "v": [1, 2]})
    store = ss.Store.create(tmp_path / "s", table, "id")
    check_master(store, table, "id")
    assert store.verify() == 1


# --- pages ---------------------------------------------------------------------------------------


def test_equal_keys_over_many_pages(tmp_path) -> None:
    table = products([1] + [2] * 400 + [3] * 5)
    store = ss.Store.create(tmp_path / "s", table, "id", page_bytes=512)
    low, high = store.seek(np.array([2]))
    assert high[0] - low[0] >= 3
    assert not store.describe().unique
    check_master(store, table, "id")
    assert len(pa.Table.from_batches(joined(store, [2, 2, 3]))) == 805


def test_rows_wider_than_a_page_get_their_own(tmp_path) -> None:
    sizes = [5, 10_000, 20_000, 5, 0, 50_000]
    table = pa.table({"id": pa.array(range(6)), "text": ["x" * n for n in sizes]})
    store = ss.Store.create(tmp_path / "s", table, "id", page_bytes=1_000)
    info = check_master(store, table, "id")
    assert info.max_page_bytes >= 50_000
    assert info.pages == 5


def test_null_keys_are_kept_and_never_found(tmp_path) -> None:
    table = products([None] * 50 + [0] * 3)
    store = ss.Store.create(tmp_path / "s", table, "id", page_bytes=512)
    check_master(store, table, "id")
    assert len(pa.Table.from_batches(store.batches())) == 53
    for algorithm in ("sweepjoin", "meshjoin", "inlj", "memory"):
        out = ss.join_batches(
            _ids([0, None]).to_batches(), store, on="id", how="left", algorithm=algorithm
        )
        assert_same_rows(list(out), oracle(_ids([0, None]), table, "id", "left"))


def test_five_hundred_columns(tmp_path) -> None:
    columns = {f"c{i}": [f"{i}.{j}" for j in range(20)] for i in range(500)}
    table = pa.table({"id": pa.array(range(20)), **columns})
    store = ss.Store.create(tmp_path / "s", table, "id")
    check_master(store, table, "id")


@pytest.mark.parametrize("io", ["map", "pread"])
def test_nested_and_odd_columns(io, tmp_path) -> None:
    n = 100
    table = pa.table(
        {
            "id": pa.array(range(n)),
            "list": pa.array([[i, None] if i % 3 else None for i in range(n)], pa.list_(pa.int8())),
            "struct": [{"a": i, "b": [str(i)]} for i in range(n)],
            "map": pa.array([[("k", i)] for i in range(n)], pa.map_(pa.string(), pa.int64())),
            "words": pa.array([f"w{i % 5}" for i in range(n)]).dictionary_encode(),
            "view": pa.array([f"view {i}" for i in range(n)], pa.string_view()),
            "nothing": pa.nulls(n),
            "flag": pa.array([None if i % 4 == 0 else i % 3 == 0 for i in range(n)]),
            "nan": pa.array([float("nan") if i % 2 else None for i in range(n)]),
        }
    )
    ss.Store.create(tmp_path / "s", table, "id", page_bytes=600)
    check_master(ss.Store.open(tmp_path / "s", io=io), table, "id")


@pytest.mark.parametrize("t", KEY_VALUES, ids=str)
def test_every_key_type(t, tmp_path) -> None:
    table = pa.table({"id": keys_for(t, 100, random.Random(2)), "v": range(100)})
    store = ss.Store.create(tmp_path / "s", table, "id", page_bytes=512)
    check_master(store, table, "id")
    assert store.verify() == store.describe().pages


# --- refusals and atomicity ----------------------------------------------------------------------


def test_create_where_a_store_is_already(tmp_path) -> None:
    ss.Store.create(tmp_path / "s", TABLE, "id")
    before = sorted(p.name for p in (tmp_path / "s").rglob("*"))
    with pytest.raises(ss.StoreError, match=r"store already.*delete it"):
        ss.Store.create(tmp_path / "s", products([1]), "id")
    assert sorted(p.name for p in (tmp_path / "s").rglob("*")) == before
    assert ss.Store.open(tmp_path / "s").describe().rows == TABLE.num_rows


@pytest.mark.parametrize("spill_bytes", [1, 1 << 30])
def test_a_crash_in_the_middle_leaves_no_store(spill_bytes, tmp_path) -> None:
    """And the next attempt at the same place works."""

    def broken():
        yield from TABLE.to_batches(max_chunksize=30)[:3]
        raise ZeroDivisionError("the source failed")

    with pytest.raises(ZeroDivisionError):
        ss.Store.create(tmp_path / "s", broken(), "id", spill_bytes=spill_bytes)
    with pytest.raises(ss.StoreError, match=r"not a store.*Store\.create"):
        ss.Store.open(tmp_path / "s")
    assert [p for p in (tmp_path / "s").rglob("*") if p.is_file()] == []
    store = ss.Store.create(tmp_path / "s", TABLE, "id")
    check_master(store, TABLE, "id")


@pytest.mark.parametrize("spill_bytes", [1, 1 << 30])
def test_schema_drift_names_the_column(spill_bytes, tmp_path) -> None:
    batches = [pa.record_batch({"id": [1], "v": [1]}), pa.record_batch({"id": [2], "v": ["x"]})]
    with pytest.raises(ss.SpecError, match=r"'v' is string.*int64"):
        ss.Store.create(tmp_path / "s", batches, "id", spill_bytes=spill_bytes)
    batches[1] = pa.record_batch({"id": [2], "w": [1]})
    with pytest.raises(ss.SpecError, match=r"'w'.*'v'"):
        ss.Store.create(tmp_path / "s", batches, "id", spill_bytes=spill_bytes)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"key": "idd"}, r"'idd'.*'id'"),
        ({"key": []}, "names no columns"),
        ({"key": "id", "page_bytes": 10}, "page_bytes=10"),
        ({"key": ["id", "id"]}, "twice"),
    ],
)
def test_bad_questions(question, said, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match=said):
        ss.Store.create(tmp_path / "s", TABLE, **question)


def test_versions(tmp_path) -> None:
    ss.Store.create(tmp_path / "s", TABLE, "id")
    assert ss.Store.open(tmp_path / "s", 1).version == 1
    with pytest.raises(ss.StoreError, match=r"no version 2; it has 1"):
        ss.Store.open(tmp_path / "s", 2)
    with pytest.raises(ss.StoreError, match="not a store"):
        ss.Store.open(tmp_path / "nowhere")
    with pytest.raises(ss.SpecError, match='"auto", "map" or "pread"'):
        ss.Store.open(tmp_path / "s", io="magic")


def test_a_newer_format_is_refused_politely(tmp_path) -> None:
    ss.Store.create(tmp_path / "s", TABLE, "id")
    manifest = next((tmp_path / "s" / "manifests").iterdir())
    body = json.loads(manifest.read_text())
    body["format_version"] = 3
    body["new field"] = {"nobody": "knows"}
    manifest.write_text(json.dumps(body))
    with pytest.raises(ss.StoreError, match=r"format 3.*reads formats up to 2.*upgrade") as caught:
        ss.Store.open(tmp_path / "s")
    assert not isinstance(caught.value, ss.DamagedError)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts file handles in /proc")
def test_handles_are_given_back(tmp_path) -> None:
    """Also by an `open` that fails: a worker may try again for days."""
    ss.Store.create(tmp_path / "s", TABLE, "id").close()

    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = handles()
    for io in ("map", "pread") * 10:
        ss.Store.open(tmp_path / "s", io=io).close()
    assert handles() <= before + 1
    index = next((tmp_path / "s").rglob("*.index"))
    index.write_bytes(bytes(index.stat().st_size))
    for _ in range(20):
        with pytest.raises(ss.DamagedError):
            ss.Store.open(tmp_path / "s")
    assert handles() <= before + 1


# --- a stranger's view ---------------------------------------------------------------------------


def test_plain_arrow_reads_it(tmp_path) -> None:
    """Without this package: every data file is an Arrow file, in key order."""
    ss.Store.create(tmp_path / "s", TABLE, "id", page_bytes=512)
    rows = []
    for path in sorted(Path(tmp_path / "s").rglob("*.arrow")):
        with pa.ipc.open_file(path) as reader:
            assert reader.num_record_batches > 3
            rows.append(reader.read_all())
    table = pa.concat_tables(rows)
    assert_same_rows(table.select(TABLE.column_names), TABLE)
    keys = [k for k in table["id"].to_pylist() if k is not None]
    assert all(a <= b for a, b in itertools.pairwise(keys))
