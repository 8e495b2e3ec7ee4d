"""enrich() with a table in a database, on real Spark; and no password where it can be read."""

from __future__ import annotations

import contextlib
import io
import json
import logging

import pyarrow as pa
import pytest

import semistream as ss
from benchmarks.lib.servers import PASSWORD
from semistream.spark import enrich
from semistream.spark.task.enrich import EnrichTask, Step
from semistream.testing import assert_same_rows, oracle
from tests.helpers.database_servers import load
from tests.helpers.spark_data import frame, master_table, sales_table, stream_of, write_files

MASTER = master_table([*range(100), *range(0, 100, 3), None])
SALES = sales_table(300, [*range(120), 7, 7, None])


@pytest.fixture(scope="module")
def tables(postgresql, mariadb) -> dict[str, str]:
    return {s.kind: load(s, MASTER, ["id"], "index") for s in (postgresql, mariadb)}


def test_a_batch_query(server, tables, spark, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    url = server.url(more=f"?table={tables[server.kind]}")
    result = enrich(frame(spark, SALES), url, on="id", how="left", memory_per_task="8MB")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result.explain(True)
        result.explain("formatted")
    assert_same_rows(result.toArrow(), oracle(SALES, MASTER, "id", "left"))
    seen = printed.getvalue() + caplog.text + result._jdf.queryExecution().toString()
    assert "MapInArrow" in seen
    assert PASSWORD not in seen


def test_a_streaming_query(server, tables, spark, tmp_path, monkeypatch) -> None:
    """The password comes from the environment of the workers, or in the task itself."""
    files = write_files(SALES, tmp_path / "sales", 3)
    master = ss.open_master(server.url(), "id", table=tables[server.kind], ttl="60s")
    result = enrich(stream_of(spark, files), master, on="id", memory_per_task="8MB")
    query = (
        result.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).toArrow(),
                     oracle(SALES, MASTER, "id", "inner"))  # fmt: skip
    told = json.dumps([p.json for p in query.recentProgress])
    assert PASSWORD not in told
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert any("checkpoint" in str(f) for f in files)
    assert [f for f in files if PASSWORD.encode() in f.read_bytes()] == []


def test_a_task_does_not_show_the_password(server, tables) -> None:
    master = ss.open_master(server.url(), "id", table=tables[server.kind])
    added = pa.schema([f for f in master.describe().schema if f.name != "id"])
    step = Step(master.locator(), [("id", "id")], "inner", None, None, 1 << 22, "inlj", added)
    task, schema = EnrichTask([step]), pa.schema([("id", pa.int64())])
    assert PASSWORD not in repr(task) + str(task) + step.wanted(schema).identity
    batch = pa.record_batch({"id": pa.array([5, 500], pa.int64())})
    assert [b.num_rows for b in task(iter([batch]))] == [1]


def test_an_error_in_a_task_does_not_show_the_password(own_table, spark, tmp_path) -> None:
    """The server goes away after the driver has looked at it: Spark prints whole tracebacks."""
    server, name = own_table
    url = server.url(more=f"?table={name}&deadline=200ms")
    result = enrich(frame(spark, SALES), url, on="id", memory_per_task="8MB", algorithm="inlj")
    server.stop()
    with pytest.raises(Exception, match="DatabaseError") as caught:
        result.toArrow()
    assert PASSWORD not in str(caught.value) + repr(caught.value)


@pytest.fixture
def own_table():
    from benchmarks.lib.servers import PostgreSQL

    with PostgreSQL() as server:
        yield server, load(server, MASTER, ["id"], "index")
