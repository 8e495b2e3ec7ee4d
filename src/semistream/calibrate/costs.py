"""What the processor takes for each operation of a join, from short joins that really run.

    tables of two sizes x memory x skew x every algorithm
      ──run──> seconds of the processor, and counters: rows, hits, pages, steps, pieces
      ──predict.operations──> how often each operation was done, on how many bytes
      ──least squares, nothing below zero──> seconds per operation, by the bytes it works on

No operation is timed alone: that would leave out what it does to the caches of the others. Seconds
are those of this process (`time.process_time`), so that a busy machine disturbs less.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BudgetError, SpecError
from ..join import SemiStreamJoin
from ..machine import DEFAULT_MACHINE, Points
from ..master import Store
from ..master.facts import facts
from ..model import zipf
from ..model.family import DiskWork
from ..predict import Operation, operations
from ..spec import ALGORITHMS, Params, Workload
from ..stats import Stats
from ..work import Case, Work
from .fitting import Deadline

Floats = NDArray[np.float64]
KEY = "key"
ROWS = (100_000, 2_000_000)  # of the masters: one that is near the processor, one that is not
MEMORY = (0.01, 0.04, 0.2)  # shares of the master
SKEWS = (0.0, 0.7, 1.0, 1.3)
BATCH = 10_000
BATCHES = 120
UNIT = 1 << 20  # up to about so many bytes an operation costs the same
SIZES = tuple(float(UNIT << i) for i in range(0, 17, 2))  # 1 MB to 64 GB
SIZED = (
    "ask",
    "hit",
    "link scan",
    "link seek",
    "find",
    "look",
    "scan",
    "seek",
)  # cost more on more bytes
PRIOR = 0.05  # weight of what is usual, beside samples of weight 1
WARM, TIMED = 0.12, 0.08  # seconds of the processor, per join
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Sample:
    """One join: what it did per stream row, and how long that took."""

    algorithm: str
    operations: tuple[Operation, ...]
    seconds: float  # of the processor, per stream row


@dataclass(frozen=True)
class Costs:
    """Seconds per operation, and how far the samples are from what these add up to."""

    points: Mapping[str, Points]
    error: Mapping[str, float]  # by algorithm: median of the relative error
    samples: int


def measure_costs(seconds: float = 40.0, progress: Progress | None = None, seed: int = 0) -> Costs:
    """Run joins for about so long, and find what each operation costs."""
    deadline = Deadline(seconds, time.perf_counter)
    with tempfile.TemporaryDirectory(prefix="semistream-calibrate-") as folder:
        samples = list(_samples(Path(folder), deadline, seconds, progress, seed))
    met = {sample.algorithm for sample in samples}
    if met != set(ALGORITHMS):
        raise SpecError(
            f"{seconds:g} seconds were too short to measure {len(ALGORITHMS) - len(met)} of "
            f"{len(ALGORITHMS)} algorithms; give more, or wait until the machine is less busy"
        )
    return fit(samples)


# --- joins --------------------------------------------------------------------------------------


def _samples(
    folder: Path, deadline: Deadline, seconds: float, progress: Progress | None, seed: int
) -> Iterator[Sample]:
    rng = np.random.default_rng(seed)
    stores = [_store(folder / str(rows), rows, rng) for rows in ROWS]
    _compile(stores[0])
    streams = {(s, k): _stream(rng, s.describe().rows, k) for s, k in product(stores, SKEWS)}
    for at, (store, share, skew, name) in enumerate(_cells(stores, rng)):
        if not deadline.allows(2 * (WARM + TIMED)):
            return
        if progress is not None:
            progress(1 - deadline.left / seconds, f"{name}, join {at + 1}")
        memory = int(share * store.describe().bytes)
        try:
            params = _some_params(name, rng, store.describe().max_page_bytes)
            join = SemiStreamJoin(store, KEY, algorithm=name, memory=memory, params=params)
        except BudgetError:
            continue
        for one in (skew,) if isinstance(skew, float) else skew:
            sample = _sample(join, one, streams[store, one])
            if sample is not None:
                yield sample


def _cells(
    stores: Sequence[Store], rng: np.random.Generator
) -> Iterator[tuple[Store, float, float | tuple[float, ...], str]]:
    """Each algorithm once, then each once more, and so on: whenever time is up, all were met."""
    names = [name for name in ALGORITHMS if name != "memory"]
    places = list(product(range(len(stores)), MEMORY, SKEWS))
    orders = {name: rng.permutation(len(places)) for name in names}
    for turn in range(len(places)):
        if turn < len(stores):
            yield stores[turn], 6.0, SKEWS, "memory"
        for name in names:
            store, share, skew = places[orders[name][turn]]
            yield stores[store], share, skew, name


def _some_params(name: str, rng: np.random.Generator, page: int) -> Params:
    """Any knobs: what always goes together cannot be told apart. Scans of a map mostly read as much
    as they can, which is what they do by themselves."""
    share = float(rng.choice([0.1, 0.35, 0.7]))
    scans = ALGORITHMS[name].disk == "scan"
    pages = int(rng.choice([0, 0, 0, 64] if scans else [1, 4, 16]))
    return Params(front_share=share, read_bytes=pages * (page + 1024) or None)


def _compile(store: Store) -> None:
    """Kernels are compiled at their first use, which must not be timed."""
    stream = _stream(np.random.default_rng(0), store.describe().rows, 1.0)
    for name in ALGORITHMS:
        memory = "600%" if name == "memory" else "20%"
        join = SemiStreamJoin(store, KEY, algorithm=name, memory=memory)
        for at in (0, 1_000):
            _read(join.push(stream.slice(at, 1_000)))
        _read(join.drain())


def _sample(join: SemiStreamJoin, skew: float, stream: pa.RecordBatch) -> Sample | None:
    """Push batches until the join is warm, then others that are timed."""
    batches = iter([stream.slice(at, BATCH) for at in range(0, len(stream), BATCH)])
    _push_for(WARM, join, batches)
    before, begun = join.stats, time.process_time()
    _push_for(TIMED, join, batches)
    spent, after = time.process_time() - begun, join.stats
    engine = join._engine
    assert engine is not None
    known = Workload(skew, row_bytes=20, columns=3, batch_rows=BATCH)
    case = Case(join.algorithm, facts(join.master), known, join.budget, join.params)
    block = max(1, engine.split.read // max(1, case.master.max_page_bytes))
    work = work_done(case, before, after, block)
    if work is None:
        return None
    work = replace(work, asleep=engine.front.asleep)
    rows = after.rows_in - before.rows_in
    return Sample(join.algorithm.name, tuple(operations(case, engine.split, work)), spent / rows)


def _push_for(seconds: float, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch]) -> None:
    """Push batches for so long, and then until a step of the disk phase has just been made: a sweep
    answers everything at once, and must not count or not by chance."""
    begun = time.process_time()
    for batch in batches:
        steps = join.stats.steps
        _read(join.push(batch))
        spent = time.process_time() - begun
        stepped = join.stats.steps > steps or join.algorithm.disk == "none"
        if spent > seconds and (stepped or spent > 3 * seconds):
            return


def work_done(case: Case, before: Stats, after: Stats, block: int) -> Work | None:
    """What a join did between two counts, per stream row; None: nothing. `block`: pages of what
    one lookup reads."""
    rows = after.rows_in - before.rows_in
    if rows == 0:
        return None
    hits = (after.front_hits - before.front_hits) / rows
    pages = (after.pages_read - before.pages_read) / rows
    per_page = case.master.rows / max(1, case.master.pages)
    probed = pages * per_page if case.algorithm.disk in ("scan", "seek") else 0.0
    reads = pages / block if case.algorithm.disk == "seek" else pages
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


def _stream(rng: np.random.Generator, rows: int, skew: float) -> pa.RecordBatch:
    """Keys by popularity, the popular ones anywhere in the master."""
    n = BATCHES * BATCH
    ranks = np.minimum(rows - 1, np.asarray(zipf.top_for(rng.random(n), rows, skew), np.int64))
    keys = np.random.default_rng(rows).permutation(rows)[ranks]
    quantity = rng.integers(1, 10, n).astype(np.int32)
    return pa.record_batch({KEY: keys, "quantity": quantity, "sold": rng.integers(0, 1 << 50, n)})


# --- from samples to costs ----------------------------------------------------------------------


def fit(samples: Sequence[Sample]) -> Costs:
    """Costs whose sums come closest to the samples, all counting by their relative error."""
    names = sorted({o.name for s in samples for o in s.operations})
    terms = [(name, False) for name in names] + [(name, True) for name in names if name in SIZED]
    place = {term: i for i, term in enumerate(terms)}
    sides = np.zeros((len(samples), len(terms)))
    for row, sample in enumerate(samples):
        for done in sample.operations:
            sides[row, place[done.name, False]] += done.count / sample.seconds
            if done.name in SIZED:
                far = done.count * np.log2(1 + done.size / UNIT)
                sides[row, place[done.name, True]] += far / sample.seconds
    usual = np.array([_usual(name, far) for name, far in terms])
    # What the samples cannot tell stays near what is usual: each cost counts as a weak sample.
    prior = PRIOR * np.diag(1 / usual)
    wanted = np.concatenate([np.ones(len(samples)), np.full(len(terms), PRIOR)])
    found = not_below_zero(np.concatenate([sides, prior]), wanted)
    error = np.abs(sides @ found - 1)
    by_name = {
        name: float(
            np.median([e for e, s in zip(error, samples, strict=True) if s.algorithm == name])
        )
        for name in dict.fromkeys(s.algorithm for s in samples)
    }
    points = {
        name: _points(found[place[name, False]], found[place[name, True]] if name in SIZED else 0.0)
        for name in names
    }
    return Costs(points, by_name, len(samples))


def _usual(name: str, far: bool) -> float:
    """The cost of an operation where nothing was measured: near the processor, or what each
    doubling of the table adds."""
    near = DEFAULT_MACHINE.cost(name, float(UNIT))
    if not far:
        return near
    large = float(UNIT << 10)
    return max(0.01 * near, (DEFAULT_MACHINE.cost(name, large) - near) / 10)


def _points(near: float, far: float) -> Points:
    if far == 0:
        return ((SIZES[0], float(near)),)
    return tuple((size, float(near + far * np.log2(1 + size / UNIT))) for size in SIZES)


def not_below_zero(sides: Floats, wanted: Floats, rounds: int = 3_000) -> Floats:
    """The x >= 0 that brings sides @ x closest to `wanted`: one coordinate after another."""
    scale = np.maximum(np.abs(sides).max(axis=0), 1e-300)
    sides = sides / scale
    products, target = sides.T @ sides, sides.T @ wanted
    diagonal = np.diag(products) + 1e-12
    x = np.zeros(len(target))
    for _ in range(rounds):
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (target[i] - products[i] @ x) / diagonal[i])
    return np.asarray(x / scale, np.float64)
