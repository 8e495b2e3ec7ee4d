"""Parquet that Spark writes, read as Spark reads it; Delta tables as masters of `enrich`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema

import semistream as ss
from semistream.spark import enrich
from semistream.testing import assert_same_rows, check_master

FOLDERS = [
    ["p=1", "p=-20", "p=03"],
    ["p=1", "p=3000000000"],
    ["p=2024-02-29", "p=__HIVE_DEFAULT_PARTITION__"],
    ["p=a b", "p=x%2Fy%3Dz", "p=%25"],
    ["p=01", "p=2024-01-01"],
    ["p=2024-02-30", "p=2024-02-29"],
    ["p=1.5", "p=x"],
    ["_p=1/q=a", "_p=2/q=b"],
]


@pytest.mark.parametrize("folders", FOLDERS, ids=str)
def test_partition_columns_as_spark_reads_them(spark, folders, tmp_path) -> None:
    for i, folder in enumerate(folders):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"id": [2 * i, 2 * i + 1]}), tmp_path / folder / "part.parquet")
    frame = spark.read.parquet(str(tmp_path))
    rows = pa.table(to_arrow_schema(frame.schema).empty_table())
    rows = pa.Table.from_pylist([r.asDict() for r in frame.collect()], rows.schema)
    info = check_master(ss.open_master(tmp_path, "id"), rows, "id")
    assert info.schema.equals(rows.schema)


def test_files_of_spark(spark, tmp_path) -> None:
    """Its old timestamps are moments: they get the zone that a stream's have."""
    frame = spark.range(0, 100, 1, 3).selectExpr(
        "id", "timestamp_seconds(id * 100000000 - 9000000000) AS at", "array(id, null) AS list",
        "struct(id AS a, cast(id AS string) AS b) AS struct", "map('k', id) AS map",
        "cast(id AS decimal(20, 3)) AS price", "cast(id AS byte) AS tiny",
    )  # fmt: skip
    for name, kind in (("old", "INT96"), ("new", "TIMESTAMP_MICROS")):
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        frame.write.parquet(str(tmp_path / name))
        master = ss.open_master(tmp_path / name, "id")
        assert master.describe().schema.field("at").type == pa.timestamp("us", "UTC")
        rows = pa.table(frame.toArrow())
        check_master(master, rows.set_column(0, "id", pa.array(range(100))), "id")
    joined = enrich(frame.select("at"), str(tmp_path / "old"), on="at", columns=["id"])
    assert sorted(r.id for r in joined.collect()) == list(range(100))
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


def test_a_delta_table_as_the_master_of_a_query(spark, tmp_path) -> None:
    path = tmp_path / "t"
    table = pa.table(
        {"id": range(50), "kind": ["a", "b"] * 25, "name": [f"n{i}" for i in range(50)]}
    )
    write_deltalake(path, table, partition_by=["kind"])
    stream = spark.range(0, 80, 1, 2)
    before = enrich(stream, str(path), on="id")
    DeltaTable(path).delete("id < 10")
    after = enrich(stream, str(path), on="id")
    expected = [tuple(row.values()) for row in table.to_pylist()]
    assert_same_rows([tuple(r) for r in before.collect()], expected, "the version that was planned")
    assert_same_rows([tuple(r) for r in after.collect()], expected[10:], "the newest version")
