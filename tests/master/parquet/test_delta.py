"""Delta tables as masters: every version read exactly, or refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream as ss
from semistream.master import from_locator
from semistream.testing import check_master
from tests.helpers.file_data import check_files, codes
from tests.helpers.paths import TESTS
from tests.helpers.sample_data import products

SPARK = TESTS / "data" / "delta"  # written by make_delta.py


def rows_of(path: Path, version: int | None = None) -> pa.Table:
    """The table as deltalake reads it."""
    return pa.table(DeltaTable(path, version=version).to_pyarrow_table())


# --- versions -----------------------------------------------------------------------------------


def test_every_version_of_a_table_that_changes(tmp_path) -> None:
    path = tmp_path / "t"
    table = products(range(40))
    write_deltalake(path, table.slice(0, 20))
    write_deltalake(path, table.slice(20), mode="append")
    DeltaTable(path).delete("id % 10 = 3")
    DeltaTable(path).update(predicate="id = 7", updates={"name": "'changed'"})
    merged = products(range(35, 45))
    DeltaTable(path).merge(
        merged, "s.id = t.id", source_alias="s", target_alias="t"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(path, table.slice(0, 5), mode="overwrite")
    counts = []
    for version in range(6):
        master = check_files(path, rows_of(path, version), version=version)
        assert master.describe().version == version
        counts.append(master.describe().rows)
    assert counts == [20, 40, 36, 36, 41, 5]
    assert ss.open_master(path, "id").describe().version == 5


def test_partition_values_come_from_the_log(tmp_path) -> None:
    zoned, past = pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 1)
    table = pa.table(
        {
            "id": range(6),
            "text": ["a b/c=d", None, "100%", "ü", "a b/c=d", "1"],
            "day": [dt.date(2024, 2, 29), None, *[dt.date(1969, 1, 1)] * 4],
            "n": pa.array([1, None, -5, 3, 1, 1], pa.int16()),
            "price": pa.array([Decimal("1.50"), None, *[Decimal(7)] * 4], pa.decimal128(9, 2)),
            "at": pa.array([dt.datetime(2024, 1, 1, 1, 2, 3, 456), None, *[past] * 4], zoned),
            "yes": [True, None, False, True, True, True],
            "v": [f"v{i}" for i in range(6)],
        }
    )  # fmt: skip
    parts = ["text", "day", "n", "price", "at", "yes"]
    write_deltalake(tmp_path / "t", table, partition_by=parts)
    check_files(tmp_path / "t", table)
    check_files(tmp_path / "t", table, "n")
    check_master(ss.open_master(tmp_path / "t", ["day", "text"]), table, ["day", "text"])


def test_older_files_lack_newer_columns(tmp_path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"id": range(10), "name": [f"n{i}" for i in range(10)]}))
    newer = pa.table({"id": range(10, 20), "extra": [[i] for i in range(10)]})
    write_deltalake(path, newer, mode="append", schema_mode="merge")
    check_files(path, rows_of(path))
    assert check_files(path, rows_of(path, 0), version=0).describe().schema.names == ["id", "name"]
    by_extra = pa.table({"id": range(20, 25), "code": pa.array(range(5))})
    write_deltalake(path, by_extra, mode="append", schema_mode="merge")
    check_files(path, rows_of(path), "code")  # a key that older files do not have


def test_checkpoints_and_cleaned_logs(tmp_path) -> None:
    path = tmp_path / "t"
    config = {"delta.logRetentionDuration": "interval 0 days"}
    for i in range(6):
        some = products(range(10 * i, 10 * i + 10))
        write_deltalake(path, some, mode="append", configuration=config)
    table = DeltaTable(path)
    table.create_checkpoint()
    os.utime(path / "_delta_log" / f"{0:020d}.json", (0, 0))
    for i in range(5):
        os.remove(path / "_delta_log" / f"{i:020d}.json")
    assert check_files(path, rows_of(path)).describe().rows == 60
    with pytest.raises(ss.MasterError, match=r"version 2 of the Delta table.*name another version"):
        ss.open_master(path, "id", version=2)


def test_following(tmp_path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, products(range(20)))
    write_deltalake(path, products(range(20, 30)), mode="append")
    first = ss.open_master(path, "id")
    fixed = ss.open_master(path, "id", version=0)
    assert first.newest() is first
    DeltaTable(path).delete("id = 25")
    second = first.newest()
    assert second.describe().version == 2
    check_master(second, rows_of(path), "id")
    assert sorted(second.changed_since(first)) == codes(range(20, 30)), "one file was rewritten"
    assert len(second.changed_since(second)) == 0
    assert fixed.newest() is fixed
    followed = from_locator(first.locator()).newest()
    assert followed.describe().version == 2
    new = pa.table({"id": [1], "other": ["x"]})
    write_deltalake(path, new, mode="append", schema_mode="merge")
    with pytest.raises(ss.MasterError, match=r"columns of .* have changed"):
        second.newest()


def test_vacuumed_files_name_the_version(tmp_path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, products(range(20)))
    old = ss.open_master(path, "id")
    locator = old.locator()
    write_deltalake(path, products(range(30)), mode="overwrite")
    new = old.newest()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    check_master(new, rows_of(path), "id")
    said = r"part-.*parquet does not exist.*version 0 of the Delta table.*newer version"
    with pytest.raises(ss.MasterError, match=said):
        list(old.batches())
    with pytest.raises(ss.MasterError, match=said):
        from_locator(locator)
    assert new.changed_since(old) is None


def test_a_table_made_anew_is_another_one(tmp_path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, products(range(20)))
    master = ss.open_master(path, "id")
    shutil.rmtree(path)
    write_deltalake(path, products(range(7)))
    with pytest.raises(ss.MasterError, match="made anew"):
        from_locator(master.locator())
    assert master.newest().describe().rows == 7
    with pytest.raises(ss.MasterError, match="does not exist"):
        list(master.batches())


# --- what Spark writes --------------------------------------------------------------------------


def test_deletion_vectors_of_spark(tmp_path) -> None:
    tmp_path = tmp_path / "ein Pfad wie üblich"
    shutil.copytree(SPARK / "dv", tmp_path / "dv")
    ids = [i for i in range(300) if i % 10 != 3]
    times = [dt.datetime.fromtimestamp(1000 * i, dt.UTC) for i in ids]
    names = ["changed" if i == 5 else f"n{i}" for i in ids]
    at = pa.array(times, pa.timestamp("us", "UTC"))
    table = pa.table({"id": ids, "name": names, "at": at})
    master = check_files(tmp_path / "dv", table)
    assert master.describe().resident_bytes > 0
    before = ss.open_master(tmp_path / "dv", "id", version=2)
    assert before.describe().rows == 300
    everything = codes(range(300))
    assert sorted(master.changed_since(before)) == everything, "both files have deleted rows now"
    check_files(tmp_path / "dv", table, "at")


def test_a_deletion_vector_that_is_lost_is_an_error(tmp_path) -> None:
    shutil.copytree(SPARK / "dv", tmp_path / "dv")
    for vector in (tmp_path / "dv").glob("*.bin"):
        vector.unlink()
    with pytest.raises(ss.MasterError, match="deleted rows of the Delta table"):
        ss.open_master(tmp_path / "dv", "id")


def test_renamed_and_dropped_columns_of_spark() -> None:
    """A column that was dropped and added again must not show its old values."""
    parts = [[i for i in range(20) if i % 2 == part] for part in (0, 1)]
    ids = parts[0] + parts[1]
    table = pa.table(
        {
            "id": ids,
            "title": [f"n{i}" for i in ids],
            "p": [str(i % 2) for i in ids],
            "extra": pa.nulls(20, pa.string()),
        }
    )
    check_files(SPARK / "mapped", table)
    check_files(SPARK / "mapped", table, "title")


def test_checkpoints_of_the_second_kind() -> None:
    table = pa.table({"id": range(50), "name": [f"n{i}" for i in range(50)]})
    assert check_files(SPARK / "v2", table).describe().indexed


def test_features_of_readers_that_are_not_known_are_refused(tmp_path) -> None:
    with pytest.raises(ss.MasterError, match=r"widened asks.*'typeWidening'.*build_store"):
        ss.open_master(SPARK / "widened", "id")
    shutil.copytree(SPARK / "mapped", tmp_path / "mapped")
    for commit in (tmp_path / "mapped" / "_delta_log").glob("*.json"):
        text = commit.read_text()
        commit.write_text(text.replace('.mode":"name"', '.mode":"id"'))
    with pytest.raises(ss.MasterError, match="column mapping mode 'id'"):
        ss.open_master(tmp_path / "mapped", "id")


# --- damage and misuse --------------------------------------------------------------------------


def _edit(path: Path, change) -> None:
    """Rewrite the actions of the first commit."""
    commit = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        change(action)
    commit.write_text("\n".join(json.dumps(action) for action in actions))


def test_files_that_are_not_those_of_the_log(tmp_path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, products(range(20)))
    file = next(path.glob("*.parquet"))
    good = file.read_bytes()
    pq.write_table(products(range(19)), file)
    with pytest.raises(ss.MasterError, match=rf"{file.name} has \d+ bytes, but \d+ in the log"):
        ss.open_master(path, "id")
    file.write_bytes(good)
    other = tmp_path / file.name
    other.write_bytes(good)
    up = f"../{file.name}"
    outside = [f"file://{file}", str(other), quote(str(other), safe=""), up, quote(up, safe="")]
    for name in [*outside, f"{path.name}/%2E%2E/%2e%2e/{file.name}"]:
        _edit(path, lambda a, to=name: a["add"].update(path=to) if "add" in a else None)
        with pytest.raises(ss.MasterError, match="outside of its folder"):
            ss.open_master(path, "id")


def test_a_part_of_a_table_is_not_a_master(tmp_path) -> None:
    table = pa.table({"id": range(4), "p": ["a", "b"] * 2})
    write_deltalake(tmp_path / "t", table, partition_by=["p"])
    with pytest.raises(ss.MasterError, match="part of the Delta table"):
        ss.open_master(tmp_path / "t" / "p=a", "id")
    with pytest.raises(ss.MasterError, match=r"t is a Delta table"):
        ss.open_master(tmp_path, "id")


def test_versions_that_make_no_sense(tmp_path) -> None:
    write_deltalake(tmp_path / "t", products(range(4)))
    for version in (-1, "1", 1.5):
        with pytest.raises(ss.SpecError, match="0, 1, 2"):
            ss.open_master(tmp_path / "t", "id", version=version)
    with pytest.raises(ss.SpecError, match="does not know its key"):
        ss.open_master(tmp_path / "t")
    pq.write_table(products(range(3)), tmp_path / "m.parquet")
    with pytest.raises(ss.SpecError, match="neither a store nor a Delta table"):
        ss.open_master(tmp_path / "m.parquet", "id", version=1)


def test_a_log_that_is_damaged(tmp_path) -> None:
    write_deltalake(tmp_path / "t", products(range(4)))
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_text("{not json")
    with pytest.raises(ss.MasterError, match="newest version of the Delta table") as caught:
        ss.open_master(tmp_path / "t", "id")
    assert "\n" not in str(caught.value)


def test_an_empty_table(tmp_path) -> None:
    table = products([])
    DeltaTable.create(tmp_path / "t", table.schema)
    check_master(ss.open_master(tmp_path / "t", "id"), table, "id")
