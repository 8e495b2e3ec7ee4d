"""One cell of the core benchmark, run in a process of its own so that its memory can be seen.

A cell pushes a stream through one join: first rows that only warm it up (the window of a scan must
be full), then segments that are timed, every output column built. Rows answered per second count;
only at the end what still waits is drained, and the number of matches checked. The parent gives it
the streams as mapped Arrow files, so that they do not count as this process's memory.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.running import answered, push, read_all, rss_anon
from benchmarks.lib.stores import BATCH


@dataclass(frozen=True)
class Cell:
    store: Path
    stream: Path  # Arrow file: warm-up rows, then timed rows
    key: str
    algorithm: str
    memory: str
    io: str  # map | pread
    cold: bool
    warm_rows: int
    timed_rows: int
    segments: int


def run(cell: Cell) -> dict[str, Any]:
    batches = batches_of(cell.stream)
    warm = [b for i, b in enumerate(batches) if (i + 1) * BATCH <= cell.warm_rows]
    timed = batches[len(warm) : len(warm) + max(1, cell.timed_rows // BATCH)]
    if cell.cold:
        forget(cell.store)
    store = ss.Store.open(cell.store, io=cell.io)
    baseline = _baseline(store, cell, batches[0])
    join = ss.SemiStreamJoin(store, cell.key, algorithm=cell.algorithm, memory=cell.memory)
    if not cell.cold:
        push(join, warm)
    before, rates, peak = join.stats, [], rss_anon()
    reached = answered(before)
    for part in np.array_split(
        np.arange(len(timed)), 1 if cell.cold else min(cell.segments, len(timed))
    ):
        start = time.perf_counter()
        push(join, [timed[i] for i in part])
        seconds, done = time.perf_counter() - start, answered(join.stats)
        rates.append((done - reached) / seconds)
        reached, peak = done, max(peak, rss_anon())
    after = join.stats
    rows = after.rows_in - before.rows_in
    read_all(join.drain())
    last = join.stats
    return {
        "rates": rates,
        "hit_ratio": (after.front_hits - before.front_hits) / rows,
        "pages_per_row": (after.pages_read - before.pages_read) / rows,
        "bytes_per_row": (after.bytes_read - before.bytes_read) / rows,
        "budget_bytes": after.budget_bytes,
        "peak_bytes": after.peak_bytes,
        "rss_above_baseline": max(0, peak - baseline),
        "matched": last.rows_matched,
        "stream_rows": last.rows_in,
    }


def batches_of(path: Path) -> list[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(i) for i in range(reader.num_record_batches)]


def _baseline(store: ss.Store, cell: Cell, batch: pa.RecordBatch) -> int:
    """Compile and touch everything with a tiny join first, so that code does not count as data."""
    tiny = pa.Table.from_batches([next(store.batches())])
    some = batch.slice(0, 100)
    memory = "64MB" if cell.algorithm == "memory" else "8MB"
    for _ in ss.join_batches([some], ss.open_master(tiny, cell.key), cell.key,
                             algorithm=cell.algorithm, memory=memory):  # fmt: skip
        pass
    return rss_anon()


def forget(store: Path) -> None:
    """Ask the system to drop the store's files from its page cache."""
    os.sync()
    for file in (store / "data").iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def probe_rate(store: Path, waiting: int, skew: float) -> list[float]:
    """Master rows per second that meshjoin probes against a window of `waiting` stream rows,
    output included: the second and later rounds of its cycle, so every page was checked before."""
    master = ss.Store.open(store)
    info = master.describe()
    stream = workload.stream_table(np.random.default_rng(5), waiting, info.rows, skew)
    join = ss.SemiStreamJoin(
        master,
        workload.KEY,
        algorithm="meshjoin",
        memory=_memory_for(waiting, stream),
        stream_schema=stream.schema,
    )
    master.touch(np.ones(info.pages, np.bool_))
    window = _window(join)
    for batch in stream.to_batches(max_chunksize=BATCH):
        own = batch.take(pa.array(np.arange(len(batch))))
        window.admit(own, np.asarray(own.column(workload.KEY)))
    rates = []
    while join.stats.waiting:  # one cycle, in about seven parts
        pages, start = join.stats.pages_read, time.perf_counter()
        while join.stats.waiting and join.stats.pages_read - pages < info.pages / 7:
            for _ in join.step():
                pass
        seconds = time.perf_counter() - start
        rates.append((join.stats.pages_read - pages) / info.pages * info.rows / seconds)
    return rates[1:] or rates


def _memory_for(waiting: int, stream: pa.Table) -> int:
    """A budget whose window holds about `waiting` rows."""
    return waiting * (int(stream.nbytes) // len(stream) + 110) + (16 << 20)


def _window(join: ss.SemiStreamJoin) -> Any:
    assert join._engine is not None
    return join._engine.phase  # the benchmark fills the window at once instead of over a cycle
