"""Columns in the names of folders, and folders that are no plain folders of files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import check_master
from tests.helpers.file_data import NULL, check_files, put
from tests.helpers.sample_data import products


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
    assert check_files(tmp_path, table).describe().schema.field(name).type == t
    check_master(ss.open_master(tmp_path, name), table, name)
    check_master(ss.open_master(tmp_path, [name, "id"]), table, [name, "id"])


def test_a_partition_column_can_be_the_index(tmp_path) -> None:
    table = partitioned(tmp_path, ["p=3", "p=1", "p=2"])
    table = table.append_column("p", pa.array(np.repeat([3, 1, 2], 10), pa.int32()))
    assert check_files(tmp_path, table, "p").describe().indexed
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
