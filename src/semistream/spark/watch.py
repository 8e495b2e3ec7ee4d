"""watch: a line per micro-batch, in the log and in a file."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from ..memory import show_bytes
from .progress import BatchProgress, entries_of

LOG = logging.getLogger("semistream.spark")


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
