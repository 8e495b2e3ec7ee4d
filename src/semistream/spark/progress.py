"""progress: what enrich did in each micro-batch."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from ..budget import show_bytes
from ..errors import SpecError
from .frames import is_connect, is_stream
from .reports import Book, Found, Reports
from .task import PHASES, Counting

LOG = logging.getLogger("semistream.spark")
_MARK = "semistream"  # begins the names of metrics that Spark Connect observes for us

_BOOK = Book()
_SINKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # SparkContext to its accumulator
_CALLS: WeakKeyDictionary[DataFrame, str] = WeakKeyDictionary()
_NUMBERS = itertools.count()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Seconds:
    """Where the tasks' time went, all tasks together. Of several masters in one call the first has
    `open` and `input` of all, the last `output`."""

    open: float = 0.0  # opening and warming the joins, moving them to another version
    input: float = 0.0  # waiting for Spark's rows
    front: float = 0.0  # taking rows in, asking the front stage, building its output
    disk: float = 0.0  # the disk phase
    output: float = 0.0  # waiting for Spark to take rows


@dataclass(frozen=True)
class BatchProgress:
    """What one micro-batch did with one master, all its tasks together. None: not known, which
    with Spark Connect is everything but `rows_in` and `rows_out`."""

    query: str | None  # its id; None outside of streaming queries
    batch: int | None  # number of the micro-batch
    call: str  # of enrich: tells two joins with one master in the same query apart
    position: int  # of the join, where a call has several masters
    master: str
    rows_in: int | None = None
    rows_matched: int | None = None
    rows_unmatched: int | None = None
    rows_out: int | None = None
    front_hits: int | None = None  # rows answered from memory
    pages_read: int | None = None
    bytes_read: int | None = None
    bytes_held: int | None = None  # at the end of the tasks, all of them together
    peak_bytes: int | None = None  # the most that one join has held since it was made
    budget_bytes: int | None = None  # of each
    algorithm: str | None = None
    version: int | None = None  # of the master
    version_age: float | None = None  # seconds from its publication to the micro-batch
    tasks: int | None = None
    seconds: Seconds | None = None


def progress(source: DataFrame | StreamingQuery) -> list[BatchProgress]:
    """What enrich did in the last 100 micro-batches of a query, oldest first: one entry for each
    micro-batch and master. Or what it did for the batch DataFrame that it returned."""
    if isinstance(source, DataFrame):
        call = _CALLS.get(source)
        if call is None:
            raise SpecError(
                "progress() knows streaming queries, and batch DataFrames as enrich() returned "
                "them: not those made from them, and none with Spark Connect"
            )
        return _entries(None, _BOOK.of_call(call))
    if not hasattr(source, "recentProgress"):
        raise SpecError(
            f"progress() takes a StreamingQuery or what enrich() returned, not "
            f"{type(source).__name__}"
        )
    if is_connect(source):
        return [entry for each in source.recentProgress for entry in _observed(each)]
    return _entries(source.id, _BOOK.of_query(source.id))


def _entries(query: str | None, found: Found) -> list[BatchProgress]:
    entries = []
    for batch, call, position, counters in found:
        seconds = Seconds(**{phase: counters[phase] for phase in PHASES})
        known = {n: v for n, v in counters.items() if n not in PHASES}
        entries.append(BatchProgress(query, batch, call, position, seconds=seconds, **known))
    return entries


# --- for enrich -----------------------------------------------------------------------------------


class CallCounters:
    """Of one call of enrich. Its tasks report by `counting`. Spark Connect has no accumulators:
    there Spark itself observes the rows before and after the stage, of streams."""

    def __init__(self, df: DataFrame, masters: Sequence[str]) -> None:
        connect, streams = is_connect(df), is_stream(df)
        self._call, self._masters = f"{next(_NUMBERS):06}-{uuid.uuid4().hex[:8]}", tuple(masters)
        self._observes, self._batch = connect and streams is True, not connect and not streams
        self.counting = None if connect else Counting(self._call, self._masters, _sink(df))

    def before(self, df: DataFrame) -> DataFrame:
        """What the stage is to get."""
        return self._observed(df, "rows_in", 0) if self._observes else df

    def after(self, df: DataFrame) -> DataFrame:
        """What enrich is to return."""
        if self._batch:
            _CALLS[df] = self._call
        return self._observed(df, "rows_out", len(self._masters) - 1) if self._observes else df

    def _observed(self, df: DataFrame, what: str, position: int) -> DataFrame:
        from pyspark.sql.connect import functions as F

        name = f"{_MARK}:{self._call}:{position}:{what}:{self._masters[position]}"
        return df.observe(name, F.count(F.lit(1)).alias("rows"))


def _sink(df: DataFrame) -> Any:
    context = df.sparkSession.sparkContext
    with _LOCK:
        if context not in _SINKS:
            _SINKS[context] = context.accumulator(_BOOK, Reports())  # type: ignore[arg-type]
        return _SINKS[context]


def entries_of(done: Any) -> list[BatchProgress]:
    """Of the micro-batch that a StreamingQueryProgress is about."""
    query, found = str(done.id), _observed(done)
    return found or _entries(query, _BOOK.of_query(query, done.batchId))


def _observed(done: Any) -> list[BatchProgress]:
    """What Spark observed for us."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for name, row in (done.observedMetrics or {}).items():
        mark, *words = name.split(":", 4)
        if mark == _MARK and len(words) == 4:
            call, position, what, master = words
            found.setdefault((call, int(position), master), {})[what] = _rows(row)
    return [
        BatchProgress(str(done.id), done.batchId, call, position, master, **rows)
        for (call, position, master), rows in sorted(found.items())
    ]


def _rows(row: Row) -> int:
    """The one value of an observed metric. In `recentProgress` PySpark 4 makes it a row of the
    row's JSON, which has a list of values and their schema."""
    known = row.asDict()
    return int(known["values"][0] if "values" in known else known["rows"])


# --- watch: a line per micro-batch, in the log and in a file -----------------------------------


def watch(
    spark: SparkSession, log: bool = True, file: str | os.PathLike[str] | None = None
) -> StreamingQueryListener:
    """From now on, a line per micro-batch and master in the log "semistream.spark" and, as JSON,
    at the end of `file`. End it with `spark.streams.removeListener(...)` of what this returns."""
    listener = _Watch(log, None if file is None else os.fspath(file))
    spark.streams.addListener(listener)
    return listener


class _Watch(StreamingQueryListener):
    """Whatever goes wrong with the file, the query must go on."""

    def __init__(self, log: bool, file: str | None) -> None:
        self._log, self._file, self._failed = log, file, False

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        done = event.progress
        entries = entries_of(done)
        if self._log:
            for entry in entries:
                LOG.info("%s", line(entry, done.name))
        if self._file is not None and entries:
            self._append(
                [{"time": done.timestamp, "name": done.name, **asdict(e)} for e in entries]
            )

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            if not self._failed:
                LOG.warning(
                    "%s cannot be written (%s): its lines are lost until it can; make room, or "
                    "watch() with another file",
                    self._file,
                    error.strerror,
                )
            self._failed = True


def line(entry: BatchProgress, name: str | None = None) -> str:
    """One line for people."""
    master = entry.master
    if entry.version is not None:
        age = "" if entry.version_age is None else f", {entry.version_age:.0f} s old"
        master += f" (version {entry.version}{age})"
    words = [f"{name or entry.query} batch {entry.batch}: {master}"]
    counts = {"rows in": entry.rows_in, "matched": entry.rows_matched}
    counts |= {"unmatched": entry.rows_unmatched, "out": entry.rows_out, "hits": entry.front_hits}
    words += [f"{count} {what}" for what, count in counts.items() if count is not None]
    if entry.seconds is not None:
        times = ", ".join(f"{n} {s:.3f}" for n, s in asdict(entry.seconds).items())
        words += [
            f"{entry.pages_read} pages ({show_bytes(entry.bytes_read or 0)})",
            f"{show_bytes(entry.bytes_held or 0)} held",
            f"{entry.tasks} tasks, seconds: {times}",
        ]
    return ", ".join(words)
