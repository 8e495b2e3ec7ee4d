"""enrich between sources and sinks: tables, rates; Delta tables; columns that callers name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

import semistream as ss
from semistream.spark import delta_sink, enrich, into_delta
from semistream.spark.frames import _parsed_here
from semistream.spark.task.enrich import check_columns
from semistream.spark.task.versions import PinFolder
from semistream.testing import assert_same_rows, oracle
from tests.helpers.spark_data import (
    PATIENCE,
    frame,
    master_table,
    new_store,
    payload,
    sales_table,
    stream_of,
    wait_for,
    write_files,
)

MASTER = master_table([*range(100), 7, 7, None])
SALES = sales_table(300, [*range(120), 7, 7, None])
JOINED = oracle(SALES, MASTER, "id", "left")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return new_store(tmp_path_factory, MASTER)


def finish(df: DataFrame, checkpoint: Path, each=None, out: Path | None = None) -> str:
    """Run a stream over what there is, into `each` micro-batch's function or a folder."""
    writer = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if each is not None:
        query = writer.foreachBatch(each).start()
    else:
        query = writer.format("parquet").start(str(out))
    assert query.awaitTermination(PATIENCE)
    return query.id


# --- sources --------------------------------------------------------------------------------------


def test_a_table_as_source(spark, store, tmp_path) -> None:
    frame(spark, SALES).write.saveAsTable("sold")
    try:
        joined = enrich(spark.readStream.table("sold"), store, on="id", how="left")
        finish(joined, tmp_path / "checkpoint", out=tmp_path / "out")
    finally:
        spark.sql("drop table sold")
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).toArrow(), JOINED)


def test_a_rate_as_source(spark, store, tmp_path) -> None:
    """Every value once, with its master row as far as the master goes, though nobody knows where
    the source cuts its micro-batches."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 400).load()
    once = ss.Store.create(tmp_path / "master", master_table([*range(500)]), key="id")
    joined = enrich(rate, once, on={"value": "id"}, how="left", columns=["name"])
    query = (
        joined.drop("timestamp")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )

    def rows() -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    try:
        wait_for("500 rows", lambda: query.exception() or rows() > 500)
    finally:
        query.stop()
    assert query.exception() is None
    out = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert out.num_rows > 500
    assert_same_rows(out, [(i, payload(i) if i < 500 else None) for i in range(out.num_rows)])


# --- sinks --------------------------------------------------------------------------------------


def test_a_task_of_a_stream_that_knows_no_micro_batch(tmp_path) -> None:
    """As in foreachBatch over Connect, or in threads of one's own: a replay could not find the
    version again, so it is an error. In a pipeline the same task may be of a batch."""
    folder = PinFolder.at(str(tmp_path))
    with pytest.raises(ss.SpecError, match="fix the version with version="):
        folder.batch()
    assert replace(folder, always=False).batch() is None


def test_a_stream_into_delta_and_its_replay(spark, store, tmp_path) -> None:
    """Crashes before and after the commit of a micro-batch: the replay adds nothing twice."""
    stream = stream_of(spark, write_files(SALES, tmp_path / "sales", 3))
    joined = enrich(stream, store, on="id", how="left")
    table, checkpoint, into = tmp_path / "delta", tmp_path / "checkpoint", into_delta

    def dies(at: int, when: str):
        def write(df: DataFrame, batch: int) -> None:
            if (batch, when) == (at, "before"):
                df.write.parquet(str(table / f"batch-{batch}-dead"))
                raise RuntimeError("died before")
            into(table)(df, batch)
            if (batch, when) == (at, "after"):
                raise RuntimeError("died after")

        return write

    for at, when in ((1, "before"), (1, "after"), (2, "after")):
        with pytest.raises(Exception, match=f"died {when}"):
            finish(joined, checkpoint, dies(at, when))
    query = finish(joined, checkpoint, into(table))
    written = DeltaTable(table)
    assert_same_rows(written.to_pyarrow_table(), JOINED)
    assert (written.version(), written.transaction_version(f"{query}/append")) == (3, 2)
    assert ss.open_master(table, "sale").describe().rows == len(JOINED)


def test_delta_takes_a_micro_batch_once(spark, tmp_path, monkeypatch) -> None:
    table, added = tmp_path / "delta", delta_sink._added
    rows = [frame(spark, pa.table({"n": pa.array([i], pa.int64())})) for i in range(5)]
    into_delta(table, writer="a")(rows[0], 0)
    into_delta(table, writer="a")(rows[0], 0)
    into_delta(table, writer="b")(rows[1], 0)

    def meanwhile(writer: str, row: DataFrame) -> None:
        """Between the files and the commit of the next call, `writer` commits this row."""

        def first(folder: Path, part: str):
            monkeypatch.setattr(delta_sink, "_added", added)
            into_delta(table, writer=writer)(row, 1)
            return added(folder, part)

        monkeypatch.setattr(delta_sink, "_added", first)

    meanwhile("b", rows[2])  # another query: both stay
    into_delta(table, writer="a")(rows[3], 1)
    meanwhile("c", rows[4])  # the same micro-batch, run twice: one of them
    into_delta(table, writer="c")(rows[4], 1)
    assert_same_rows(DeltaTable(table).to_pyarrow_table(), [(i,) for i in range(5)])

    def fails(*_: object, **__: object) -> None:
        raise CommitFailedError("no")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(ss.MasterError, match="took no rows of micro-batch 2: no"):
        into_delta(table, writer="a")(rows[0], 2)


def test_delta_in_a_folder_that_is_not_shared(spark, tmp_path, monkeypatch) -> None:
    """Tasks on other machines wrote files that the driver does not see: nothing is committed."""
    table, added = tmp_path / "delta", delta_sink._added
    rows = frame(spark, pa.table({"n": pa.array(range(10), pa.int64())}))

    def elsewhere(folder: Path, part: str):
        next((folder / part).glob("*.parquet")).unlink()
        return added(folder, part)

    monkeypatch.setattr(delta_sink, "_added", elsewhere)
    with pytest.raises(ss.MasterError, match=r"tasks wrote 10 rows .* the same on the driver"):
        into_delta(table, writer="a")(rows, 0)
    monkeypatch.setattr(delta_sink, "_added", added)
    into_delta(table, writer="a")(rows, 0)
    assert_same_rows(DeltaTable(table).to_pyarrow_table(), [(i,) for i in range(10)])


def test_types_reach_delta_unchanged(spark, tmp_path) -> None:
    df = spark.sql(
        "select timestamp'1500-01-01 00:00:00.123456' t, timestamp_ntz'2020-01-01 01:02:03' u, "
        "date'1500-03-01' d, 12.34bd c, X'00ff' b, array(1, null) a, "
        "named_struct('x', 1l, 'y', 'é') s, map('k', 1.5d) m, true o, 1y e, 2s f, "
        "cast(null as int) g"
    )
    into_delta(tmp_path / "delta", writer="w")(df, 0)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist() == df.toArrow().to_pylist()


def test_tables_that_plain_files_would_spoil(spark, tmp_path) -> None:
    rows = pa.table({"n": pa.array([1], pa.int64()), "s": ["x"]})
    write_deltalake(tmp_path / "parted", rows, partition_by=["s"])
    write_deltalake(tmp_path / "checked", rows)
    DeltaTable(tmp_path / "checked").alter.add_constraint({"positive": "n > 0"})
    strict = pa.schema([rows.schema.field(0).with_nullable(False), rows.schema.field(1)])
    DeltaTable.create(tmp_path / "strict", strict)
    write_deltalake(tmp_path / "other", rows.select(["n"]))
    log = len(list(tmp_path.rglob("_delta_log/*.json")))
    for name, words in (
        ("parted", "partitioned by s"),
        ("checked", "checkConstraints|of version 3"),
        ("other", "select and"),
        ("strict", "column n have"),
    ):
        with pytest.raises(ss.SpecError, match=words):
            into_delta(tmp_path / name, writer="w")(frame(spark, rows), 0)
    assert len(list(tmp_path.rglob("_delta_log/*.json"))) == log
    with pytest.raises(ss.SpecError, match="only folders"):
        into_delta("s3://bucket/table")
    with pytest.raises(ss.SpecError, match="is for foreachBatch"):
        into_delta(tmp_path / "other")(frame(spark, rows), 0)


# --- columns that the caller names ----------------------------------------------------------------


def test_stream_schema(spark, store) -> None:
    df = frame(spark, SALES)
    joined = enrich(df, store, on="id", how="left", stream_schema="id bigint, sale bigint")
    assert joined.columns == ["id", "sale", "name", "price"]
    expected = oracle(SALES.select(["id", "sale"]), MASTER, "id", "left")
    assert_same_rows(joined.toArrow(), expected)
    for text, words in (
        ("id int", "says id int, but the DataFrame has sale bigint, id bigint, note string"),
        ("ident bigint", "says ident bigint"),
        ("id bigint,,", "is no list of columns"),
        ("bigint", "is no list of columns"),
    ):
        with pytest.raises(ss.SpecError, match=words):
            enrich(df, store, on="id", stream_schema=text)


@pytest.mark.parametrize(
    "text",
    [
        "id bigint",
        " id BIGINT , name string,d decimal(10, 2), e decimal(5),f decimal ",
        "`a b` int, `c``d` date, t timestamp, u timestamp_ntz, x: double, y : boolean, z binary",
        "a tinyint, b smallint, c integer, d long, e float, f numeric(3,1)",
    ],
)
def test_plain_columns_as_spark_reads_them(spark, text: str) -> None:
    """In a pipeline Spark's own parser gives no answer."""
    assert _parsed_here(text) == StructType.fromDDL(text)


def test_columns_that_cannot_be_read_without_spark() -> None:
    for text in ("id bigint, a array<int>", "id", "id bigint b int", "id bigint(3)", "a,b"):
        with pytest.raises(ss.SpecError, match=r"only columns of plain types.*StructType.fromDDL"):
            _parsed_here(text)


def test_other_columns_than_were_named() -> None:
    """What tasks compare: zones and widths of offsets are no difference, all else is."""
    at, text = pa.timestamp("us", "Asia/Tokyo"), pa.large_string()
    declared = pa.schema(
        {"a": pa.int64(), "t": pa.timestamp("us", "UTC"), "l": pa.list_(pa.string())}
    )
    check_columns(pa.schema({"a": pa.int64(), "t": at, "l": pa.list_(text)}), declared)
    for other in (
        {"a": pa.int32(), "t": at, "l": pa.list_(text)},
        {"a": pa.int64(), "t": pa.timestamp("us"), "l": pa.list_(text)},
        {"a": pa.int64(), "t": at, "l": pa.list_(pa.int8())},
        {"a": pa.int64(), "l": pa.list_(text), "t": at},
        {"a": pa.int64(), "t": at},
    ):
        with pytest.raises(ss.SpecError, match="but stream_schema= says a int64"):
            check_columns(pa.schema(other), declared)
