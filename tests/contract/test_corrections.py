"""Where the published algorithms lose rows, slots or time, ours must not.

Each test says how the join as printed fails it. `docs/algorithms.md` has the same list; what is
about the cache is in tests/front/test_cache.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.disk.backlog import Links
from semistream.master.table import TableMaster
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.sample_data import WAITING, build, products

SCANS = [a.name for a in ss.ALGORITHMS.values() if a.disk == "scan"]
SEEKS = [a.name for a in ss.ALGORITHMS.values() if a.disk == "seek"]
LEARNING = [a.name for a in ss.ALGORITHMS.values() if a.front in ("groups", "pinned")]


def ids(keys: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "n": np.arange(len(keys))})


def free(join: ss.SemiStreamJoin) -> tuple[int, int]:
    """Free slots, and rows that are taken in before the next step."""
    assert join._engine is not None
    assert join._engine.phase is not None
    phase = join._engine.phase
    return phase.parts.backlog.free_rows, phase.room()


def steps(join: ss.SemiStreamJoin, most: int) -> Iterator[pa.RecordBatch]:
    """At most so many steps: a join that never ends fails here instead of hanging."""
    for _ in range(most):
        if join.stats.waiting:
            yield from join.step()


# --- 1: keys that the master does not have ------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "pread"])
@pytest.mark.parametrize("algorithm", WAITING)
def test_orphans_free_their_slots(algorithm, kind, tmp_path) -> None:
    """As printed the slots of an unknown key never come back (CHYBRIDJOIN, lines 8 to 10), or the
    same oldest key is looked up for ever (X-HYBRIDJOIN has no such case)."""
    master = build(kind, products(range(0, 600, 2)), "id", tmp_path)
    params = ss.Params(front_share=0.0)
    schema = ids([]).schema
    with ss.SemiStreamJoin(
        master, "id", "anti", None, algorithm, "300kB", params, stream_schema=schema
    ) as join:
        room = free(join)
        for first in (1, -99, 601):  # between two keys, below and above all of them
            keys = [first + 2 * (i % 40) for i in range(120)]
            out = list(join.push(ids(keys)))
            out += steps(join, most=400)
            assert sum(map(len, out)) == 120
            assert (join.stats.waiting, free(join)) == (0, room)
        assert join.stats.rows_unmatched == 360


# --- 2: rows of one key -------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", SCANS)
def test_newer_rows_of_a_key_stay(algorithm) -> None:
    """Expiry by key takes the newer rows of that key along: they met no page with their match."""
    table = wide_pages(12)
    join = scan_join(TableMaster(table, "id", page_rows=1), 2, algorithm)
    old, new = ids([0, 0]), ids([0, 0, 0])
    out = [*join.push(old), *join.step(), *join.push(new)]
    assert sum(map(len, out)) == 2, "key 0 is on the first page, which the newer rows missed"
    while join.stats.waiting == 5:
        out += join.step()
    assert (join.stats.waiting, join.stats.rows_matched) == (3, 2), "only the old ones have gone"
    out += join.drain()
    stream = pa.Table.from_batches([old, new])
    assert_same_rows(out, oracle(stream, table, "id", "left"))


@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin", "sweepjoin", "ssij"])
def test_a_hot_key_costs_no_more_than_many_keys(algorithm) -> None:
    """10^5 rows of one key: a list that is walked for every row that comes takes 5 x 10^9 steps,
    some hundred times as long as 10^5 rows of 10^5 keys."""
    rows = 100_000
    master = TableMaster(pa.table({"id": range(rows), "v": range(rows)}), "id")
    taken = {}
    for name, keys in (("many", np.arange(rows)), ("hot", np.full(rows, 7))):
        best = 60.0
        for _ in range(2):
            join = ss.SemiStreamJoin(
                master, "id", "semi", None, algorithm, "64MB", ss.Params(front_share=0.0)
            )
            order = np.random.default_rng(1).permutation(rows)
            batch = pa.record_batch({"id": keys[order]})
            start = time.process_time()
            list(join.push(batch.slice(0, rows // 2)))
            list(join.step())  # the two halves leave a scan at different times
            list(join.push(batch.slice(rows // 2)))
            list(join.drain())
            best = min(best, time.process_time() - start)
            assert join.stats.rows_matched == rows
        taken[name] = best
    assert taken["hot"] < 10 * taken["many"] + 0.1, taken


def test_any_row_of_a_hot_key_leaves_in_constant_time() -> None:
    """The same for single rows, in any order: whoever looks for each from its key's first row on
    takes 2 x 10^9 steps."""
    rows = 100_000
    slots = np.random.default_rng(2).permutation(rows).astype(np.int32)
    taken = {}
    for name in ("compiled", "many", "hot"):
        codes = np.full(rows, 7) if name == "hot" else np.arange(rows)
        links = Links(rows, codes)
        start = time.process_time()
        links.add(np.arange(rows, dtype=np.int32))
        links.remove(slots)
        taken[name] = time.process_time() - start
        assert (links.head == -1).all()
    assert taken["hot"] < 10 * taken["many"] + 0.1, taken


# --- 3: every page, once ------------------------------------------------------------------------


def wide_pages(rows: int) -> pa.Table:
    """Rows so wide that a buffer's size decides how many of them one read brings."""
    return pa.table({"id": range(rows), "t": [f"{i}" + "x" * 4000 for i in range(rows)]})


def scan_join(
    master: TableMaster, pages: int, algorithm: str, how: str = "left"
) -> ss.SemiStreamJoin:
    """A join that reads so many pages at a time."""
    size = pages * master.describe().max_page_bytes + 1100
    params = ss.Params(read_bytes=size, front_share=0.0)
    return ss.SemiStreamJoin(master, "id", how, None, algorithm, "4MB", params)


@pytest.mark.parametrize("changed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("pages", [1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", SCANS)
def test_every_row_meets_every_page_once(algorithm, pages, changed) -> None:
    """CMESHJOIN, line 22, lets the oldest w go after each read, whether Q is full or not: they met
    one partition. MESHJOIN lets them go after k reads: with a buffer that does not divide R, or
    that changes, they miss pages or meet some twice."""
    table = wide_pages(11)
    master = TableMaster(table, "id", page_rows=1)
    stream = pa.table({"id": [i % 13 for i in range(52)], "n": range(52)})
    parts = [stream.slice(13 * i, 13).to_batches()[0] for i in range(4)]
    join, out = scan_join(master, pages, algorithm), []
    for part in parts[:2]:
        out += [*join.push(part), *join.step()]
    other = scan_join(master, changed, algorithm)  # the same rows, with another buffer
    other.restore(join.snapshot())
    for part in parts[2:]:
        out += [*other.push(part), *other.step()]
    out += other.drain()
    assert_same_rows(out, oracle(stream, table, "id", "left"))


@pytest.mark.parametrize("algorithm", SCANS)
def test_a_row_waits_for_one_cycle(algorithm) -> None:
    """Neither less (as in CMESHJOIN's line 22) nor more: 11 pages by twos are 6 reads, the last of
    them short."""
    join = scan_join(TableMaster(wide_pages(11), "id", page_rows=1), 2, algorithm, "inner")
    assert list(join.push(ids([10]))) == []
    for read in range(6):
        assert join.stats.waiting == 1, f"after {read} reads"
        out = list(join.step())
    assert (sum(map(len, out)), join.stats.waiting) == (1, 0)


# --- 4: capacity --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "pread"])
@pytest.mark.parametrize("algorithm", WAITING)
def test_capacity_comes_back(algorithm, kind, tmp_path) -> None:
    """CHYBRIDJOIN, lines 5 and 6, forget the free slots that a short load did not use, for ever;
    X-HYBRIDJOIN, line 4, takes nothing until w rows are there."""
    master = build(kind, products(range(300)), "id", tmp_path)
    params = ss.Params(front_share=0.0)
    schema = ids([]).schema
    with ss.SemiStreamJoin(
        master, "id", "left", None, algorithm, "200kB", params, stream_schema=schema
    ) as join:
        room, answered = free(join), 0
        for i in range(40):  # short loads: far fewer rows than there are slots
            assert free(join)[1] >= 3, "the next push would wait for ever"
            answered += sum(map(len, join.push(ids([i, 900, i + 1]))))
            assert join.stats.waiting > 0 or answered == join.stats.rows_in, "not taken in"
            answered += sum(map(len, join.step()))
        answered += sum(map(len, steps(join, most=400)))
        assert (answered, join.stats.waiting, free(join)) == (120, 0, room)
        many = ids([i % 310 for i in range(3 * room[0])])
        assert sum(map(len, join.push(many))) + sum(map(len, join.drain())) == len(many)
        assert free(join) == room


# --- 7: several master rows of one key ----------------------------------------------------------


@pytest.mark.parametrize("page_rows", [1, 2, 3])
@pytest.mark.parametrize("algorithm", LEARNING)
def test_groups_are_cached_whole(algorithm, page_rows) -> None:
    """A cache of tuples answers a key with one of its rows; a row that leaves at its first match
    misses the others. Groups end and begin at every place of a page here."""
    for seed in range(6):
        rng = random.Random(seed)
        table = products([k for k in range(40) for _ in range(rng.randint(1, 9))])
        master = TableMaster(table.select(["id", "price"]), "id", page_rows)
        keys = [rng.choice([3, 4, 5, rng.randrange(44)]) for _ in range(1_500)]
        stats = check_join(
            master,
            pa.table(ids(keys)),
            on="id",
            algorithm=algorithm,
            memory=rng.choice([60_000, 80_000, 120_000]),
            params=ss.Params(threshold=1, front_share=0.6),
            table=table.select(["id", "price"]),
            rng=seed,
        )
        assert stats.rows_matched > 1_000


def test_groups_of_a_master_in_any_order(tmp_path) -> None:
    """Rows of a key may be anywhere: a scan knows a group after it has collected a whole cycle."""
    table = products([k for k in range(60) for _ in range(1 + k % 5)])
    rng = random.Random(4)
    master = build("unsorted", table, "id", tmp_path)
    keys = [rng.choice([3, 4, 5, rng.randrange(66)]) for _ in range(4_000)]
    stats = check_join(
        master,
        pa.table(ids(keys)),
        on="id",
        how="left",
        algorithm="cmeshjoin",
        memory=600_000,
        params=ss.Params(threshold=1, piece_rows=50, read_bytes=1),
        table=table,
    )
    assert stats.front_hits > 0
