"""The driver of an application on a cluster, in a process of its own.

    python -m tests.helpers.cluster_child MASTER FOLDER PLAN

Answers go to FOLDER/answers as Parquet files, words to FOLDER/words.json; the test compares. PLAN
names the functions below that are to run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from semistream.spark import build_store, cause, enrich, upsert_store
from tests.helpers.spark_data import (
    PATIENCE,
    SPARK_HOWS,
    frame,
    master_table,
    sales_table,
    stream_of,
)

MASTER = master_table([*range(600), *range(0, 600, 10), None])
SALES = sales_table(400, [*range(660), *[7] * 60, None])
KILL_AT = 300  # a sale in the second micro-batch
LONG = 3 * PATIENCE


class Application:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.store = folder / "store"
        self.words: dict[str, Any] = {}

    def save(self, name: str, answer: pa.Table) -> None:
        pq.write_table(answer, self.folder / "answers" / f"{name}.parquet")

    # --- right answers ---------------------------------------------------------------------------

    def joins(self) -> None:
        build_store(frame(self.spark, MASTER), self.store, key="id", partitions=2, page_bytes=2048)
        sales = self.spark.read.parquet(str(self.folder / "sales"))
        queries = {}
        for how in SPARK_HOWS:
            self.save(f"batch-{how}", enrich(sales, self.store, on="id", how=how).toArrow())
            queries[how] = self._start(stream_of(self.spark, self.folder / "sales"), how, how)
        for how, query in queries.items():
            self._finish(query, f"stream-{how}", how)

    def killed(self) -> None:
        """The test kills the executor that has left its worker's number in the file "reached"."""
        stream = gated(stream_of(self.spark, self.folder / "sales"), self.folder)
        self._finish(self._start(stream, "killed", "left"), "killed", "killed")

    def _start(self, stream: DataFrame, name: str, how: str) -> Any:
        ours = enrich(
            stream, self.store, on="id", how=how, memory_per_task="400kB", algorithm="sweepjoin"
        )
        writer = ours.writeStream.format("parquet").trigger(availableNow=True)
        return writer.queryName(name).start(str(self.folder / "out" / name))

    def _finish(self, query: Any, name: str, out: str) -> None:
        assert query.awaitTermination(LONG)
        assert len(query.recentProgress) == 2, "two micro-batches"
        self.save(name, self.spark.read.parquet(str(self.folder / "out" / out)).toArrow())

    # --- executors whose Python lacks something -----------------------------------------------

    def lacking(self) -> None:
        """Each Python of FOLDER/pythons.json that cannot work: what the user gets to see."""
        for name, python in json.loads((self.folder / "pythons.json").read_text()).items():
            self.spark.sparkContext.pythonExec = python
            self.words[name] = failure(lambda: self._few().collect())
            if name == "bare":
                self.words["stream"] = failure(self._stream)
                self.words["build"] = failure(lambda: self._build("never"))
                self.words["upsert"] = failure(lambda: upsert_store(self._news(), self.store))

    def archived(self) -> None:
        """A whole environment, unpacked in the executors' working folders."""
        context = self.spark.sparkContext
        context.addArchive(str(self.folder / "environment.tar.gz") + "#environment")
        context.pythonExec = "./environment/bin/python"
        self.save("archive", with_origin(self._few()).toArrow())

    def shipped(self) -> None:
        """The same Python without the package, once the zip file is added: from then on."""
        context = self.spark.sparkContext
        context.pythonExec = json.loads((self.folder / "pythons.json").read_text())["bare"]
        context.addPyFile(str(self.folder / "semistream.zip"))
        self.save("zip", with_origin(self._few()).toArrow())
        self.words["built"] = self._build("new").verify()
        self.words["upserted"] = upsert_store(self._news(), self.folder / "new").version

    def _few(self) -> DataFrame:
        sales = self.spark.read.parquet(str(self.folder / "sales")).coalesce(1)
        return enrich(sales, self.store, on="id", how="left")

    def _stream(self) -> None:
        stream = stream_of(self.spark, self.folder / "sales")
        self._start(stream, "lacking", "left").awaitTermination(LONG)

    def _build(self, name: str) -> Any:
        return build_store(self._news(), self.folder / name, key="id", partitions=1)

    def _news(self) -> DataFrame:
        return self.spark.range(0, 20, 1, 1).selectExpr("id", "'new' as name", "1.5D as price")


def with_origin(df: DataFrame) -> DataFrame:
    """The same rows, and from where a worker has imported the package."""

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import semistream

        for batch in batches:
            origin = pa.repeat(semistream.__file__, len(batch))
            names = [*batch.schema.names, "origin"]
            yield pa.RecordBatch.from_arrays([*batch.columns, origin], names=names)

    return df.mapInArrow(add, StructType([*df.schema, StructField("origin", StringType())]))


def failure(action: Callable[[], object]) -> dict[str, Any]:
    try:
        action()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error), "cause": str(cause(error))}
    return {"kind": None, "text": "", "cause": None}


def gated(df: DataFrame, folder: Path) -> DataFrame:
    """The same rows; but the first task that gets to a certain row waits there to be killed."""
    reached, repeated = str(folder / "reached"), str(folder / "repeated")

    def gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            yield batch
            if KILL_AT in batch.column("sale").to_pylist():
                try:
                    with open(reached, "x") as file:
                        file.write(f"{os.getpid()}\n")
                except FileExistsError:
                    open(repeated, "w").close()
                    continue
                time.sleep(LONG)

    return df.mapInArrow(gate, df.schema)


def main(master: str, folder: Path, plan: list[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    spark = SparkSession.builder.master(master).config(map=config).getOrCreate()
    try:
        application = Application(spark, folder)
        for step in plan:
            getattr(application, step)()
        (folder / "words.json").write_text(json.dumps(application.words))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
