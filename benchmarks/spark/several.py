"""Three masters in one pass, against the largest alone and against Spark's joins one after another.

    python -m benchmarks.spark.several                     10 M products, 1 M customers, 1 k shops
    python -m benchmarks.spark.several --rows 300k --batch 20k     a quick look
    python -m benchmarks.spark.several --master 'local-cluster[2,1,2048]'

Every variant gets the same stream of sales into a sink that takes every row and keeps none, and in
every round each variant has its turn. The first two micro-batches of a turn are not counted. The
time is Spark's own `triggerExecution`. Before that, all answers to one micro-batch are compared.

    one pass      enrich(sales, [Dimension(products), Dimension(customers), Dimension(shops)])
    chained       three enrich calls
    largest       enrich with the products alone
    trick         products.join(broadcast(sales)), customers.join(broadcast(that)), and the shops,
                  which Spark broadcasts: the expert's way for each of them
    plain         sales.join(products).join(customers).join(shops), the plan left to Spark
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from benchmarks.lib import workload
from benchmarks.lib.report import count_text, keep, parse_count, print_table, say, spread
from benchmarks.spark.data import CORES, MASTER, Datasets, start_spark
from benchmarks.spark.measure import WARM_UP, batch_lines, fingerprint, run_stream, settle
from benchmarks.spark.workers import fresh_workers
from semistream.spark import Dimension, build_store, enrich

_KEYS = ("product_id", "customer_id", "shop_id")
_SHOWN = {  # what customers and shops tell: other names than products have
    "customer_id": {
        "name": "customer",
        "category": "segment",
        "price": "credit",
        "stock": "points",
    },
    "shop_id": {"name": "shop", "brand": "chain", "rating": "stars"},
}
_STREAM = "product_id bigint, customer_id bigint, shop_id bigint, quantity int, sold_at timestamp"


Join = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Tables:
    """The masters as the peers read them, and as stores."""

    spark: SparkSession
    parquet: dict[str, Path]
    stores: dict[str, Path]
    memory: int

    def static(self, key: str) -> DataFrame:
        return self.spark.read.parquet(str(self.parquet[key]))

    def masters(self) -> list[Dimension]:
        return [Dimension(str(self.stores[key]), key) for key in _KEYS]

    def one_pass(self, sales: DataFrame) -> DataFrame:
        return enrich(sales, self.masters(), memory_per_task=self.memory)

    def chained(self, sales: DataFrame) -> DataFrame:
        for each in self.masters():
            sales = enrich(sales, each, memory_per_task=self.memory)
        return sales

    def largest(self, sales: DataFrame) -> DataFrame:
        return enrich(sales, self.masters()[0], memory_per_task=self.memory)

    def trick(self, sales: DataFrame) -> DataFrame:
        known = self.static("product_id").join(broadcast(sales), "product_id")
        known = self.static("customer_id").join(broadcast(known), "customer_id")
        return known.join(broadcast(self.static("shop_id")), "shop_id")

    def plain(self, sales: DataFrame) -> DataFrame:
        for key in _KEYS:
            sales = sales.join(self.static(key), key)
        return sales


def prepare(args: argparse.Namespace, spark: SparkSession) -> tuple[Tables, Path]:
    data = Datasets(args.out / "data", args.seed)
    sizes = dict(zip(_KEYS, (args.rows, args.rows // 10, 1_000), strict=True))
    parquet, stores = {}, {}
    for key, rows in sizes.items():
        say(f"making {count_text(rows)} rows of {key}")
        products = data.master(spark, rows)
        parquet[key] = products
        if key != "product_id":
            names = _SHOWN[key]
            chosen = spark.read.parquet(str(products)).selectExpr(
                f"{workload.KEY} as {key}", *(f"{old} as {new}" for old, new in names.items())
            )
            parquet[key] = args.out / "data" / f"{key}-{rows}.parquet"
            chosen.coalesce(4).write.mode("overwrite").parquet(str(parquet[key]))
        stores[key] = args.out / "data" / f"{key}-{rows}.store"
        if not stores[key].exists():
            build_store(spark.read.parquet(str(parquet[key])), stores[key], key=key)
    memory = args.memory or round(0.1 * args.rows * workload.master_row_bytes())
    return Tables(spark, parquet, stores, memory), _stream(args, sizes)


def _stream(args: argparse.Namespace, sizes: dict[str, int]) -> Path:
    folder: Path = args.out / "data" / "sales"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(args.seed)
    part = args.batch // CORES
    for number in range((args.repeats + WARM_UP) * CORES):
        of = {
            key: workload.stream_table(rng, part, rows, args.skew, seed=i)
            for i, (key, rows) in enumerate(sizes.items())
        }
        columns = {key: table[workload.KEY] for key, table in of.items()}
        columns |= {name: of["product_id"][name] for name in ("quantity", "sold_at")}
        pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet")
    return folder


def compare(tables: Tables, sales: Path) -> None:
    """A wrong answer is not a fast one."""
    files = sorted(sales.glob("*.parquet"))[:CORES]
    batch = tables.spark.read.schema(_STREAM).parquet(*map(str, files))
    expected = fingerprint(tables.plain(batch))
    for join in (tables.one_pass, tables.chained, tables.trick):
        found = fingerprint(join(batch))
        if found != expected:
            raise RuntimeError(f"{join.__name__}: {found} where Spark's joins give {expected}")


def turn(
    tables: Tables, join: Callable[[DataFrame], DataFrame], sales: Path, out: Path
) -> list[Any]:
    spark = tables.spark
    settle(spark)
    reader = spark.readStream.schema(_STREAM).option("maxFilesPerTrigger", CORES)
    with fresh_workers(spark):
        query = run_stream(join(reader.parquet(str(sales))), out / "scratch" / "checkpoint")
    rows = sum(pq.read_metadata(f).num_rows for f in sorted(sales.glob("*.parquet"))[:CORES])
    return [line for line in batch_lines(query, rows) if line["counted"]]


def run(args: argparse.Namespace, spark: SparkSession) -> list[dict[str, Any]]:
    tables, sales = prepare(args, spark)
    say("comparing the answers to one micro-batch")
    compare(tables, sales)
    variants = (tables.one_pass, tables.largest, tables.chained, tables.trick, tables.plain)
    lines: dict[str, list[Any]] = {join.__name__: [] for join in variants}
    for number in range(args.rounds + 1):
        for join in variants:
            counted = turn(tables, join, sales, args.out)
            if number:  # the first round warms the JVM up
                lines[join.__name__] += counted
            median = spread(line["trigger_seconds"] for line in counted).median
            say(f"round {number} of {args.rounds}, {join.__name__}: {median:.3f} s")
    first = spread(line["trigger_seconds"] for line in lines["one_pass"]).median
    results = []
    for name, found in lines.items():
        seconds = spread(line["trigger_seconds"] for line in found)
        add_batch = spread(line["add_batch_seconds"] for line in found).median
        results.append(
            {"variant": name, "seconds": seconds.median, "min": seconds.low, "max": seconds.high,
             "n": seconds.n, "add_batch_seconds": add_batch, "x one_pass": seconds.median / first}
        )  # fmt: skip
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.several",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=parse_count, default=10_000_000, help="products; a tenth as many customers")
    add("--batch", type=parse_count, default=100_000, help="rows per micro-batch [%(default)s]")
    add("--skew", type=float, default=1.0, help="Zipf exponent of all keys [%(default)s]")
    add("--memory", type=int, help="bytes per task [10%% of the products]")
    add("--repeats", type=int, default=5, help="micro-batches counted in a turn [%(default)s]")
    add("--rounds", type=int, default=3, help="after one that is not counted [%(default)s]")
    add("--seed", type=int, default=7)
    add("--master", default=MASTER, help="where Spark runs [%(default)s]")
    add("--driver-memory", default="8g")
    add("--out", type=Path, default=Path("bench-out/several"), help="folder [%(default)s]")
    return parser.parse_args()


def main() -> None:
    args = parse()
    (args.out / "scratch").mkdir(parents=True, exist_ok=True)
    spark = start_spark((args.out / "scratch").resolve(), args.driver_memory, args.master)
    try:
        results = run(args, spark)
    finally:
        spark.stop()
        shutil.rmtree(args.out / "scratch", ignore_errors=True)
    say("\nSeconds per micro-batch\n")
    print_table(results)
    say(f"wrote {keep(args.out, 'several', results, args, dropped=WARM_UP)}")


if __name__ == "__main__":
    main()
