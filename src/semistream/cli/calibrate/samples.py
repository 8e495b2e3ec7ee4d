"""Short joins that really run: what each did per stream row, and the seconds that it took.

    tables of two sizes, mapped and read x memory x skew x every algorithm with a cost law
      ──run──> seconds of the processor, and counters: rows, hits, pages, steps, pieces
      ──predict.operations──> how often each operation was done, on how many bytes

Seconds are those of this process (`time.process_time`), so that a busy machine disturbs less.
Without those of reading: what reads cost is measured apart (pages.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import BudgetError
from ...join import SemiStreamJoin, Stats
from ...kernels.arrays import I64
from ...master import Master, Pages, Store, WrappedMaster, facts
from ...planning import Case, Operation, Work, has_law, operations
from ...planning.laws import DiskWork, zipf
from ...spec import ALGORITHMS, Params, Workload
from .fitting import Deadline

KEY = "key"
ROWS = (100_000, 2_000_000)  # of the masters: one that is near the processor, one that is not
MEMORY_SHARES = (0.01, 0.04, 0.2)  # of the master
SKEWS = (0.0, 0.7, 1.0, 1.3)
READ_EVERY = 3  # every so many joins of an algorithm the master is read and not mapped
BATCH, READ_BATCH = 10_000, 1_000  # rows; a join that reads a page for each row is slow
BATCHES = 120
WARM, TIMED = 0.12, 0.08  # seconds of the processor, per join
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Sample:
    """One join: what it did per stream row, and how long that took."""

    algorithm: str
    operations: tuple[Operation, ...]
    seconds: float  # of the processor, per stream row


class ReadApart(WrappedMaster):
    """A master whose pages are read, and how long that took."""

    seconds = 0.0

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        return self._timed(lambda: super(ReadApart, self).scan(start, max_bytes, columns))

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        return self._timed(lambda: super(ReadApart, self).read(numbers, columns))

    def _timed(self, work: Callable[[], Pages]) -> Pages:
        begun = time.process_time()
        pages = work()
        self.seconds += time.process_time() - begun
        return pages


def measured() -> list[str]:
    """Algorithms that costs are measured for: those with a cost law."""
    return [name for name, algorithm in ALGORITHMS.items() if has_law(algorithm)]


def samples_of(
    folder: Path, deadline: Deadline, seconds: float, progress: Progress | None, seed: int
) -> Iterator[Sample]:
    """Join after join until the time is over."""
    rng = np.random.default_rng(seed)
    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(_store(folder / str(rows), rows, rng))) for rows in ROWS
        ]
        streams = {(n, k): _stream(rng, n, k) for n, k in product(ROWS, SKEWS)}
        large = ReadApart(Store.open(folder / str(ROWS[-1]), io="pread"))
        opened.enter_context(closing(large))
        _compile(stores[0])
        _compile(large)
        for at, (master, share, skew, name) in enumerate(_cells(stores, large, rng)):
            if not deadline.allows(2 * (WARM + TIMED)):
                return
            if progress is not None:
                progress(1 - deadline.left / seconds, f"{name}, join {at + 1}")
            join = _join(master, share, name, rng)
            if join is None:
                continue
            for one in (skew,) if isinstance(skew, float) else skew:
                sample = _sample(join, one, streams[master.describe().rows, one])
                if sample is not None:
                    yield sample


def _join(
    master: Master, share: float, name: str, rng: np.random.Generator
) -> SemiStreamJoin | None:
    """A join with any knobs; None where the memory does not do."""
    info = master.describe()
    params = _some_params(name, rng, info.max_page_bytes, master.mapped)
    memory = int(share * info.bytes)
    try:
        return SemiStreamJoin(master, KEY, algorithm=name, memory=memory, params=params)
    except BudgetError:
        return None


def _cells(
    stores: Sequence[Store], read: Master, rng: np.random.Generator
) -> Iterator[tuple[Master, float, float | tuple[float, ...], str]]:
    """Each algorithm once, then each once more, and so on: whenever time is up, all were met."""
    held = [name for name in measured() if ALGORITHMS[name].front_facts.whole]
    names = [name for name in measured() if name not in held]
    places = list(product(stores, MEMORY_SHARES, SKEWS))
    orders = {name: rng.permutation(len(places)) for name in names}
    for turn in range(len(places)):
        if turn < len(stores):
            yield from ((stores[turn], 6.0, SKEWS, name) for name in held)
        for name in names:
            store, share, skew = places[orders[name][turn]]
            yield read if turn % READ_EVERY == 1 else store, share, skew, name


def _some_params(name: str, rng: np.random.Generator, page: int, mapped: bool) -> Params:
    """Any knobs: what always goes together cannot be told apart. Scans of a map mostly read as much
    as they can, which is what they do by themselves."""
    share = float(rng.choice([0.1, 0.35, 0.7]))
    scans = mapped and ALGORITHMS[name].disk_facts.scans
    pages = int(rng.choice([0, 0, 0, 64] if scans else [1, 4, 16]))
    return Params(front_share=share, read_bytes=pages * (page + 1024) or None)


def _compile(master: Master) -> None:
    """Kernels are compiled at their first use, which must not be timed."""
    stream = _stream(np.random.default_rng(0), master.describe().rows, 1.0, 2_000)
    for name in measured():
        whole = ALGORITHMS[name].front_facts.whole
        if whole and not master.mapped:
            continue
        memory = "600%" if whole else "20%"
        join = SemiStreamJoin(master, KEY, algorithm=name, memory=memory)
        for at in (0, 1_000):
            _read(join.push(stream.slice(at, 1_000)))
        _read(join.drain())


def _sample(join: SemiStreamJoin, skew: float, stream: pa.RecordBatch) -> Sample | None:
    """Push batches until the join is warm, then others that are timed."""
    master, size = join.master, BATCH if join.master.mapped else READ_BATCH
    batches = iter([stream.slice(at, size) for at in range(0, len(stream), size)])

    def spent() -> float:
        reading = master.seconds if isinstance(master, ReadApart) else 0.0
        return time.process_time() - reading

    _push_for(WARM, join, batches)
    before, begun = join.stats, spent()
    _push_for(TIMED, join, batches)
    seconds, after = spent() - begun, join.stats
    engine = join._engine
    assert engine is not None
    known = Workload(skew, row_bytes=20, columns=3, batch_rows=size)
    case = Case(join.algorithm, facts(master), known, join.budget, join.params)
    block = max(1, engine.split.read // max(1, case.master.max_page_bytes))
    work = work_done(case, before, after, block)
    if work is None:
        return None
    work = replace(work, asleep=engine.front.asleep)
    rows = after.rows_in - before.rows_in
    return Sample(join.algorithm.name, tuple(operations(case, engine.split, work)), seconds / rows)


def _push_for(seconds: float, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch]) -> None:
    """Push batches for so long, and then until a step of the disk phase has just been made: a sweep
    answers everything at once, and must not count or not by chance."""
    begun = time.process_time()
    for batch in batches:
        steps = join.stats.steps
        _read(join.push(batch))
        spent = time.process_time() - begun
        stepped = join.stats.steps > steps or join.algorithm.front_facts.whole
        if spent > seconds and (stepped or spent > 3 * seconds):
            return


def work_done(case: Case, before: Stats, after: Stats, block: int) -> Work | None:
    """What a join did between two counts, per stream row; None: nothing. `block`: pages of what
    is read at once."""
    rows = after.rows_in - before.rows_in
    if rows == 0:
        return None
    hits = (after.front_hits - before.front_hits) / rows
    pages = (after.pages_read - before.pages_read) / rows
    per_page = case.master.rows / max(1, case.master.pages)
    disk_facts = case.algorithm.disk_facts
    probed = pages * per_page if disk_facts.linked else 0.0
    at_once = disk_facts.blocks or (probed > 0 and not case.master.mapped)
    reads = pages / block if at_once else pages
    disk = DiskWork(reads, pages, pages * case.master.page_bytes, probed, 0.0, reads)
    return Work(
        hits=hits,
        misses=1 - hits,
        pieces=(after.pieces - before.pieces) / rows,
        steps=(after.steps - before.steps) / rows,
        disk=disk,
        cached=max(1.0, zipf.top_for(hits, case.master.rows, case.workload.skew)),
        waiting=after.slots,
        asleep=False,
    )


def _read(output: Iterator[pa.RecordBatch]) -> None:
    for _ in output:
        pass


def _store(path: Path, rows: int, rng: np.random.Generator) -> Store:
    """A master of about 120 bytes a row: eight numbers, two texts, a time."""
    words = pa.array([f"word {i:014d}" for i in range(997)])
    columns = {KEY: np.arange(rows)}
    columns |= {f"n{i}": rng.integers(0, 1 << 40, rows) for i in range(8)}
    texts = {f"t{i}": words.take(pa.array(rng.integers(0, 997, rows))) for i in range(2)}
    time_column = pa.array(rng.integers(0, 1 << 50, rows)).cast(pa.timestamp("us"))
    table = pa.table({**columns, **texts, "at": time_column})
    return Store.create(path, table, KEY)


def _stream(
    rng: np.random.Generator, rows: int, skew: float, n: int | None = None
) -> pa.RecordBatch:
    """Keys by popularity, the popular ones anywhere in the master."""
    n = n or BATCHES * BATCH
    ranks = np.minimum(rows - 1, np.asarray(zipf.top_for(rng.random(n), rows, skew), np.int64))
    keys = np.random.default_rng(rows).permutation(rows)[ranks]
    quantity = rng.integers(1, 10, n).astype(np.int32)
    return pa.record_batch({KEY: keys, "quantity": quantity, "sold": rng.integers(0, 1 << 50, n)})
