"""Parquet as others write it: layouts, folders, partition columns, and files that change."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.master import from_locator
from semistream.master.parquet import master as parquet
from semistream.testing import check_master
from tests.helpers.file_data import check_files, codes, put
from tests.helpers.sample_data import products

# --- what others write ----------------------------------------------------------------------------


def test_folders_in_folders_and_files_that_are_not_data(tmp_path) -> None:
    table = products(range(90))
    put(table.slice(0, 30), tmp_path / "a" / "b" / "one.snappy.parquet", compression="snappy")
    put(table.slice(30, 30), tmp_path / "a" / "two.pq", compression="zstd", row_group_size=7)
    put(table.slice(60, 30), tmp_path / "000000_0", use_dictionary=True, data_page_size=64)
    put(table.slice(0, 0), tmp_path / "nothing.parquet")
    for name in ("_SUCCESS", "_metadata", ".part.parquet.crc", "readme.txt", "x._COPYING_"):
        (tmp_path / name).write_text("no rows")
    put(table, tmp_path / "_temporary" / "0" / "part.parquet")
    assert check_files(tmp_path, table).describe().indexed


def test_files_that_differ_in_layout_only(tmp_path) -> None:
    """Nullability, widths of offsets, dictionaries, order of columns, a column without values."""
    rows = range(20)
    structs = [{"x": i, "y": str(i)} for i in rows]
    parts = [
        pa.table(
            {
                "id": pa.array(rows, pa.int64()),
                "name": pa.array([f"n{i}" for i in rows], kind),
                "tags": pa.array([[str(i)] for i in rows], pa.list_(kind)),
                "both": pa.array(structs, pa.struct([pa.field("x", pa.int32()), ("y", kind)])),
                "odd": odd,
            }
        )
        for kind, odd in (
            (pa.string(), pa.nulls(20)),
            (pa.large_string(), pa.array([f"o{i}" for i in rows])),
        )
    ]
    strict = parts[0].schema.set(0, pa.field("id", pa.int64(), nullable=False))
    put(parts[0].cast(strict).replace_schema_metadata({"by": "someone"}), tmp_path / "a.parquet")
    put(parts[1].select(["odd", "name", "both", "id", "tags"]), tmp_path / "b.parquet")
    words = parts[1]["name"].cast(pa.string()).dictionary_encode()
    put(parts[1].set_column(1, "name", words), tmp_path / "c.parquet")
    schema = parts[0].schema.set(4, pa.field("odd", pa.string()))
    whole = pa.concat_tables([part.cast(schema) for part in (*parts, parts[1])])
    info = check_files(tmp_path, whole).describe()
    assert info.schema.field("name").type == pa.string()
    assert info.schema.field("odd").type == pa.string()
    assert info.schema.field("id").nullable


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}), r"'id' is int32 in .*b\.parq"),
        (pa.table({"id": [1], "v": [1.5]}), r"'v' is double in .*b\.parquet, but string"),
        (pa.table({"id": [1], "w": ["a"]}), r"b\.parquet.*\['v', 'w'\]"),
        (pa.table({"id": [1], "v": ["a"], "w": ["a"]}), r"b\.parquet.*\['w'\]"),
    ],
)
def test_real_differences_name_file_and_column(other, said, tmp_path) -> None:
    put(pa.table({"id": [1], "v": ["a"]}), tmp_path / "a.parquet")
    put(other, tmp_path / "b.parquet")
    with pytest.raises(ss.SpecError, match=said):
        ss.open_master(tmp_path, "id")


def test_written_by_pandas_and_duckdb(tmp_path) -> None:
    frame = pd.DataFrame(
        {"id": range(50), "kind": pd.Categorical(["a", "b"] * 25), "none": [None] * 50},
        index=pd.Index(range(100, 150), name="row"),
    )
    frame.to_parquet(tmp_path / "pandas.parquet")
    check_files(tmp_path / "pandas.parquet", pq.read_table(tmp_path / "pandas.parquet"))
    duckdb.sql(
        f"""COPY (SELECT i AS id, i % 3 AS "group", DATE '2024-01-01' + (i % 2)::INT AS day,
              [i, NULL] AS list, {{'a': i}} AS struct, i::DECIMAL(9, 2) AS price,
              uuid() AS code, MAP {{'a': i}} AS map, 'b'::ENUM('a', 'b') AS kind
            FROM range(40) t(i))
            TO '{tmp_path}/duck' (FORMAT parquet, PARTITION_BY ("group", day))"""
    )
    found = duckdb.sql(f"FROM read_parquet('{tmp_path}/duck/*/*/*.parquet')").to_arrow_table()
    names = [n for n in found.column_names if n not in ("group", "day")]
    table = found.select([*names, "group", "day"])  # columns of folders come last
    code = pa.array([uuid.UUID(text).bytes for text in found["code"].to_pylist()], pa.binary(16))
    table = table.set_column(names.index("code"), "code", code)
    info = check_files(tmp_path / "duck", table).describe()
    check_files(tmp_path / "duck", table, "code")
    assert info.schema.field("group").type == pa.int32()
    assert info.schema.field("day").type == pa.date32()


def test_old_timestamps_are_exact_in_every_year(tmp_path) -> None:
    """As nanoseconds, years before 1678 and after 2261 would wrap around."""
    times = [dt.datetime(1500, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 456789)]
    times.append(dt.datetime(9000, 1, 1))
    table = pa.table({"id": range(3), "at": pa.array(times, pa.timestamp("us"))})
    put(table, tmp_path / "m.parquet", use_deprecated_int96_timestamps=True)
    assert check_files(tmp_path / "m.parquet", table).describe().schema.field(
        "at"
    ).type == pa.timestamp("us")


def test_hundreds_of_columns_and_huge_strings(tmp_path) -> None:
    wide = pa.table({"id": range(30), **{f"c{i}": pa.array([i] * 30) for i in range(500)}})
    put(wide, tmp_path / "wide.parquet", row_group_size=10)
    check_master(ss.open_master(tmp_path / "wide.parquet", "id"), wide, "id")
    texts = ["x" * 10_000_000 if i in (3, 17) else f"text {i}" for i in range(20)]
    table = pa.table({"id": range(20), "text": texts})
    put(table, tmp_path / "huge.parquet", row_group_size=5, compression="zstd")
    master = ss.open_master(tmp_path / "huge.parquet", "id")
    stream = pa.record_batch({"id": pa.array([17, 3, 4, 3, 99])})
    for algorithm in ("sweepjoin", "meshjoin"):
        joined = ss.join_batches([stream], master, "id", algorithm=algorithm, memory="400MB")
        got = pa.Table.from_batches(joined)
        expected = {(i, len(texts[i])) for i in (17, 3, 4)}
        assert {(r["id"], len(r["text"])) for r in got.to_pylist()} == expected
        assert got.num_rows == 4


def test_files_out_of_order_have_an_index_if_their_keys_do_not_overlap(tmp_path) -> None:
    table = products(range(90))
    for name, at in (("z", 0), ("a", 30), ("m", 60)):
        put(table.slice(at, 30), tmp_path / f"{name}.parquet")
    assert check_files(tmp_path, table).describe().indexed


def test_names_that_need_care(tmp_path) -> None:
    """A column with a dot in its name beside a struct; a name twice; a path as an address."""
    table = pa.table({"id": [1, 2], "a": [{"b": 10}, {"b": 20}], "a.b": [8, 7]})
    put(table, tmp_path / "with space.parquet")
    check_files(tmp_path / "with space.parquet", table)
    assert not check_files(tmp_path / "with space.parquet", table, "a.b").describe().indexed
    check_master(ss.open_master((tmp_path / "with space.parquet").as_uri(), "id"), table, "id")
    put(pa.table([[1], [2]], ["id", "id"]), tmp_path / "twice.parquet")
    with pytest.raises(ss.SpecError, match="a name twice"):
        ss.open_master(tmp_path / "twice.parquet", "id")


# --- files that change ----------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(parquet, "PAGE_BYTES", 400)


def test_newest_follows_files(tmp_path) -> None:
    table = products(range(30))
    put(table.slice(0, 10), tmp_path / "a.parquet")
    put(table.slice(10, 10), tmp_path / "b.parquet")
    first = ss.open_master(tmp_path, "id")
    assert first.newest() is first
    put(table.slice(20, 10), tmp_path / "c.parquet")
    second = first.newest()
    check_master(second, table, "id")
    assert sorted(second.changed_since(first)) == codes(range(20, 30))
    put(table.slice(20, 7), tmp_path / "c.parquet")
    third = second.newest()
    assert third.describe().rows == 27
    assert third.changed_since(second) is None, "what was in c.parquet cannot be known any more"
    os.remove(tmp_path / "a.parquet")
    assert third.newest().describe().rows == 17
    assert third.changed_since(ss.open_master(table, "id")) is None
    put(table.slice(0, 3).drop(["name"]), tmp_path / "b.parquet")
    os.remove(tmp_path / "c.parquet")
    with pytest.raises(ss.MasterError, match=r"columns of .* have changed"):
        third.newest()


def test_another_process_refuses_other_files(tmp_path) -> None:
    put(products(range(30)), tmp_path / "a.parquet")
    locator = ss.open_master(tmp_path, "id").locator()
    put(products(range(3)), tmp_path / "b.parquet")
    with pytest.raises(ss.MasterError, match=r"b\.parquet was added since"):
        from_locator(locator)
    os.rename(tmp_path / "b.parquet", tmp_path / "a.parquet")
    with pytest.raises(ss.MasterError, match=r"a\.parquet is not the file with which"):
        from_locator(locator)


def in_place(path: Path) -> None:
    """As pandas does it: the file is cut to nothing first."""
    pq.write_table(products(range(100, 110)), path)


def by_rename(path: Path) -> None:
    put(products(range(100, 2_100)), path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


@pytest.mark.parametrize("change", [in_place, by_rename, os.remove])
@pytest.mark.parametrize("algorithm", ["meshjoin", "sweepjoin"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.usefixtures("small_pages")
def test_a_file_replaced_under_a_join_is_an_error(change, algorithm, begun, tmp_path) -> None:
    path = tmp_path / "m.parquet"
    put(products(range(2_000)), path, row_group_size=500)
    master = ss.open_master(path, "id")
    join = ss.SemiStreamJoin(master, "id", "left", algorithm=algorithm, memory="4MB")
    list(join.push(pa.record_batch({"id": pa.array(range(2_000))})))
    if begun:
        list(join.step())
    waiting = join.stats.waiting
    change(path)
    if waiting:
        with pytest.raises(ss.MasterError, match=r"m\.parquet (was replaced|does not exist)"):
            list(join.drain())
        assert join.stats.waiting == waiting


# --- keys that Python has no values for -----------------------------------------------------------

_FAR = {
    pa.date32(): [-(2**31), -5, 0, 4_000_000, 2**31 - 1],
    pa.timestamp("ms"): [-(2**62), -5, 0, 2**61],
    pa.timestamp("us"): [-(2**62), 0, 2**62],
    pa.timestamp("us", "UTC"): [-(2**62), 0, 2**62],
    pa.timestamp("ns"): [-(2**63) + 1, -1, 0, 1, 1_700_000_000_000_000_001, 2**63 - 1],
    pa.uint32(): [0, 2**31, 2**32 - 1],
    pa.uint64(): [0, 2**63 - 1, 2**63, 2**64 - 1],
    pa.int8(): [-128, 0, 127],
}


@pytest.mark.parametrize("t", _FAR, ids=str)
def test_keys_far_away(t, tmp_path) -> None:
    """Dates after the year 9999, nanoseconds: row groups are searched by what is stored."""
    values = _FAR[t]
    storage = {32: pa.int32(), 64: pa.int64()}.get(t.bit_width)
    stored = pa.array(values, t) if pa.types.is_integer(t) else pa.array(values, storage).view(t)
    table = pa.table({"id": stored, "n": range(len(values))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    master = ss.open_master(tmp_path / "t.parquet", key="id")
    assert master.describe().indexed
    assert master.first.tolist() == sorted(master.first.tolist())
    for algorithm in ("sweepjoin", "meshjoin"):
        out = ss.join_batches(table.select(["id"]).to_batches(), master, "id", algorithm=algorithm)
        assert sorted(n for batch in out for n in batch.column("n").to_pylist()) == [
            *range(len(values))
        ]
