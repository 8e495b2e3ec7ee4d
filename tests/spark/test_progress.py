"""Counters per micro-batch: exact, whatever Spark repeats."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.spark import BatchProgress, Dimension, enrich, progress, watch
from semistream.testing import oracle
from tests.helpers.paths import ROOT, TESTS
from tests.helpers.spark_data import (
    PATIENCE,
    SPARK_HOWS,
    frame,
    master_table,
    new_store,
    sales_table,
    setting,
    stream_of,
    wait_for,
    write_files,
)

KEYS = [*range(2_000), *range(0, 2_000, 10), None]  # every tenth twice, one row without a key
MASTER = master_table(KEYS)
SALES = sales_table(900, [*range(2_300), *[7] * 300, None, None])
FILES = 3
MEMORY = "250kB"  # less than the master, so that rows wait and pages are read


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return str(new_store(tmp_path_factory, MASTER, 1024))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_files(SALES, tmp_path_factory.mktemp("stream") / "sales", FILES)


def files() -> list[pa.Table]:
    step = SALES.num_rows // FILES
    return [SALES.slice(i * step, step) for i in range(FILES)]


def expected(sales: pa.Table, how: str) -> dict[str, int]:
    """What the counters must say, found without the join."""
    matches = Counter(key for key in KEYS if key is not None)
    matched = sum(key in matches for key in sales["id"].to_pylist())
    return {
        "rows_in": sales.num_rows,
        "rows_matched": matched,
        "rows_unmatched": sales.num_rows - matched,
        "rows_out": len(oracle(sales, MASTER, "id", how)),
    }


def rows(entry: BatchProgress) -> dict[str, int | None]:
    return {name: getattr(entry, name) for name in expected(SALES, "inner")}


def run(df: DataFrame, checkpoint: Path, batch: Any = None) -> Any:
    """All micro-batches of the stream; `batch` is for foreachBatch."""
    writer = df.writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = (writer.format("noop") if batch is None else writer.foreachBatch(batch)).start()
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    return query


@pytest.mark.parametrize("how", SPARK_HOWS)
def test_counters_are_what_the_oracle_says(spark, store, folder, tmp_path, how) -> None:
    ours = enrich(stream_of(spark, folder), store, on="id", how=how, memory_per_task=MEMORY)
    query = run(ours, tmp_path)
    found = progress(query)
    assert [(e.query, e.batch) for e in found] == [(query.id, i) for i in range(FILES)]
    now = time.time()
    created = ss.Store.open(store).manifest.created
    for entry, sales in zip(found, files(), strict=True):
        assert rows(entry) == expected(sales, SPARK_HOWS[how])
        assert (entry.master, entry.version, entry.tasks) == (store, 1, 1)
        assert entry.version_age is not None
        assert 0 <= entry.version_age <= now - created
        assert 0 < entry.bytes_held <= entry.peak_bytes <= entry.budget_bytes <= 250_000
        assert 0 <= entry.front_hits <= entry.rows_in
        spent = entry.seconds
        assert min(spent.open, spent.input, spent.front, spent.disk, spent.output) > 0
    assert found[0].pages_read > 0
    assert found[0].bytes_read > 0


# --- batch DataFrames -----------------------------------------------------------------------------


def totals(df: DataFrame) -> tuple[dict[str, int | None], int | None]:
    (entry,) = progress(df)
    return rows(entry), entry.tasks


def test_an_action_that_is_repeated_counts_once(spark, store) -> None:
    """So do actions that run a part of the frame only, or with other tasks."""
    ours = enrich(frame(spark, SALES), store, on="id", how="left", memory_per_task=MEMORY)
    right = expected(SALES, "left")
    assert progress(ours) == []
    assert len(ours.limit(1).collect()) == 1
    assert progress(ours) == [], "a task that was given up has reported"
    assert ours.count() == right["rows_out"]
    assert totals(ours) == (right, 2)
    ours.coalesce(1).write.format("noop").mode("append").save()  # one task for both partitions
    assert totals(ours) == (right, 2)
    assert len(ours.where("sale < 0 or sale = 890").take(1)) == 1  # the partitions in turn
    assert totals(ours) == (right, 2)
    with pytest.raises(ss.SpecError, match="not those made from them"):
        progress(ours.where("id > 7"))
    with pytest.raises(ss.SpecError, match="not str"):
        progress("/data/sales")  # type: ignore[arg-type]


def failing(df: DataFrame, at: int | None) -> DataFrame:
    """The same rows; the first attempt of the first task fails before batch `at`, or at its end."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        fails = task.partitionId() == 0 and task.attemptNumber() == 0
        for number, batch in enumerate(batches):
            if fails and number == at:
                raise OSError("fails in the middle")
            yield batch
        if fails:
            raise OSError("fails at its end, when all was read")

    return df.mapInArrow(fail, df.schema)


def test_tasks_that_fail_and_are_repeated_count_once(spark, store) -> None:
    """Before the join, in the middle; after the join, when it has answered all rows."""
    sales = SALES.slice(0, 60)
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", 10):
        few = frame(spark, sales)
        ours = enrich(failing(few, 2), store, on="id", how="left", memory_per_task=MEMORY)
        assert ours.count() == expected(sales, "left")["rows_out"]
        assert totals(ours) == (expected(sales, "left"), 2)
        ours = enrich(few, store, on="id", memory_per_task=MEMORY)
        assert failing(ours, None).count() == expected(sales, "inner")["rows_out"]
        assert totals(ours) == (expected(sales, "inner"), 2)


def test_a_stage_that_runs_again_counts_once() -> None:
    """In a Spark of its own, which does not survive it for long: see the file that is run."""
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    child = TESTS / "helpers" / "lost_shuffle_child.py"
    words += [str(child)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# --- streams --------------------------------------------------------------------------------------


def test_calls_and_masters_in_one_query_are_kept_apart(spark, store, folder, tmp_path) -> None:
    """A call before one with two masters, of which the last has every second key."""
    half = pa.table({"id": [*range(0, 2_300, 2)], "even": [1] * 1_150})
    known = enrich(stream_of(spark, folder), store, on="id", how="semi", memory_per_task=MEMORY)
    masters = [Dimension(store, "id", columns=["name"]), Dimension(half, "id", how="left")]
    found = progress(run(enrich(known, masters), tmp_path))
    assert [(e.batch, e.position) for e in found] == [
        (batch, position) for batch in range(FILES) for position in (0, 0, 1)
    ]
    for i, sales in enumerate(files()):
        first, second, third = found[3 * i : 3 * i + 3]
        assert first.call < second.call == third.call
        assert rows(first) == expected(sales, "semi")
        left, out = expected(sales, "semi")["rows_out"], expected(sales, "inner")["rows_out"]
        assert (second.rows_in, second.rows_matched, second.rows_out) == (left, left, out)
        even = sum(row[1] % 2 == 0 for row in oracle(sales, MASTER, "id", "inner"))
        assert (third.rows_in, third.rows_matched, third.rows_out) == (out, even, out)
        assert (second.master, third.version, third.version_age) == (store, None, None)
        assert third.rows_unmatched == out - even
        assert second.seconds.output == third.seconds.input == third.seconds.open == 0


def test_foreach_batch_and_replay(spark, store, folder, tmp_path) -> None:
    """A micro-batch uses its frame three times, and counts once. The second one fails when its rows
    were joined, with more tasks than its replay after a restart has: the replay replaces it."""
    fails = [1]

    def use(df: DataFrame, batch: int) -> None:
        assert df.count() == len(df.collect())
        if batch in fails:
            fails.remove(batch)
            raise OSError("the sink broke")
        inner = enrich(df.select("sale", "id"), store, on="id", memory_per_task=MEMORY)
        inner.coalesce(1).count()

    def start() -> Any:
        ours = enrich(stream_of(spark, folder), store, on="id", how="left", memory_per_task=MEMORY)
        return run(ours, tmp_path, use)

    with (
        setting(spark, "spark.sql.files.maxPartitionBytes", 2_000),
        setting(spark, "spark.sql.files.openCostInBytes", 0),
        pytest.raises(StreamingQueryException, match="the sink broke"),
    ):
        start()
    query = start()
    found = progress(query)
    assert [e.batch for e in found] == [0, 0, 1, 1, 2, 2]
    assert found[0].tasks > 1
    assert [e.tasks for e in found[2:]] == [1, 1, 1, 1]
    for i, sales in enumerate(files()):
        outer, inner = found[2 * i : 2 * i + 2]
        assert rows(outer) == expected(sales, "left")
        assert inner.rows_in == outer.rows_out
        assert inner.rows_matched + inner.rows_unmatched == inner.rows_in


# --- the listener ---------------------------------------------------------------------------------


def test_lines_and_files(
    spark: SparkSession, store: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where files cannot be written: then the query goes on, and the log says so once."""
    caplog.set_level(logging.INFO, "semistream.spark")
    good, folder_instead = tmp_path / "lines.jsonl", tmp_path / "folder"
    folder_instead.mkdir()
    listeners = [watch(spark, file=good)]
    listeners += [watch(spark, log=False, file=f) for f in (folder_instead, "/dev/full")]

    def said(words: str) -> list[str]:
        return [message for message in caplog.messages if words in message]

    try:
        ours = enrich(stream_of(spark, folder), store, on="id", memory_per_task=MEMORY)
        query = run(ours, tmp_path / "checkpoint")
        wait_for("the last line", lambda: len(said("rows in")) == FILES)
        wait_for("the other listeners", lambda: len(said("cannot be written")) == 2)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    assert len(query.recentProgress) == FILES
    found = progress(query)
    records = [json.loads(line) for line in good.read_text().splitlines()]
    for entry, record, message in zip(found, records, said("rows in"), strict=True):
        assert record.pop("time") == query.recentProgress[entry.batch].timestamp
        assert record.pop("name") is None
        spent = record.pop("seconds")
        assert BatchProgress(**record) == BatchProgress(**(vars(entry) | {"seconds": None}))
        assert spent == vars(entry.seconds)
        assert message.startswith(f"{query.id} batch {entry.batch}: {store} (version 1, ")
        assert f" {entry.rows_in} rows in, {entry.rows_matched} matched" in message
    assert "Is a directory" in caplog.text
    assert "No space left" in caplog.text
