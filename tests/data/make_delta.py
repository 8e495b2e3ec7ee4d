"""How the tables in tests/data/delta were written: by Spark, with what deltalake cannot write.

Run with PySpark 4.2 (Delta Lake is made for one release of Spark each); tests only read the result:
python make_delta.py /some/folder, then copy the tables without their .crc files.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
root = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars.packages", DELTA)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", CATALOG)
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)


def table(name: str, columns: str, properties: str, rest: str = "") -> str:
    target = f"delta.`{root}/{name}`"
    spark.sql(f"CREATE TABLE {target} ({columns}) USING delta {rest} TBLPROPERTIES ({properties})")
    return target


def append(name: str, start: int, stop: int, *columns: str) -> None:
    rows = spark.range(start, stop, 1, 1).selectExpr(*columns)
    rows.write.format("delta").mode("append").save(f"{root}/{name}")


# Deletion vectors: rows that are marked as deleted, in files that stay as they are.
dv = table("dv", "id BIGINT, name STRING, at TIMESTAMP", "'delta.enableDeletionVectors'='true'")
for start, stop in ((0, 200), (200, 300)):
    append("dv", start, stop, "id", "concat('n', id) name", "timestamp_seconds(id * 1000) at")
spark.sql(f"DELETE FROM {dv} WHERE id % 10 = 3")
spark.sql(f"UPDATE {dv} SET name = 'changed' WHERE id = 5")

# Column mapping: names in files are not those of the table.
mapped = table(
    "mapped",
    "id BIGINT, name STRING, extra INT, p STRING",
    "'delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='false'",
    "PARTITIONED BY (p)",
)
columns = ("id", "concat('n', id) name", "cast(id as int) extra", "cast(id % 2 as string) p")
append("mapped", 0, 20, *columns)
spark.sql(f"ALTER TABLE {mapped} RENAME COLUMN name TO title")
spark.sql(f"ALTER TABLE {mapped} DROP COLUMN extra")
spark.sql(f"ALTER TABLE {mapped} ADD COLUMN extra STRING")

# Type widening: values in old files are of a narrower type.
widened = table(
    "widened",
    "id INT, n INT",
    "'delta.enableTypeWidening'='true', 'delta.enableDeletionVectors'='false'",
)
append("widened", 0, 10, "cast(id as int) id", "cast(id as int) n")
for column in ("n", "id"):
    spark.sql(f"ALTER TABLE {widened} ALTER COLUMN {column} TYPE BIGINT")
append("widened", 5_000_000_000, 5_000_000_010, "id", "id n")

# Checkpoints of the second kind.
table(
    "v2", "id BIGINT, name STRING", "'delta.checkpointPolicy'='v2','delta.checkpointInterval'='2'"
)
for i in range(5):
    append("v2", 10 * i, 10 * i + 10, "id", "concat('n', id) name")
