"""enrich(shuffle="key"): the same rows, few pages per task, and no task with half of the work."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import semistream as ss
from semistream.spark import Dimension, enrich
from semistream.spark.columns import Columns
from semistream.spark.shuffle import _row_hash, by_key
from semistream.testing import assert_same_rows, oracle
from tests.helpers.database_servers import load
from tests.helpers.paths import ROOT, program
from tests.helpers.spark_data import (
    SPARK_HOWS,
    batches_of,
    frame,
    master_table,
    new_store,
    no_job,
    plan_of,
    sales_table,
    stream_of,
    write_files,
)

# Duplicates, a NULL; the stream has orphans, NULLs and two hot keys.
MASTER = master_table([*range(300), *range(0, 300, 3), 7, 7, None])
SALES = sales_table(2_000, [*range(330), *[7] * 300, *[9] * 40, None, None])
SMALL = "200kB"  # too little to hold the master whole


_many_batches = batches_of(60)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return new_store(tmp_path_factory, MASTER)


def counts(df: DataFrame) -> list[int]:
    """Rows of each partition."""
    rows = df.groupBy(F.spark_partition_id().alias("p")).count().orderBy("p").collect()
    assert [row.p for row in rows] == list(range(len(rows)))
    return [row["count"] for row in rows]


@pytest.mark.parametrize("how", SPARK_HOWS)
def test_batch_and_stream_equal_the_oracle(spark, store, tmp_path, how) -> None:
    expected = oracle(SALES, MASTER, "id", SPARK_HOWS[how])
    options = {"on": "id", "how": how, "memory_per_task": SMALL, "shuffle": "key"}
    batch = enrich(frame(spark, SALES), store, **options, partitions=3)
    assert_same_rows(batch.toArrow(), expected, "batch")
    stream = enrich(stream_of(spark, write_files(SALES, tmp_path / "in", 2)), store, **options)
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("append")
    query = writer.start(str(tmp_path / "out"))
    query.awaitTermination()
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).toArrow(), expected, "stream")
    assert len(query.recentProgress) == 2
    plan = query._jsq.explainInternal(False).split("== Initial Plan ==")[0]
    assert plan.count("Exchange shufflepartitionidpassthrough") == plan.count("Exchange") == 1
    assert "AQEShuffleRead" not in plan, "adaptive execution has changed the partitions"


def test_half_of_the_rows_on_one_key(spark, store) -> None:
    """As many rows in each partition, and as many partitions as asked for: those here are far below
    what adaptive execution would merge."""
    key = F.when(F.col("id") % 2 == 0, 7).otherwise(F.col("id") % 300)
    stream = spark.range(0, 6_000, 1, 3).select(key.alias("id"), F.lit("x").alias("x"))
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    master = ss.open_master(store)
    for partitions in (2, 4, 8):
        found = counts(by_key(Columns(stream), master, "id", partitions))
        assert len(found) == partitions
        assert max(found) <= 1.1 * np.median(found), found
    assert len(counts(by_key(Columns(stream), master, "id"))) == 2  # task slots
    plain = counts(stream.repartition(8, "id"))
    assert max(plain) > 3 * np.median(plain)  # or there was nothing to show
    ours = enrich(stream, store, on="id", how="left_semi", shuffle="key", partitions=4)
    assert plan_of(ours).count("Exchange ") == 1
    assert ours.columns == ["id", "x"]
    joined = counts(ours)
    assert len(joined) == 4
    assert max(joined) <= 1.1 * np.median(joined), joined


def test_text_and_composite_keys(spark, tmp_path) -> None:
    sales = pa.table(
        {
            "name": [f"k{i % 40}" if i % 3 else "hot" for i in range(600)],
            "n": pa.array([i % 5 if i % 11 else None for i in range(600)], pa.int32()),
            "row": range(600),
        }
    )
    rows = {"name": ["hot", "hot", *(f"k{i}" for i in range(30))], "m": [1, 2, *[3] * 30]}
    master = pa.table(rows | {"text": [f"t{i}" for i in range(32)]})
    for on in ({"name": "name"}, {"name": "name", "n": "m"}):
        path = tmp_path / "_".join(on)
        ss.Store.create(path, master, key=list(on.values()), page_bytes=256).close()
        ours = enrich(
            frame(spark, sales), path, on=on, how="left", shuffle="key", columns=["text"],
            memory_per_task=SMALL,
        )  # fmt: skip
        assert_same_rows(ours.toArrow(), oracle(sales, master, on, "left", ["text"]))


def test_rows_that_differ_have_other_hashes(spark) -> None:
    """Of rows with equal hashes any may go anywhere: so they must be equal rows."""
    flat = spark.sql(
        "select x, y, z, collate(s, 'UTF8_LCASE') s from values (1, null, 0.0d, 'a'), "
        "(null, 1, 0.0d, 'a'), (1, null, -0.0d, 'a'), (1, null, 0.0d, 'A'), "
        "(1, null, null, 'a'), (1, 0, 0.0d, 'a') as t(x, y, z, s)"
    )
    hashed, exact = _row_hash(Columns(flat))
    assert exact
    assert flat.select(hashed).distinct().count() == 6
    nested = spark.sql(
        "select id, array(id, null) a, named_struct('x', map(1, id)) s, map('k', id) m, "
        "interval 1 day i, cast(null as void) v from range(20)"
    )
    hashed, exact = _row_hash(Columns(nested))
    assert not exact
    assert nested.select(hashed).distinct().count() == 20
    ours = enrich(nested, MASTER, on="id", how="left_semi", shuffle="key")
    assert ours.count() == 20


def test_auto(spark, store, postgresql) -> None:
    """Where a page that two tasks need is read twice."""
    table = load(postgresql, MASTER, ["id"])
    masters = {
        "mapped": (store, False),
        "read": (ss.Store.open(store, io="pread"), True),
        "database": (ss.open_master(postgresql.url(), "id", table=table), False),
    }
    for name, (master, shuffles) in masters.items():
        options = {"on": "id", "how": "left", "memory_per_task": "3MB", "algorithm": "sweepjoin"}
        ours = enrich(frame(spark, SALES), master, **options, shuffle="auto", partitions=4)
        assert ("Exchange " in plan_of(ours)) is shuffles, name
        assert_same_rows(ours.toArrow(), oracle(SALES, MASTER, "id", "left"), name)
    forced = enrich(frame(spark, SALES), masters["database"][0], **options, shuffle="key")
    assert_same_rows(forced.toArrow(), oracle(SALES, MASTER, "id", "left"), "forced")
    whole = enrich(frame(spark, SALES), masters["read"][0], on="id", shuffle="auto")
    assert "Exchange " not in plan_of(whole)  # it fits into memory: each task loads it all


def test_what_is_wrong_is_said_before_a_job(spark, store, monkeypatch) -> None:
    stream = frame(spark, SALES)
    with no_job(spark, "shuffle"):
        for words, message in (
            ({"shuffle": "keys"}, r"shuffle='keys': choose one of none, key, auto"),
            ({"shuffle": "key", "partitions": 0}, r"partitions=0"),
            ({"partitions": 4}, r"partitions=4 is for shuffle=\"key\""),
        ):
            with pytest.raises(ss.SpecError, match=message):
                enrich(stream, store, on="id", **words)
        monkeypatch.delattr(type(stream), "repartitionById")
        monkeypatch.delattr(DataFrame, "repartitionById")
        with pytest.raises(ss.SpecError, match=r"needs Spark 4\.1 or newer, and this is 4\."):
            enrich(stream, store, on="id", shuffle="key")


def test_of_several_masters_the_one_whose_reads_cost_most(spark, store, tmp_path) -> None:
    """And whose key the stream has: later keys may come from earlier masters."""
    notes = pa.table({"note": [f"note {i}" for i in range(900)], "kind": [*range(900)]})
    ss.Store.create(tmp_path / "notes", notes, key="note", page_bytes=512).close()
    kinds = pa.table({"kind": [*range(900)], "text": ["wide " * 20] * 900})
    ss.Store.create(tmp_path / "kinds", kinds, key="kind", page_bytes=512).close()
    options = {"how": "left", "algorithm": "sweepjoin", "memory": "300kB"}
    masters = [
        Dimension(store, "id", columns=["price"], **options),
        Dimension(ss.Store.open(tmp_path / "notes", io="pread"), "note", **options),
        Dimension(ss.Store.open(tmp_path / "kinds", io="pread"), "kind", **options),
    ]
    ours = enrich(frame(spark, SALES), masters, shuffle="auto", memory_per_task="900kB")
    asked = plan_of(ours).split("ArrowEvalPython [target(")[1].split("], [pythonUDF")[0]
    assert asked.split(", ")[-1].startswith("note#")
    expected = oracle(SALES, MASTER, "id", "left", ["price"])
    assert ours.count() == len(expected)


@pytest.mark.slow
def test_a_lost_executor_loses_and_doubles_nothing(tmp_path) -> None:
    """Its map tasks run again, with their rows in another order, for tasks that go on reading."""
    done = subprocess.run(
        [*program("shuffle_child"), str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout)
    assert found.pop("attempts") > 1, "no map task was repeated"
    assert found == {"rows": 20_000, "missing": 0, "extra": 0}
