"""The streaming queries of the demo, and what is known about them while they run."""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import SemiStreamError
from .data import SALES_DDL
from .session import task_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ...spark import BatchProgress

WARM_UP = 2  # micro-batches not counted: they load classes, compile and fill caches
POLL_SECONDS = 0.2

# What a plan does for every micro-batch.
BROADCAST_BATCH = "broadcasts the batch and scans the whole table"
BROADCAST_TABLE = "reads and broadcasts the whole table"
SHUFFLE = "reads and shuffles the whole table"
SORT = "reads, shuffles and sorts the whole table"


@dataclass(frozen=True)
class QueryCounters:
    """What the join did in some micro-batches, one after the other."""

    rows_in: int = 0
    front_hits: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    bytes_held: int = 0  # by a task of the last micro-batch, on average
    peak_bytes: int = 0  # by the task that held most
    budget_bytes: int = 0  # of each
    algorithm: str = ""

    @property
    def hit_ratio(self) -> float:
        return self.front_hits / self.rows_in if self.rows_in else 0.0

    @classmethod
    def of(cls, done: Sequence[BatchProgress]) -> QueryCounters:
        if not done:
            return cls()
        total = {n: sum(getattr(entry, n) for entry in done) for n in _ADDED}
        most = {n: max(getattr(entry, n) or 0 for entry in done) for n in _LARGEST}
        held = (done[-1].bytes_held or 0) // (done[-1].tasks or 1)
        return cls(**total, **most, bytes_held=held, algorithm=done[0].algorithm or "")


_ADDED = ("rows_in", "front_hits", "pages_read", "bytes_read")
_LARGEST = ("peak_bytes", "budget_bytes")


@dataclass(frozen=True)
class DemoBatch:
    number: int
    rows: int
    seconds: float


@dataclass
class Outcome:
    """What one query did."""

    folder: Path
    batches: list[DemoBatch] = field(default_factory=list)
    progress: dict[int, BatchProgress] = field(default_factory=dict)  # where the join is ours
    plan: str = ""

    def counters(self, last: int | None = None) -> QueryCounters | None:
        """Of all micro-batches so far, or of those up to number `last`; None of Spark's joins."""
        done = [e for n, e in sorted(self.progress.items()) if last is None or n <= last]
        return QueryCounters.of(done) if done else None

    @property
    def median(self) -> float:
        """Seconds per micro-batch, the first two left out."""
        return statistics.median(b.seconds for b in self.batches[WARM_UP:])

    @property
    def rows_in(self) -> int:
        return sum(b.rows for b in self.batches)


Watch = Callable[[Outcome], None]


def read_sales(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream: a file per task slot makes one micro-batch."""
    reader = spark.readStream.schema(SALES_DDL).option("maxFilesPerTrigger", task_slots())
    return reader.parquet(str(folder))


def run_query(frame: DataFrame, folder: Path, checkpoint: Path, watch: Watch) -> Outcome:
    """Run all micro-batches into Parquet files in `folder`, calling `watch` as they go by."""
    outcome = Outcome(folder)
    writer = frame.writeStream.format("parquet").option("path", str(folder))
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            _look(outcome, query)
            watch(outcome)
    except BaseException:
        query.stop()
        raise
    _look(outcome, query)
    watch(outcome)
    outcome.plan = _join_used(query)
    return outcome


def _look(outcome: Outcome, query: StreamingQuery) -> None:
    from ...spark import progress

    outcome.batches = [
        DemoBatch(p["batchId"], p["numInputRows"], p["durationMs"]["triggerExecution"] / 1000)
        for p in query.recentProgress
        if p["numInputRows"]
    ]
    outcome.progress |= {e.batch: e for e in progress(query) if e.batch is not None}


def _join_used(query: StreamingQuery) -> str:
    """What the plan of the last micro-batch did, in a few words."""
    text = io.StringIO()
    with redirect_stdout(text):  # explain() only prints
        query.explain()
    plan = text.getvalue().split("== Initial Plan ==")[0]
    if "MapInArrow" in plan:
        return "one Python stage, no shuffle"
    if "Exchange hashpartitioning" in plan:
        return SORT if "SortMergeJoin" in plan else SHUFFLE
    broadcast = re.search(r"BroadcastHashJoin .*Build(Left|Right)", plan)
    if broadcast:
        return BROADCAST_BATCH if broadcast[1] == "Left" else BROADCAST_TABLE
    join = re.search(r"\w+Join\b", plan)
    return f"uses a {join[0]}" if join else "has a plan that this demo does not know"


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


# --- the same answer from everyone --------------------------------------------------------------


@dataclass(frozen=True)
class Fingerprint:
    """Rows, and the sum of their hashes: the same for the same rows in any order."""

    rows: int
    checksum: int


def fingerprint(spark: SparkSession, folder: Path) -> Fingerprint:
    from pyspark.sql import functions as F

    frame = spark.read.parquet(str(folder))
    row_hash = F.xxhash64(*sorted(frame.columns)).cast("decimal(38,0)")
    found = frame.agg(F.count(F.lit(1)), F.sum(row_hash)).first()
    assert found is not None  # an aggregate without groups has exactly one row
    return Fingerprint(int(found[0]), int(found[1] or 0))


def samples(spark: SparkSession, folder: Path, count: int) -> list[dict[str, Any]]:
    """The first sales as they stand in the warehouse."""
    frame = spark.read.parquet(str(folder)).orderBy("sale_id").limit(count)
    return [row.asDict() for row in frame.collect()]


@contextmanager
def spark_failures(log: Path) -> Iterator[None]:
    """A failure of Spark in one line, and where the rest is."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        own = [line for line in lines if line.startswith("semistream.errors.")]
        said = (own or lines or [type(error).__name__])[0]
        raise SemiStreamError(f"Spark failed: {said[:500]} (its log: {log})") from error
