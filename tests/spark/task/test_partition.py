"""Which partition a row goes to: balanced, together where it can be, and the same in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lib.workload import zipf_ranks
from semistream.rows.keys import key_coder
from semistream.spark.task.partition import CELLS, Spread, _fill

KEYS = 100_000
PAGES = 1_000
ROWS = 20_000
KEY_SCHEMA = pa.schema([("k", pa.int64())])
Stream = Callable[[np.random.Generator, int], np.ndarray]


def spread(partitions: int, pages: int = PAGES, exact: bool = True) -> Spread:
    cells = min(pages, CELLS * partitions)
    starts = np.arange(cells) * pages // max(cells, 1) * (KEYS // max(pages, 1))
    return Spread(key_coder("k", KEY_SCHEMA, KEY_SCHEMA), partitions, starts, exact)


def hot(share: float) -> Stream:
    def keys(rng: np.random.Generator, rows: int) -> np.ndarray:
        found = rng.integers(0, KEYS, rows)
        found[rng.random(rows) < share] = 777
        return found

    return keys


def rotating(rng: np.random.Generator, rows: int) -> np.ndarray:
    """A thousand keys at a time, others in every map task."""
    return rng.choice(rng.integers(0, KEYS, 1_000), rows)


def rows_of(keys: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    hashes = rng.integers(0, 2**63, len(keys), np.int64).view(np.uint64)
    return keys.astype(np.int64), np.ones(len(keys), np.bool_), hashes


STREAMS: dict[str, Stream] = {
    "uniform": lambda rng, rows: rng.integers(0, KEYS, rows),
    "half": hot(0.5),
    "nine tenths": hot(0.9),
    "all": hot(1.0),
    "zipf 1.2": lambda rng, rows: zipf_ranks(rng, rows, KEYS, 1.2) * 7919 % KEYS,
    "popular keys side by side": lambda rng, rows: zipf_ranks(rng, rows, KEYS, 1.2),
    "rotating": rotating,
    "a range": lambda rng, rows: rng.integers(5_000, 6_000, rows),
    "nearly hot": lambda rng, rows: rng.integers(0, 17, rows) * 5_000,
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("partitions", [2, 4, 8])
def test_no_partition_gets_much_more_than_the_others(name, partitions) -> None:
    for pages in (PAGES, 20, 0):
        for tasks in (1, 100):  # and so many that each has only a few rows for a partition
            rng = np.random.default_rng(tasks)
            counts = np.zeros(partitions)
            for _ in range(tasks):
                keys = STREAMS[name](rng, ROWS // tasks)
                targets = spread(partitions, pages).targets(*rows_of(keys, rng))
                counts += np.bincount(targets, minlength=partitions)
            assert len(counts) == partitions
            assert counts.sum() == ROWS
            assert counts.max() <= 1.3 * np.median(counts), (pages, tasks, counts)


def test_tasks_share_few_pages() -> None:
    """Each page that is needed is needed by one partition, hardly ever by more."""
    for name, most in (("uniform", 1.02), ("half", 1.1), ("zipf 1.2", 1.35), ("rotating", 1.25)):
        rng = np.random.default_rng(3)
        needed = np.zeros((8, PAGES), np.bool_)
        for _ in range(4):
            keys = STREAMS[name](rng, ROWS)
            targets = spread(8).targets(*rows_of(keys, rng))
            needed[targets, keys // (KEYS // PAGES)] = True
        assert needed.sum() <= most * needed.any(0).sum(), name


def test_a_key_that_is_not_hot_goes_to_one_partition() -> None:
    """Where keys are asked for one by one, as of a database, each is asked for once."""
    rng = np.random.default_rng(4)
    pairs: set[tuple[int, int]] = set()
    for _ in range(4):
        keys = STREAMS["uniform"](rng, ROWS)
        targets = spread(4, pages=0).targets(*rows_of(keys, rng))
        pairs |= set(zip(keys.tolist(), targets.tolist(), strict=True))
    assert len(pairs) == len({key for key, _ in pairs})


@given(st.integers(0, 2**32), st.integers(1, 9), st.booleans(), st.booleans())
def test_the_order_and_batches_of_rows_do_not_matter(seed, partitions, exact, indexed) -> None:
    """Spark may run a map task again with its rows in another order: no row may go elsewhere."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(0, 600))
    keys = STREAMS[list(STREAMS)[seed % len(STREAMS)]](rng, rows) if rows else np.zeros(0, np.int64)
    none = rng.random(rows) < 0.1
    table = pa.table(
        {
            # Rows of equal hash: equal rows, or (unless exact) different ones.
            "hash": (np.where(none, -1, keys) * 1_000 + rng.integers(0, 5, rows)) * 7919,
            "k": pa.array(keys, pa.int64(), mask=none),
            "content": np.zeros(rows) if exact else rng.random(rows),
        }
    )
    task = spread(partitions, PAGES if indexed else 0, exact)

    def run(rows: pa.Table) -> Counter:
        size = int(rng.integers(1, 300))
        batches = [b.to_struct_array() for b in rows.to_batches(max_chunksize=size)]
        found = list(task(iter([(b.field("hash"), b.field("k")) for b in batches])))
        assert [len(f) for f in found] == [len(b) for b in batches]
        targets = [t for f in found for t in f.to_pylist()]
        return Counter(zip(*(c.to_pylist() for c in rows.columns), targets, strict=True))

    expected = run(table)
    assert run(table.take(rng.permutation(rows))) == expected


def test_equal_hashes_of_rows_that_may_differ_stay_together() -> None:
    keys = np.repeat(np.arange(3), 100) * 30_000
    hashes = keys.astype(np.uint64) + np.uint64(1)
    args = keys, np.ones(300, np.bool_), hashes
    together = spread(4, exact=False).targets(*args)
    assert all(len(set(together[keys == key])) == 1 for key in np.unique(keys))
    assert np.bincount(spread(4).targets(*args)).tolist() == [75, 75, 75, 75]


def test_keys_that_match_nothing_fill_up() -> None:
    rng = np.random.default_rng(5)
    keys, usable, hashes = rows_of(STREAMS["a range"](rng, ROWS), rng)
    usable[: ROWS // 2] = False
    targets = spread(4).targets(keys, usable, hashes)
    assert np.ptp(np.bincount(targets, minlength=4)) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 200))
def test_filling_up_raises_the_lowest(have, more) -> None:
    before = np.array(have, np.int64)
    after = before + _fill(before, more)
    assert after.sum() == before.sum() + more
    raised = after[after > before]
    assert (after >= before).all()
    assert not len(raised) or raised.max() <= after.min() + 1
