"""What the user sees when a task fails: one message first, and no stack of ours behind it."""

from __future__ import annotations

import errno
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException

import semistream as ss
from semistream.master.storage.place import LocalPlace
from semistream.spark import build_store, cause, enrich, upsert_into, upsert_store
from semistream.spark.ship import shipped
from semistream.spark.task.enrich import EnrichTask, Share
from semistream.spark.task.joins import POOL
from semistream.spark.task.open import writing_to
from semistream.spark.task.write import part_of
from tests.helpers.spark_data import (
    PATIENCE,
    frame,
    master_table,
    sales_table,
    stream_of,
    task_of,
    write_files,
)

MASTER = master_table([*range(100)])
SALES = sales_table(40, [*range(100)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    ss.Store.create(tmp_path / "store", MASTER, key="id").close()
    return tmp_path / "store"


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(SALES, tmp_path_factory.mktemp("stream") / "sales", 1)


# --- what can break between planning on the driver and the task -----------------------------------


def damage(store: Path) -> None:
    """A byte of every page is another one."""
    for file in (store / "data").glob("*.arrow"):
        content = bytearray(file.read_bytes())
        for at in range(len(content) // 4, len(content) // 2):
            content[at] ^= 255
        file.write_bytes(content)


def move_away(store: Path) -> None:
    store.rename(store.with_name("elsewhere"))


def expire(store: Path) -> None:
    newest = ss.Store.open(store).upsert(MASTER.slice(0, 1))
    newest.expire(0)
    newest.close()


@pytest.mark.parametrize(
    ("break_it", "kind", "words"),
    [
        (damage, ss.DamagedError, ["is damaged: page 0", "wrong checksum", "restore the file"]),
        (move_away, ss.StoreError, ["was there for the driver", "on every executor"]),
        (expire, ss.MasterError, ["has no version 1; it has 2", "call enrich again"]),
    ],
)
def test_a_batch_fails_with_one_message(spark, store, sales, break_it, kind, words) -> None:
    ours = enrich(spark.read.parquet(str(sales)), store, on="id", algorithm="sweepjoin")
    break_it(store)
    with pytest.raises(PythonException) as caught:
        ours.collect()
    first, second = str(caught.value).splitlines()  # and nothing else
    error = cause(caught.value)
    assert first == "An exception was thrown from the Python worker:"
    assert second == f"semistream.errors.{kind.__name__}: {error}"
    assert type(error) is kind
    for word in [*words, str(store)]:
        assert word in second


def test_a_stream_fails_with_one_message(spark, store, sales, tmp_path) -> None:
    ours = enrich(stream_of(spark, sales), store, on="id", algorithm="sweepjoin")
    damage(store)
    writer = ours.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query.awaitTermination(PATIENCE)
    error = cause(query)
    assert type(error) is ss.DamagedError
    for failed in (caught.value, query.exception()):
        assert f"semistream.errors.DamagedError: {error}" in str(failed).splitlines()[0]
        assert 'File "' not in str(failed)
        assert str(cause(failed)) == str(error)


def test_a_change_fails_with_our_error_itself(spark, store, sales, tmp_path) -> None:
    """Jobs that we run ourselves; and in foreachBatch, where Spark adds its own frames."""
    damage(store)
    with pytest.raises(ss.DamagedError, match="wrong checksum") as caught:
        upsert_store(frame(spark, MASTER.slice(5, 1)), store)
    assert caught.value.__cause__ is None
    query = (
        stream_of(spark, sales)
        .writeStream.foreachBatch(upsert_into(tmp_path / "nowhere"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query.awaitTermination(PATIENCE)
    assert "is not a store" in str(cause(caught.value))
    assert "in _change" not in str(caught.value)


def test_a_folder_that_tasks_do_not_have(spark, tmp_path) -> None:
    path = tmp_path / "store"

    def remove_folder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        if os.path.isdir(path / "data"):
            os.rename(path / "data", path / "away")
        yield from batches

    df = spark.range(0, 5, 1, 1)
    with pytest.raises(ss.StoreError, match=r"a task on .* cannot write to .*store/data") as caught:
        build_store(df.mapInArrow(remove_folder, df.schema), path, key="id", partitions=1)
    assert "must mean the same" in str(caught.value)


def test_a_disk_that_is_full() -> None:
    with (
        pytest.raises(ss.StoreError, match=r"a task on .* cannot write to /store: .*make room"),
        writing_to("/store"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_shard_that_the_driver_does_not_have(tmp_path) -> None:
    """The folder exists on every machine, and on each it is another one."""
    written = {"shard": {}, "files": ["0-1.part", "0-1.claimed"]}
    with pytest.raises(ss.StoreError, match=r"0-1\.part.*driver has no such file.*mean the same"):
        part_of(LocalPlace(tmp_path), written)


def test_too_little_memory_is_said_in_terms_of_the_call(spark, store, tmp_path) -> None:
    """A row that is wider than any plan could know of: what the message asks for is enough."""
    notes = pa.array(["x" * 400_000 if i == 17 else "x" for i in range(40)])
    folder = write_files(SALES.set_column(2, "note", notes), tmp_path / "wide", 1)
    df = spark.read.parquet(str(folder))

    def ours(memory: int | str) -> int:
        joined = enrich(df, store, on="id", memory_per_task=memory, algorithm="sweepjoin")
        return len(joined.collect())

    with pytest.raises(PythonException) as caught:
        ours("300kB")
    error = cause(caught.value)
    assert isinstance(error, ss.BudgetError)
    assert f"give memory_per_task={error.least}" in str(error)
    assert "memory=" not in str(error)
    assert ours(error.least) == SALES.num_rows


def test_other_errors_keep_their_stack(spark) -> None:
    def divide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(1 // 0)

    with pytest.raises(PythonException, match="ZeroDivisionError") as caught:
        spark.range(0, 5, 1, 1).mapInArrow(shipped(divide), "id long").collect()
    assert "in divide" in str(caught.value)
    assert cause(caught.value) is None


# --- without Spark ------------------------------------------------------------------------------


def refused(task: EnrichTask) -> ss.BudgetError:
    POOL.living.clear()
    wide = sales_table(3, [1]).set_column(2, "note", pa.array(["x" * 400_000] * 3))
    with pytest.raises(ss.BudgetError) as caught:
        list(task(iter(wide.to_batches())))
    assert "give memory=" not in str(caught.value)
    return caught.value


def test_a_join_that_can_no_longer_be_made(store) -> None:
    """The master has grown since the driver looked, say."""
    error = refused(task_of(store, memory=1_000))
    assert type(error) is ss.BudgetError
    assert f"give memory_per_task={error.least}" in str(error)


@pytest.mark.parametrize("memory", [1_000, 300_000])
def test_too_little_for_one_of_several_masters(store, memory) -> None:
    share = Share(memory, 2_000_000, "products")
    error = refused(task_of(store, memory=memory, share=share))
    needs = error.least - 2_000_000 + memory
    assert needs > memory
    asked = f"give Dimension('products', ..., memory={needs}), and memory_per_task={error.least}"
    assert asked in str(error)
    assert cause(RuntimeError(f"semistream.errors.BudgetError: {error}")).least == error.least


def test_a_share_that_others_divide() -> None:
    """With half of its share granted, twice what is missing must be asked for."""
    error = ss.BudgetError("a row is too wide: give memory=600", 600)
    told = Share(1_000, 1_500, None).too_small(error, 500)
    assert (str(told), told.least) == ("a row is too wide: give memory_per_task=1700", 1_700)
    told = Share(1_000, 1_000, None).too_small(error, 1_000)
    assert told.least == 600
    other = ss.BudgetError("too wide", 600)
    assert str(Share(500, 500, None).too_small(other, 500)) == "too wide; give memory_per_task=600"


def test_a_task_travels_by_value() -> None:
    """Nothing of the package is needed to unpickle it."""
    content = cloudpickle.dumps(shipped(lambda batches: batches))
    names: list[tuple[str, str]] = []

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            names.append((module, name))
            return super().find_class(module, name)

    Reader(io.BytesIO(content)).load()
    assert names
    assert not [module for module, _ in names if module.startswith("semistream")]


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "semistream":
                raise ImportError("Numba needs an older NumPy")

    task = shipped(lambda batches: batches)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # is put back afterwards
    monkeypatch.delitem(sys.modules, "semistream")
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    with pytest.raises(Exception, match="Numba needs an older NumPy") as caught:
        next(task(iter([])))
    assert type(caught.value).__qualname__ == "InstallError"
    assert f"the executors' Python {sys.executable} on" in str(caught.value)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


def _as_spark_says(before: str = "", after: str = "") -> Callable[[str], str]:
    return lambda text: f"{before}semistream.errors.{text}{after}"


@pytest.mark.parametrize(
    "said",
    [
        _as_spark_says("An exception was thrown from the Python worker:\n", "\n"),
        _as_spark_says("terminated with exception: ", "\n SQLSTATE: 38000 SQLSTATE: XXKST\n===\n"),
        _as_spark_says("Return Message: Traceback\n  File 'x'\n", "\n\n=== Streaming Query ===\n"),
        _as_spark_says("Lost task 0.3: ", "\n\n\tat org.apache.spark.A.b(A.scala:1)\n"),
    ],
)
def test_cause_finds_the_message(said: Callable[[str], str]) -> None:
    found = cause(RuntimeError(said("SpecError: column 'a' is wrong: 1; rename it")))
    assert type(found) is ss.SpecError
    assert str(found) == "column 'a' is wrong: 1; rename it"
    for remedy in ("memory=123", "memory_per_task=123", "M(memory=45), and memory_per_task=123"):
        budget = cause(RuntimeError(said(f"BudgetError: too small: give {remedy}")))
        assert isinstance(budget, ss.BudgetError)
        assert budget.least == 123


def test_cause_of_something_else() -> None:
    later = "semistream.errors.SpecError: a\n\nTraceback (most recent call last):\nKeyError: 'b'"
    assert cause(RuntimeError(later)) is None
    assert cause(RuntimeError("no word of ours")) is None
    own = ss.SpecError("as it is")
    assert cause(own) is own


def test_a_key_with_two_rows_fails_the_query_where_one_was_wanted(spark, sales) -> None:
    stream = spark.read.parquet(str(sales))
    twice = pa.concat_tables([MASTER, MASTER.filter(pc.equal(MASTER["id"], SALES["id"][0]))])
    for source, asked in (
        (twice, {"validate": "many_to_one"}),
        (pa.concat_tables([MASTER, MASTER]), {"validate": "m:1", "algorithm": "meshjoin"}),
    ):
        with pytest.raises(PythonException) as caught:
            enrich(stream, source, on="id", **asked).collect()
        error = cause(caught.value)
        assert isinstance(error, ss.DuplicateKeyError)
        assert "more than one row for id=" in str(error)
    assert enrich(stream, MASTER, on="id", validate="many_to_one").count() == len(SALES)
