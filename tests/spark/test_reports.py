"""How counters of tasks are taken and added up, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

import semistream as ss
from semistream.spark import BatchProgress, reports
from semistream.spark.progress import entries_of, line
from semistream.spark.reports import EXECUTIONS, KEPT, OPEN_BATCHES, OPEN_CALLS, Book, Reports
from semistream.spark.task import counters
from semistream.spark.task.counters import PHASES, Counting, Report, TaskTally
from semistream.spark.task.enrich import EnrichTask
from semistream.spark.task.joins import POOL
from tests.helpers.spark_data import master_table, sales_table, task_of, warm_joins

KEYS = 2_000


# --- in a task ------------------------------------------------------------------------------------


class Clock:
    """Time passes when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float, result: Any = None) -> Any:
        self.now += seconds
        return result


class Sink(list[Report]):
    def add(self, reports: list[Report]) -> None:
        self.extend(reports)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    monkeypatch.setattr(counters, "_where", lambda: {"partition": 0})
    monkeypatch.setattr(POOL, "living", {})
    yield Sink()
    POOL.drop(warm_joins())


def test_time_is_spent_once(sink: Sink) -> None:
    """Two joins in a chain, whose work is interleaved: every second belongs to one phase."""
    clock = Clock()
    tally = TaskTally(Counting("call", ("a", "b"), sink), clock)
    master = ss.open_master(pa.table({"id": [1, 2]}), key="id")
    joins = [ss.SemiStreamJoin(master, "id") for _ in range(2)]

    def spark() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield clock.pass_by(1, pa.record_batch({"id": [1, 3]}))

    def answer(seconds: float, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        clock.pass_by(seconds)  # in the call itself
        yield clock.pass_by(seconds, batch)  # and while it is read

    def chain() -> Iterator[pa.RecordBatch]:
        tally.open(lambda: clock.pass_by(10, joins))
        for batch in tally.input(spark()):
            for middle in tally.work(0, answer, 100, batch):
                for out in tally.work(1, answer, 1_000, middle):
                    yield clock.pass_by(10_000, out)

    for _ in tally.around(chain()):
        clock.pass_by(100_000)
    (report,) = sink
    first, second = report["joins"]
    assert [first[phase] for phase in PHASES] == [10, 3, 600, 0, 0]
    assert [second[phase] for phase in PHASES] == [0, 0, 36_000, 0, 300_000]
    assert sum(entry[phase] for entry in (first, second) for phase in PHASES) == clock.now


@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "memory"])
def test_a_warm_join_counts_each_task_for_itself(tmp_path, sink: Sink, algorithm: str) -> None:
    """Also after a task that was given up, and one whose master has a new version."""
    store = ss.Store.create(tmp_path / "store", master_table([*range(KEYS)]), "id", page_bytes=1024)
    sales = sales_table(1_000, [*range(KEYS + 500), None])
    matched = sum(key is not None and key < KEYS for key in sales["id"].to_pylist())

    def task(version: ss.Store) -> EnrichTask:
        made = task_of(tmp_path / "store", algorithm=algorithm, locator=version.locator())
        return replace(made, counting=Counting("call", ("master",), sink))

    batches = sales.to_batches(max_chunksize=300)
    given_up = task(store)(iter(batches))
    next(given_up)
    given_up.close()
    assert sink == []
    newer = store.upsert(pa.table({"id": [7], "name": ["new"], "price": [1.0]}))
    for version in (store, newer, newer):
        list(task(version)(iter(batches)))
    list(task(newer)(iter([])))
    (join,) = warm_joins()
    *full, empty = [report["joins"][0] for report in sink]
    for entry, version in zip(full, (1, 2, 2), strict=True):
        assert (entry["rows_in"], entry["rows_out"]) == (1_000, 1_000)
        assert (entry["rows_matched"], entry["rows_unmatched"]) == (matched, 1_000 - matched)
        assert entry["version"] == version
    assert 0 <= full[2]["pages_read"] < join.stats.pages_read
    if algorithm == "memory":  # read when the join is made or moved, not when it is warm
        assert full[1]["pages_read"] > 0 == full[2]["pages_read"]
        assert full[2]["front_hits"] == matched
    else:
        assert full[2]["disk"] > 0
    assert (empty["rows_in"], empty["disk"], empty["master"]) == (0, 0, "master")
    store.close()


def test_the_disk_phase_is_timed_without_its_reader(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    table = master_table([i % 100 for i in range(5_000)])
    store = ss.Store.create(tmp_path / "store", table, "id", page_bytes=1024)
    touch, outs = store.touch, 0
    monkeypatch.setattr(store, "touch", lambda wanted: clock.pass_by(1, touch(wanted)))
    asked = {"algorithm": "sweepjoin", "params": ss.Params(front_share=0.55)}
    with ss.SemiStreamJoin(store, "id", memory="1MB", clock=clock, **asked) as join:
        list(join.push(sales_table(2_000, [*range(100)]).to_batches()[0]))
        for _ in join.drain():
            outs += 1
            clock.pass_by(100)
        assert outs > 1
        assert 0 < join.stats.disk_seconds < 100
    store.close()


# --- on the driver --------------------------------------------------------------------------------


def report(
    rows: int, partition: int = 0, *, query: str | None = "q", batch: int | None = 0,
    call: str = "c", root: int = 1, execution: str = "1", attempt: int = 0, app: str = "app",
) -> Report:  # fmt: skip
    entry = {"master": "m", **dict.fromkeys(counters.ADDED, 0), **dict.fromkeys(PHASES, 0.0)}
    entry |= {"rows_in": rows, "bytes_held": 10, "peak_bytes": rows, "version_age": float(rows)}
    batch = None if query is None else batch
    return {
        "call": call, "app": app, "query": query, "batch": batch, "root": root,
        "execution": execution, "partition": partition, "attempt": attempt, "joins": [entry],
    }  # fmt: skip


def sums(book: Book, query: str = "q") -> list[tuple[int | None, int, int]]:
    """(batch, rows in, tasks) of everything."""
    return [(batch, e["rows_in"], e["tasks"]) for batch, _, _, e in book.of_query(query)]


@pytest.mark.parametrize(
    ("reports", "rows", "tasks"),
    [
        ([report(5, 0), report(7, 1)], 12, 2),
        ([report(5, 0), report(7, 1), report(6, 0, attempt=2)], 13, 2),  # repeated
        ([report(5, 0), report(7, 0)], 12, 2),  # coalesced
        ([report(5, 0), report(7, 0), report(5, 0, attempt=2), report(8, 0, attempt=2)], 13, 2),
        ([report(5, 0), report(7, 1), report(13, 0, execution="2")], 12, 2),  # limit
        ([report(5), report(6, execution="2"), report(7, 1, execution="2")], 13, 2),
        ([report(5, 0), report(7, 1), report(1, 0, root=2)], 1, 1),  # replayed
        ([report(5, 0, root=2), report(7, 1, root=1)], 5, 1),  # outlived its run
        ([report(5, 0, root=2), report(7, 1, app="next")], 7, 1),  # Spark was started anew
    ],
)
def test_what_is_repeated_counts_once(reports: list[Report], rows: int, tasks: int) -> None:
    book = Book()
    for one in reports:
        book.take([one])
    assert sums(book) == [(0, rows, tasks)]
    for batch in range(1, 2 * OPEN_BATCHES):
        book.take([report(1, batch=batch)])  # which closes the first
    assert sums(book)[0] == (0, rows, tasks)
    book.take([report(99, execution=reports[-1]["execution"])] if tasks > 1 else [])  # a straggler
    assert sums(book)[0] == (0, rows, tasks)


def test_how_entries_are_added() -> None:
    book = Book()
    book.take([report(5, 0, query=None), report(7, 1, query=None)])
    ((batch, call, position, entry),) = book.of_call("c")
    assert (batch, call, position) == (None, "c", 0)
    assert (entry["bytes_held"], entry["peak_bytes"], entry["version_age"]) == (20, 7, 5.0)
    assert entry["version"] is None
    assert book.of_call("other") == book.of_query("q") == []


def size(thing: Any) -> int:
    """How many objects hang on it."""
    if isinstance(thing, dict):
        return 1 + sum(map(size, thing.values()))
    if isinstance(thing, list | tuple):
        return 1 + sum(map(size, thing))
    return 1 + (size(vars(thing)) if hasattr(thing, "__dict__") else 0)


def test_the_book_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many micro-batches, queries, calls and actions, of many tasks each."""
    book, tasks = Book(), 20

    def fill(begin: int, end: int) -> int:
        for i in range(begin, end):
            for p in range(tasks):
                book.take([report(1, p, batch=i), report(1, p, query=None, call=f"c{i}")])
                book.take([report(1, p, query="many", root=1, execution=str(i))])
                book.take([report(1, p, query=f"q{i}")])
        return size(book)

    full = fill(0, 2 * KEPT)
    assert fill(2 * KEPT, 4 * KEPT) == full
    assert sums(book) == [(i, tasks, tasks) for i in range(3 * KEPT, 4 * KEPT)]
    assert sums(book, "many") == [(0, tasks, tasks)]
    assert book.of_call(f"c{3 * KEPT}")[0][3]["rows_in"] == tasks
    assert book.of_call(f"c{3 * KEPT - 1}") == sums(book, f"q{3 * KEPT - 1}") == []
    one = size(report(1)["joins"])
    apart = OPEN_BATCHES + OPEN_CALLS + EXECUTIONS + KEPT  # a query of one micro-batch is open
    assert full < 2 * one * (apart * tasks + 3 * KEPT)


def test_a_report_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """It must not end the thread in which Spark adds up all accumulators."""
    book, param = Book(), Reports()
    assert param.addInPlace(book, [{"from": "another version"}]) is book
    assert param.addInPlace(book, [report(5)]) is book
    assert sums(book) == [(0, 5, 1)]
    assert "was left out" in caplog.text
    local = param.zero(book)
    assert param.addInPlace(local, [report(5)]) == [report(5)]
    assert reports.LOG.name == "semistream.spark"


# --- Spark Connect --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", [Row(rows=5), Row(values=[5], schema={"type": "struct"})], ids=["event", "recent"]
)
def test_what_spark_connect_observes(row: Row) -> None:
    """Of a call with two masters the rows before the first and after the second."""
    observed = {
        "semistream:000007-ab:1:rows_out:s3://bucket/b": row,
        "semistream:000007-ab:0:rows_in:/data/a": row,
        "semistream": Row(of="somebody else"),
        "other:1:2:3:4": Row(of="somebody else"),
    }
    done = SimpleNamespace(id="q", batchId=3, observedMetrics=observed)
    assert entries_of(done) == [
        BatchProgress("q", 3, "000007-ab", 0, "/data/a", rows_in=5),
        BatchProgress("q", 3, "000007-ab", 1, "s3://bucket/b", rows_out=5),
    ]
    assert [line(entry, "sales") for entry in entries_of(done)] == [
        "sales batch 3: /data/a, 5 rows in",
        "sales batch 3: s3://bucket/b, 5 out",
    ]
