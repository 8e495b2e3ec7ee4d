"""A stream of files, joined with a store, into Parquet files.

.venv/bin/python examples/files_to_parquet.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from shop import SALES_SCHEMA, make_products, make_sales

from semistream.spark import build_store, enrich


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("files to Parquet").getOrCreate()
    products, sales = make_products(folder), make_sales(folder)
    build_store(spark.read.parquet(str(products)), folder / "store", key="product_id").close()

    stream = spark.readStream.schema(SALES_SCHEMA).option("maxFilesPerTrigger", 1)
    enriched = enrich(
        stream.parquet(str(sales)),
        folder / "store",
        on="product_id",
        how="left",
        memory_per_task="64MB",
        pins=folder / "pins",  # beside the checkpoint, and kept as long
    )
    query = (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "warehouse"))
    )
    query.awaitTermination()

    rows = spark.read.parquet(str(folder / "warehouse"))
    print(f"{rows.count()} sales in {len(query.recentProgress)} micro-batches, the first three:")
    for row in rows.orderBy("sale_id").limit(3).collect():
        print(f"  {row.quantity} of {row.name} at {row.price}")
    print(f"{rows.where('name is null').count()} are of products that nobody knows")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
