"""The same over Spark Connect: the client has no JVM, only an address.

    .venv/bin/python examples/connect.py    # starts a server, on port 15002
    SPARK_REMOTE=sc://localhost:15002 .venv/bin/python examples/connect.py

The server's Python workers need semistream, too, and must see the folder under the same path.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from shop import SALES_SCHEMA, make_products, make_sales

from semistream import Store
from semistream.spark import build_store, enrich, upsert_into, upsert_store


def main(folder: Path) -> None:
    remote = os.environ.get("SPARK_REMOTE", "local[2]")
    spark = SparkSession.builder.remote(remote).getOrCreate()
    products, sales = make_products(folder), make_sales(folder)
    build_store(spark.read.parquet(str(products)), folder / "store", key="product_id").close()
    news = spark.createDataFrame(
        [(7, "better product 7", 9.5)], "product_id bigint, name string, price double"
    )
    print("the store has version", upsert_store(news, folder / "store").version)

    def run(df: DataFrame, name: str) -> None:
        writer = df.writeStream.option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        writer = writer.trigger(availableNow=True)
        if name == "changes":  # Connect does not tell a function its query, so it gets a name
            query = writer.foreachBatch(upsert_into(folder / "store", writer=name)).start()
        else:
            query = writer.format("parquet").start(str(folder / name))
        query.awaitTermination()

    stream = spark.readStream.schema(SALES_SCHEMA).parquet(str(sales))
    run(enrich(stream, folder / "store", on="product_id", pins=folder / "pins"), "warehouse")
    rows = spark.read.parquet(str(folder / "warehouse"))
    print(rows.count(), "sales of known products")
    print("product 7 is now called:", rows.where("product_id = 7").first().name)

    news.write.parquet(str(folder / "news"))
    run(spark.readStream.schema(news.schema).parquet(str(folder / "news")), "changes")
    print("and a stream of changes made version", Store.open(folder / "store").version)
    spark.stop()


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
