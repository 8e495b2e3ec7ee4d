"""Parquet as others write it: layouts, folders, partition columns, and files that change."""

from __future__ import annotations

import datetime as dt
import os
import random
import uuid
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_data import products

import semistream as ss
from semistream.keys import codes_of
from semistream.master import from_locator, parquet
from semistream.testing import check_join, check_master

NULL = "__HIVE_DEFAULT_PARTITION__"


def put(table: pa.Table, path: Path, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def check(path: Path, table: pa.Table, key: str = "id", **join) -> ss.MasterInfo:
    """The contract of masters, and a join of each kind."""
    master = ss.open_master(path, key)
    info = check_master(master, table, key)
    keys = [*table[key].to_pylist(), None]
    rng = random.Random(1)
    some = pa.array([rng.choice(keys) for _ in range(60)], info.schema.field(key).type)
    stream = pa.table({"k": some, "n": range(60)})
    for algorithm in ("auto", "meshjoin", "sweepjoin" if info.indexed else "cmeshjoin"):
        check_join(
            master, stream, on={"k": key}, how="left", algorithm=algorithm, table=table, **join
        )
    again = from_locator(master.locator())
    assert again.describe() == info
    return info


# --- what others write --------------------------------------------------------------------------


def test_folders_in_folders_and_files_that_are_not_data(tmp_path) -> None:
    table = products(range(90))
    put(table.slice(0, 30), tmp_path / "a" / "b" / "one.snappy.parquet", compression="snappy")
    put(table.slice(30, 30), tmp_path / "a" / "two.pq", compression="zstd", row_group_size=7)
    put(table.slice(60, 30), tmp_path / "000000_0", use_dictionary=True, data_page_size=64)
    put(table.slice(0, 0), tmp_path / "nothing.parquet")
    for name in ("_SUCCESS", "_metadata", ".part.parquet.crc", "readme.txt", "x._COPYING_"):
        (tmp_path / name).write_text("no rows")
    put(table, tmp_path / "_temporary" / "0" / "part.parquet")
    assert check(tmp_path, table).indexed


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
    info = check(tmp_path, whole)
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
    check(tmp_path / "pandas.parquet", pq.read_table(tmp_path / "pandas.parquet"))
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
    info = check(tmp_path / "duck", table)
    check(tmp_path / "duck", table, "code")
    assert info.schema.field("group").type == pa.int32()
    assert info.schema.field("day").type == pa.date32()


def test_old_timestamps_are_exact_in_every_year(tmp_path) -> None:
    """As nanoseconds, years before 1678 and after 2261 would wrap around."""
    times = [dt.datetime(1500, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 456789)]
    times.append(dt.datetime(9000, 1, 1))
    table = pa.table({"id": range(3), "at": pa.array(times, pa.timestamp("us"))})
    put(table, tmp_path / "m.parquet", use_deprecated_int96_timestamps=True)
    assert check(tmp_path / "m.parquet", table).schema.field("at").type == pa.timestamp("us")


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
    assert check(tmp_path, table).indexed


# --- partition columns --------------------------------------------------------------------------


def partitioned(root: Path, folders: list[str]) -> pa.Table:
    table = products(range(10 * len(folders)))
    for i, folder in enumerate(folders):
        put(table.slice(10 * i, 10), root / folder / "part.parquet")
    return table


@pytest.mark.parametrize(
    ("folders", "values", "t"),
    [
        (["p=1", "p=-20", "p=03"], [1, -20, 3], pa.int32()),
        (["p=1", "p=3000000000"], [1, 3_000_000_000], pa.int64()),
        (["p=2024-02-29", f"p={NULL}"], [dt.date(2024, 2, 29), None], pa.date32()),
        (["p=a b", "p=x%2Fy%3Dz", "p=%25"], ["a b", "x/y=z", "%"], pa.string()),
        (["p=1", "p=one"], ["1", "one"], pa.string()),
        (["p=01", "p=2024-01-01"], ["01", "2024-01-01"], pa.string()),
        (["p=2024-02-30", "p=2024-02-29"], ["2024-02-30", "2024-02-29"], pa.string()),
        (["p=1.5", "p=x"], ["1.5", "x"], pa.string()),
        ([f"p={NULL}"], [None], pa.string()),
        (["_p=1/x", "_p=2/x"], None, pa.int32()),
    ],
)  # fmt: skip
def test_partition_columns(folders, values, t, tmp_path) -> None:
    table = partitioned(tmp_path, folders)
    name = "p" if values else "_p"
    column = pa.array(np.repeat(np.array(values or [1, 2], object), 10), t)
    table = table.append_column(name, column)
    assert check(tmp_path, table).schema.field(name).type == t
    check_master(ss.open_master(tmp_path, name), table, name)
    check_master(ss.open_master(tmp_path, [name, "id"]), table, [name, "id"])


def test_a_partition_column_can_be_the_index(tmp_path) -> None:
    table = partitioned(tmp_path, ["p=3", "p=1", "p=2"])
    table = table.append_column("p", pa.array(np.repeat([3, 1, 2], 10), pa.int32()))
    assert check(tmp_path, table, "p").indexed
    master = ss.open_master(tmp_path, "p")
    assert master.scan(0, 1, []).rows.sum() == 10, "nothing of the file itself is needed"


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["p=1.5", "p=2"], r"'p' has the value '1\.5'"),
        (["p=99999999999999999999"], "whole numbers"),
        (["p=NaN"], "'NaN'"),
        (["p=2024-01-01 10%3A00%3A00", "p=2024-01-01"], "2024-01-01 10:00:00"),
        (["p=", "p=2"], "without a value"),
        (["p=1", "q=1"], r"\['q'\].*\['p'\]"),
        (["p=1/q=2", "p=1"], "same column=value levels"),
        (["p=1/p=2"], "twice"),
    ],
)
def test_partition_columns_that_are_unclear(folders, said, tmp_path) -> None:
    partitioned(tmp_path, folders)
    with pytest.raises(ss.MasterError, match=said):
        ss.open_master(tmp_path, "id")


def test_a_column_in_files_and_folders_is_refused(tmp_path) -> None:
    partitioned(tmp_path, ["price=1"])
    with pytest.raises(ss.SpecError, match=r"'price'.*folders"):
        ss.open_master(tmp_path, "id")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("t/_delta_log/0.json", "t is a Delta table"),
        (".hoodie/x", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_folders_of_table_formats_are_not_read_as_plain_files(mark, said, tmp_path) -> None:
    put(products(range(3)), tmp_path / "t" / "m.parquet")
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / mark).touch()
    with pytest.raises(ss.MasterError, match=said):
        ss.open_master(tmp_path, "id")


# --- files that change --------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(parquet, "PAGE_BYTES", 400)


def codes(values) -> list[int]:
    return sorted(codes_of([pa.array(values, pa.int64())]).tolist())


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
