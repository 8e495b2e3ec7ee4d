"""A client of Spark Connect: does everything once, and leaves what came of it in a folder.

python -m tests.helpers.connect_child FOLDER    with SPARK_REMOTE, and FOLDER/sales, FOLDER/store
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.spark import (
    Master,
    build_store,
    delete_from_store,
    enrich,
    into_delta,
    progress,
    upsert_into,
    upsert_store,
)

HOWS = ("inner", "left", "left_semi", "left_anti")
SMALL = "200kB"
COLUMNS = "sale bigint, id bigint, note string"


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    assert "connect" in type(spark).__module__
    said: dict[str, object] = {}
    batch(spark, folder)
    said["stores"] = stores(spark, folder)
    said["query"] = streams(spark, folder)
    said["errors"] = errors(spark, folder)
    (folder / "said.json").write_text(json.dumps(said))
    spark.stop()


def batch(spark: SparkSession, folder: Path) -> None:
    sales, store = spark.read.parquet(f"{folder}/sales"), folder / "store"
    for how in HOWS:
        joined = enrich(sales, store, on="id", how=how, memory_per_task=SMALL)
        pq.write_table(joined.toArrow(), folder / f"{how}.parquet")
    table = pq.read_table(folder / "master.parquet")
    twice = [
        Master(table, on="id", columns=["name"]),
        Master(store, on="id", columns=["price"], how="left"),
    ]
    pq.write_table(enrich(sales, twice).toArrow(), folder / "twice.parquet")


def stores(spark: SparkSession, folder: Path) -> list[int]:
    """Rows of stores that were built and changed from here, after each change."""
    found = []
    master = spark.read.parquet(f"{folder}/master.parquet").where("id is not null")
    for key in ("id", "name"):  # an integer, coded in SQL; text, coded in tasks
        built = build_store(master, folder / f"by-{key}", key=key)
        found.append(built.describe().rows)
    one = spark.sql("select 1000l id, 'new' name, 1.5d price")
    found.append(upsert_store(one, folder / "by-id").describe().rows)
    found.append(delete_from_store(one.select("id"), folder / "by-id").describe().rows)
    return found


def finish(df: DataFrame, checkpoint: Path, each=None, out: Path | None = None) -> StreamingQuery:
    writer = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if each is not None:
        query = writer.foreachBatch(each).start()
    else:
        query = writer.format("parquet").start(str(out))
    query.awaitTermination()
    return query


def streams(spark: SparkSession, folder: Path) -> dict[str, object]:
    source = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    sales, store = source.parquet(f"{folder}/sales"), folder / "store"
    query = finish(
        enrich(sales, store, on="id", how="left", version_column="version", pins=folder / "pins"),
        folder / "checkpoint",
        out=folder / "streamed",
    )
    delta, changes = (
        into_delta(folder / "delta", "sales"),
        upsert_into(folder / "by-id", writer="w"),
    )

    def write(df: DataFrame, number: int) -> None:
        delta(enrich(df, store, on="id", how="left", memory_per_task=SMALL), number)
        rows = df.selectExpr("sale + 5000 id", "'new' name", "1.5d price")
        changes(rows, number)

    for again in range(2):  # the same writers and numbers: as if all was replayed
        finish(sales, folder / f"checkpoint-2-{again}", write)
    counted = [(each.batch, each.rows_in, each.rows_out) for each in progress(query)]
    return {"id": str(query.id), "progress": counted}


def errors(spark: SparkSession, folder: Path) -> dict[str, str]:
    sales, store = spark.read.parquet(f"{folder}/sales"), folder / "store"
    stream = spark.readStream.schema(COLUMNS).parquet(f"{folder}/sales")

    def counted(df: DataFrame, number: int) -> None:
        df.count()

    def twice(df: DataFrame, number: int) -> None:
        for _ in range(2):
            into_delta(folder / "twice", "w")(df, number)

    calls = {
        "upsert_into": lambda: upsert_into(store),
        "into_delta": lambda: into_delta(folder / "delta"),
        "pins": lambda: enrich(sales, store, on="id", pins=folder / "pins"),
        "outside": lambda: finish(enrich(stream, store, on="id"), folder / "checkpoint-3", counted),
        "twice": lambda: finish(stream, folder / "checkpoint-4", twice),
        "name": lambda: enrich(sales, store, on="ident"),
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = f"no error: {call()}"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
