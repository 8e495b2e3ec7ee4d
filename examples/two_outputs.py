"""One pass over a stream, two outputs: sales of known products, and the others, to be looked into.

.venv/bin/python examples/two_outputs.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from shop import SALES_SCHEMA, make_products, make_sales

from semistream.spark import build_store, enrich, into_delta


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("two outputs").getOrCreate()
    products, sales = make_products(folder), make_sales(folder)
    build_store(spark.read.parquet(str(products)), folder / "store", key="product_id").close()

    enriched = enrich(
        spark.readStream.schema(SALES_SCHEMA).parquet(str(sales)),
        folder / "store",
        on="product_id",
        unmatched="split",  # keeps all rows; the column `matched` tells them apart
        memory_per_task="64MB",
        pins=folder / "pins",
    )
    known, unknown = into_delta(folder / "known"), into_delta(folder / "unknown")

    def write(df: DataFrame, batch: int) -> None:
        done = df.localCheckpoint()  # else the join runs once for each output
        known(done.where("matched").drop("matched"), batch)
        unknown(done.where("not matched").select("sale_id", "product_id", "quantity"), batch)

    query = (
        enriched.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for name in ("known", "unknown"):
        rows = DeltaTable(folder / name).to_pyarrow_table()
        print(f"{name}: {rows.num_rows} sales, with {', '.join(rows.column_names)}")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
