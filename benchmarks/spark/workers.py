"""The Python workers of one measurement: started fresh, watched for memory, ended afterwards.

Watching from outside is the point: what the join says it holds is its own account, RssAnon is the
kernel's. Pages of mapped files are not in it; they belong to the page cache and can be taken back.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

_SAMPLE = 0.05  # seconds between two looks at the known workers: two small reads
_SEARCH = 10  # every so many looks, search the process tree again: some milliseconds
_POOLS = itertools.count()


@dataclass
class WorkerMemory:
    """RssAnon in bytes per worker process: what it was born with, and the most ever seen."""

    start: dict[int, int] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)

    @property
    def largest_start(self) -> int | None:
        return max(self.start.values(), default=None)

    @property
    def largest_peak(self) -> int | None:
        return max(self.peak.values(), default=None)

    @property
    def largest_rise(self) -> int | None:
        """The most that any one worker grew above its own start, imports and compiler included."""
        return max((peak - self.start[pid] for pid, peak in self.peak.items()), default=None)


@contextmanager
def fresh_workers(spark: SparkSession) -> Iterator[WorkerMemory]:
    """Run the body with Python workers of its own, and watch their memory meanwhile.

    Spark keeps one pool of workers per environment, so a variable nobody reads starts a new pool:
    no variant inherits a warm cache or a grown heap from the one before. Afterwards all pools are
    ended instead of idling beside the next measurement, and whoever comes next gets another one.
    """
    _new_pool(spark)
    memory, done = WorkerMemory(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(memory, done), daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()
        _new_pool(spark)
        _end_workers()


def _new_pool(spark: SparkSession) -> None:
    spark.sparkContext.environment["BENCHMARK_POOL"] = str(next(_POOLS))


def _watch(memory: WorkerMemory, done: threading.Event) -> None:
    for look in itertools.count():
        if look % _SEARCH == 0:
            for worker, daemon in workers_of_spark():
                # A worker is a fork of its daemon, so it starts with what the daemon has.
                memory.start.setdefault(worker, _rss_anon(daemon))
        for worker in memory.start:
            memory.peak[worker] = max(_rss_anon(worker), memory.peak.get(worker, 0))
        if done.wait(_SAMPLE):
            return


def workers_of_spark() -> list[tuple[int, int]]:
    """The Python workers below this process, each with the daemon that forked it."""
    found = {process.pid: process for process in _daemons_and_workers()}
    parents = {pid: _parent(process) for pid, process in found.items()}
    return [(pid, parent) for pid, parent in parents.items() if parent and parent in found]


def _daemons_and_workers() -> list[psutil.Process]:
    # A fork keeps its parent's command line: both answer to the same name.
    family = psutil.Process().children(recursive=True)
    return [process for process in family if "pyspark.daemon" in _command(process)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _end_workers() -> None:
    processes = _daemons_and_workers()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(processes, timeout=5)


def _rss_anon(pid: int) -> int:
    """Anonymous resident bytes; 0 when the process has ended, or outside Linux."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("RssAnon:")), None)
    return int(line.split()[1]) * 1024 if line else 0
