"""Sales as they come, enriched with their products; and those that have none.

In these functions Spark answers no questions about a DataFrame, so `enrich` is told its columns.
"""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from semistream.spark import enrich

spark = SparkSession.active()
PROJECT = Path(__file__).resolve().parent.parent
STORE, PINS = PROJECT / "data" / "store", PROJECT / "pins"
SALES = "sale_id bigint, product_id bigint, quantity int"


@dp.table
def sales() -> DataFrame:
    return spark.readStream.schema(SALES).parquet(str(PROJECT / "data" / "sales"))


@dp.table
def enriched_sales() -> DataFrame:
    stream = spark.readStream.table("sales")
    return enrich(
        stream, STORE, on="product_id", stream_schema=SALES, version_column="as_of", pins=PINS
    )


@dp.materialized_view
def unknown_products() -> DataFrame:
    rows = spark.read.table("sales")
    unknown = enrich(rows, STORE, on="product_id", how="anti", stream_schema=SALES, pins=PINS)
    return unknown.groupBy("product_id").count()
