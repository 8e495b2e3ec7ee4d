"""Run a join: in a process of its own, with every output row built."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from semistream.join.stats import Stats


def in_fresh_process(work: Callable[[Any], Any], given: Any, start: str = "spawn") -> Any:
    """work(given), in a process that does nothing else; `start`: how Python makes it. The process
    imports the module of `work`, which cannot be a package's `__main__`."""
    with ProcessPoolExecutor(1, multiprocessing.get_context(start)) as pool:
        return pool.submit(work, given).result()


def rss_anon() -> int:
    """Bytes of anonymous memory of this process: what the budget is about."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def push(join: ss.SemiStreamJoin, batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        read_all(join.push(batch))


def read_all(output: Iterator[pa.RecordBatch]) -> None:
    """Have the output built, and throw it away."""
    for _ in output:
        pass


def answered(stats: Stats) -> int:
    return stats.rows_matched + stats.rows_unmatched
