"""Kill a streaming query again and again while its master changes, and look at what it wrote.

    python -m benchmarks.chaos --kills 20

One process upserts, deletes, compacts and expires, about once a second. Another is a Spark driver
with a query that enriches a stream of files; it is killed with SIGKILL at random moments and
started again from its checkpoint. Every master row names the version that wrote it, and every
output row the version it was joined with, so each row certifies itself:

    lost, duplicated   sales that are not in the output just once
    wrong              rows whose payload is not what their version says
    mixed              micro-batches with rows of more than one version
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.lib.campaign import (
    QUICK_JVM,
    SALES_SCHEMA,
    Campaign,
    Truth,
    differing,
    enriched,
    kill,
    write,
)

AHEAD = 4  # files that wait to be read; each is a micro-batch


# --- the query ------------------------------------------------------------------------------------


def query(folder: Path, finish: bool) -> None:
    from pyspark.sql import SparkSession

    config = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=config).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.schema(SALES_SCHEMA).option("maxFilesPerTrigger", 1)
    # Three tasks in two slots: versions come and go while a micro-batch runs.
    slow = stream.parquet(str(folder / "sales")).repartition(3).mapInArrow(_dawdle, SALES_SCHEMA)
    writer = enriched(slow, folder)
    if finish:
        writer = writer.trigger(availableNow=True)
    writer.start(str(folder / "out")).awaitTermination()
    pq.write_table(spark.read.parquet(str(folder / "out")).toArrow(), folder / "result.parquet")


def _dawdle(batches):  # type: ignore[no-untyped-def]  # pickled into the workers as it is
    import random
    import time

    for batch in batches:
        time.sleep(random.uniform(0, 0.4))
        yield batch


# --- the campaign ---------------------------------------------------------------------------------


class Chaos(Campaign):
    module, sales = "benchmarks.chaos", 400

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.within = 0  # kills that came between the begin and the commit of a micro-batch

    def wanted(self) -> int:
        return max(self.numbers("commits"), default=-1) + 1 + AHEAD

    def kill_once(self, number: int) -> None:
        """Start the query, and kill it: mostly within three seconds from when it begins a new
        micro-batch, sometimes at any moment, while it starts or replays the last one."""
        driver, before = self.start("--role", "query"), self.numbers("offsets")
        try:
            began = time.monotonic()
            if self.rng.random() < 0.3:
                self.live(driver, self.rng.uniform(0, 25))
            else:
                while self.numbers("offsets") == before:
                    assert time.monotonic() < began + 180, "no micro-batch began within 180 s"
                    self.live(driver, 0.2)
                self.live(driver, self.rng.uniform(0, 3))
        finally:
            kill(driver)
        batch = self.under_way()
        self.within += batch is not None
        where = "between micro-batches" if batch is None else f"within micro-batch {batch}"
        print(
            f"  kill {number}: {where}, {max(self.numbers('commits'), default=-1) + 1} committed",
            flush=True,
        )

    def run(self, kills: int) -> bool:
        self.prepare()
        writer = self.start("--role", "write")
        try:
            for number in range(1, kills + 1):
                self.kill_once(number)
            last = self.start("--role", "finish")
            assert last.wait(600) == 0, f"the last run failed; see {self.folder / 'logs'}"
            (self.folder / "stop").touch()
            assert writer.wait(60) == 0, f"the writer failed; see {self.folder / 'logs'}"
        finally:
            if writer.poll() is None:
                kill(writer)
        return self.verdict(kills)

    def verdict(self, kills: int) -> bool:
        result = pq.read_table(self.folder / "result.parquet")
        sale, key = np.asarray(result["sale"]), np.asarray(result["id"])
        file, version = np.asarray(result["file"]), np.asarray(result["version"])
        seen = np.bincount(sale, minlength=self.files * self.sales)
        truth = Truth(self.folder, self.seed)
        wrong = int(differing(result["payload"], truth.payloads(key, version)).sum())
        pairs = np.unique(np.stack([file, version]), axis=1)
        mixed = int((np.bincount(pairs[0]) > 1).sum())
        lost, doubled = int((seen == 0).sum()), int(np.maximum(seen - 1, 0).sum())
        print(
            f"seed {self.seed}: {kills} kills, {self.within} of them within a micro-batch; "
            f"{self.files} micro-batches, {len(sale):,} rows; {truth.versions} versions published, "
            f"{len(np.unique(version))} used, {truth.expired} expired\n"
            f"{lost} lost, {doubled} duplicated, {wrong} wrong, {mixed} mixed"
        )
        return lost == doubled == wrong == mixed == 0 and len(sale) == self.files * self.sales


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-out/chaos"), help="made anew")
    parser.add_argument("--role", choices=["query", "finish", "write"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.out.absolute()
    if arguments.role == "write":
        write(folder, arguments.seed)
    elif arguments.role is not None:
        query(folder, finish=arguments.role == "finish")
    else:
        began = time.monotonic()
        good = Chaos(folder, arguments.seed).run(arguments.kills)
        print(f"{'passed' if good else 'FAILED'} in {time.monotonic() - began:.0f} s")
        return 0 if good else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
