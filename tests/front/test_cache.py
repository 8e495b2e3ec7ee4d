"""The front stage: it keeps what is frequent, forgets what was, and moves its threshold.

Where the papers' cache differs each test says how. That no cache ever shows in a result is tested
with the joins (tests/contract).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget.ledger import Ledger
from semistream.front import Groups
from semistream.front.cache import KeyGroups
from semistream.master.table import TableMaster
from semistream.rows.chunks import Chunks


def group_cache(groups: int, threshold: int = 1) -> tuple[KeyGroups, Chunks]:
    """A front stage for about so many groups of one row, and master rows 0, 1, 2, ..."""
    rows = pa.record_batch({"v": pa.array(range(1 << 15), pa.int64())})
    limit = groups * (16 + 44)
    return KeyGroups(rows.schema, limit, 16, threshold, Ledger(1 << 30)), Chunks.of(rows)


def offer(front: KeyGroups, rows: Chunks, codes: Sequence[int], uses: int) -> None:
    """The disk phase answered these codes, each for so many waiting rows."""
    some = np.asarray(codes, np.int64)
    every = np.ones(len(some), np.int32)
    front.offer(Groups(some, some, every, every * np.int32(uses)), rows)


def cached(front: KeyGroups, codes: Sequence[int]) -> int:
    hits = front.probe(np.asarray(codes, np.int64))
    assert hits is not None
    return int((hits.count > 0).sum())


def test_what_is_less_frequent_never_replaces() -> None:
    """CHYBRIDJOIN, line 20, overwrites the least frequent tuple by any that reached the threshold,
    though it is less frequent than what it replaces."""
    front, rows = group_cache(1_000)
    codes = 0
    while not front.full:
        offer(front, rows, range(codes, codes + 50), uses=60)
        codes += 50
    room = front._segments.lasting  # besides the young, which come and go
    assert cached(front, range(codes)) >= room > 500
    for code in range(20_000, 22_000):
        offer(front, rows, [code], uses=3)
    assert cached(front, range(codes)) == room


@pytest.mark.parametrize("kept", [0, 300])
def test_places_that_came_free_are_filled_again(kept) -> None:
    """Groups leave when their master's rows change or grow too old."""
    front, rows = group_cache(1_000)
    for _ in range(4):
        for first in range(0, 2_000, 50):
            offer(front, rows, range(first, first + 50), uses=5)
    assert front.full
    room, before = front._segments.lasting, front.cached
    assert before >= 0.9 * room
    front.forget(np.arange(kept, 2_000))
    assert front.cached <= kept
    for _ in range(6):
        for first in range(2_000, 4_000, 50):
            offer(front, rows, range(first, first + 50), uses=5)
    assert front.cached >= 0.9 * room


def test_groups_that_come_one_by_one_fill_it() -> None:
    """A segment is made of a few chunks, however small these are."""
    front, rows = group_cache(1_000)
    for _ in range(4):
        for code in range(2_000):
            offer(front, rows, [code], uses=5)
    assert front.cached >= 0.8 * front._segments.segment_groups * 16


def test_equals_leave_evenly() -> None:
    """Where all are asked for alike, the order of the table must not decide who stays: its first
    slots would fill up, and a probe would walk through all of them."""
    front, rows = group_cache(2_000)
    rng = np.random.default_rng(3)
    for _ in range(2_000):
        offer(front, rows, rng.choice(20_000, 100, replace=False), uses=5)
    slots = front._segments.table._slots
    halves = np.array_split(slots[:, 1] >= 0, 2)
    assert abs(halves[0].mean() - halves[1].mean()) < 0.06


def test_it_does_not_fall_asleep_in_the_middle_of_a_step() -> None:
    """Hits are counted when rows come, misses when a step answers them, block by block. As it was,
    blocks in which nothing repeats outweighed hits that had just been judged."""
    front, rows = group_cache(500)
    offer(front, rows, range(400), uses=5)
    new = 1_000
    for _ in range(5):
        cached(front, [code for code in range(400) for _ in range(10)])  # two thirds of the rows
        for _ in range(4):
            offer(front, rows, range(new, new + 500), uses=1)
            new += 500
            assert not front.asleep
    for _ in range(4):  # without hits it does, when the next rows come
        offer(front, rows, range(new, new + 500), uses=1)
        new += 500
    front.probe(np.zeros(1, np.int64))
    offer(front, rows, range(new, new + 1_500), uses=1)
    assert not front.asleep
    assert front.probe(np.zeros(1, np.int64)) is None
    assert front.asleep


def test_the_threshold_moves_both_ways() -> None:
    """Down while there is room, up while groups replace each other; the papers say so and print
    a constant."""
    front, rows = group_cache(1_000, threshold=8)
    for first in range(0, 6_000, 500):
        cached(front, range(first, first + 500))
        offer(front, rows, range(first, first + 10), uses=1)
    assert front.threshold == 1
    uses = 2
    for first in range(6_000, 30_000, 500):  # ever more frequent ones: all are replaced
        cached(front, range(first, first + 500))
        offer(front, rows, range(first, first + 500), uses)
        uses = min(250, uses + 6)
    assert front.threshold > 1


def zipf(rng: np.random.Generator, rows: int, keys: np.ndarray) -> np.ndarray:
    share = 1 / np.arange(1, len(keys) + 1)
    return keys[rng.choice(len(keys), rows, p=share / share.sum())]


def hot_set(rng: np.random.Generator, rows: int, keys: np.ndarray) -> np.ndarray:
    """Nine rows of ten have one of 500 keys."""
    hot, any_ = rng.integers(0, 500, rows), rng.integers(0, len(keys), rows)
    return keys[np.where(rng.random(rows) < 0.9, hot, any_)]


@pytest.mark.parametrize(("draw", "back"), [(hot_set, 0.9), (zipf, 0.8)])
@pytest.mark.parametrize("algorithm", ["sweepjoin", "chybridjoin", "cinlj"])
def test_the_cache_forgets_a_hot_set_that_moved(algorithm, draw, back) -> None:
    """As printed counts only grow: the old hot keys stay, and hits stay few. Here they are back
    after ten times as many rows as there are groups. (Of a Zipf law's long tail even an empty
    cache has not seen all by then. With a cache much smaller than the backlog it takes as long as
    rows wait: nothing is learnt before it is answered.)"""
    keys, rng = 20_000, np.random.default_rng(1)
    table = pa.table({"id": range(keys), "t": ["x" * 70] * keys})
    master, half = TableMaster(table, "id", page_rows=64), ss.Params(front_share=0.5)
    join = ss.SemiStreamJoin(master, "id", algorithm=algorithm, memory="500kB", params=half)

    def share_of_hits(rows: int, order: np.ndarray) -> float:
        before = join.stats
        for at in range(0, rows, 1_000):
            some = draw(rng, min(1_000, rows - at), order)
            list(join.push(pa.record_batch({"id": some})))
        after = join.stats
        return (after.front_hits - before.front_hits) / (after.rows_in - before.rows_in)

    order = rng.permutation(keys)
    share_of_hits(150_000, order)
    usual = share_of_hits(20_000, order)
    assert join._engine is not None
    groups = join._engine.front._segments.table.used
    moved = order[::-1].copy()
    assert share_of_hits(1_000, moved) < 0.3 * usual
    share_of_hits(10 * groups - 1_000, moved)
    assert share_of_hits(5_000, moved) >= back * usual


def test_a_group_wider_than_a_segment_is_never_cached() -> None:
    """It could push out everything else; it is answered from the disk, every time."""
    front, rows = group_cache(1_000)
    one, many = np.array([7], np.int64), np.array([4_000], np.int32)
    front.offer(Groups(one, np.zeros(1, np.int64), many, np.array([200], np.int32)), rows)
    offer(front, rows, [9], uses=5)
    assert (cached(front, [7]), cached(front, [9])) == (0, 1)


def on_average(array: pa.Array, rows: np.ndarray) -> np.ndarray:
    return np.full(len(rows), array.nbytes // max(1, len(array)) + 1)


@pytest.mark.parametrize("kind", ["nested", "nested, measured on average", "text"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_of_any_width_are_as_the_master_has_them(kind, seed, monkeypatch) -> None:
    """The widest ones are the most popular, and segments are made anew all the time. Of some types
    only the average width is known: groups that were thought to fit may not."""
    rng = np.random.default_rng(seed)
    wide = sorted(rng.choice([0, 1, 3, 200], 4_000, p=[0.9, 0.05, 0.04, 0.01]).tolist())[::-1]
    values = [str(i) * w if kind == "text" else [i] * w for i, w in enumerate(wide)]
    batch = pa.record_batch({"v": pa.array(values), "i": pa.array(range(4_000))})
    rows, ledger = Chunks.of(batch), Ledger(200_000)
    if "average" in kind:
        monkeypatch.setattr("semistream.rows.chunks.value_bytes", on_average)
        ledger.budget *= 3
    front = KeyGroups(batch.schema, 200_000, 50, 1, ledger)
    for _ in range(100):
        drawn = rng.zipf(1.02, 300) % 4_000
        codes, uses = np.unique(drawn, return_counts=True)
        one = np.ones(len(codes), np.int32)
        front.offer(Groups(codes, codes, one, uses.astype(np.int32)), rows)
        hits = front._segments.table.probe(np.arange(4_000))[0]
        here = np.flatnonzero(hits >= 0)
        found = pa.RecordBatch.from_arrays(front.rows.gather(hits[here]), schema=batch.schema)
        assert found.equals(batch.take(pa.array(here)))


def test_absent_keys_are_known_and_hide_no_other() -> None:
    front, rows = group_cache(1_000)
    absent = np.arange(5_000, 5_040)
    front.absent(absent)
    offer(front, rows, range(5_040, 5_080), uses=5)
    hits = front.probe(np.arange(5_000, 5_080))
    assert hits is not None
    assert hits.absent is not None
    assert hits.absent[:40].sum() > 20, "direct-mapped: some share a place"
    assert not hits.absent[40:].any()
    assert (hits.count[40:] == 1).all()


def filled(groups: int, codes: int) -> tuple[KeyGroups, Chunks]:
    """A front stage that was asked for code c more often the smaller c is."""
    front, rows = group_cache(groups)
    for at in range(0, codes, 100):
        offer(front, rows, range(at, min(codes, at + 100)), uses=2)
    for most in range(codes // 10, 0, -(codes // 40)):
        for _ in range(3):
            front.probe(np.arange(most))
    return front, rows


@pytest.mark.parametrize("factor", [0.1, 0.3, 0.67, 0.9, 1.0, 1.1, 1.5, 4.0])
def test_another_size_keeps_what_is_asked_for_most(factor) -> None:
    front, rows = filled(1_000, 900)
    here = cached(front, range(900))
    budget = front._ledger.budget = max(1.5, 1.5 * factor) * front._limit
    front.resize(int(factor * front._limit))
    assert front._bytes() <= front._limit + 64 * 17
    assert front._ledger.held <= budget
    kept = front.probe(np.arange(900))
    assert kept is not None
    where = np.flatnonzero(kept.count > 0)
    assert len(where) >= min(1.0, 0.8 * factor) * min(here, 900)
    hot = min(90, int(500 * factor))
    assert (kept.count[:hot] > 0).mean() > 0.9
    values = front.rows.gather(kept.start[where])[0].to_numpy()
    assert (values == where).all()
    offer(front, rows, range(2_000, 2_400), uses=100)  # and it goes on learning
    assert cached(front, range(2_000, 2_400)) > min(200, 400 * factor)
    assert front._bytes() <= front._limit + 64 * 17


def test_no_room_for_two_tables_begins_anew() -> None:
    front, _ = filled(1_000, 900)
    front._ledger.budget = int(1.2 * front._limit)
    front.resize(int(1.2 * front._limit))
    assert cached(front, range(900)) == 0


def test_absent_codes_stay_absent_in_another_size() -> None:
    """A place of the table becomes several or several one: what comes of it must be a code that was
    there, and one that was forgotten must not come back."""
    for factor in (0.2, 0.5, 1.0, 3.0):
        front, _ = group_cache(1_000)
        codes = np.arange(10**6, 10**6 + 64)
        front.absent(codes)
        front.forget(codes[::2])
        front.resize(int(factor * front._limit))
        hits = front.probe(codes)
        assert hits is not None
        assert hits.absent is not None
        assert not hits.absent[::2].any()
        assert hits.absent[1::2].any()


def test_behind_a_scan_a_whole_cycle_is_watched() -> None:
    """A part of a cycle may have none of the hot keys, and must not send the cache to sleep."""
    front, rows = group_cache(100)
    front.watch_at_least(5_000)
    offer(front, rows, range(4_000), uses=1)
    assert not front.asleep, "4,000 rows without a repetition, but so far only a part of a cycle"
    offer(front, rows, [7], uses=2_000)
    front.probe(np.arange(1))  # hits and misses of the same rows are known at the next question
    assert not front.asleep, "a third of the cycle's rows asked for one key"
    offer(front, rows, range(6_000), uses=1)
    front.probe(np.arange(1))
    assert front.asleep

    master = TableMaster(pa.table({"id": range(2_000), "v": range(2_000)}), "id")
    join = ss.SemiStreamJoin(master, "id", algorithm="cmeshjoin", memory="2MB")
    list(join.push(pa.record_batch({"id": [1, 2]})))
    engine = join._engine
    assert engine.front._least_watched >= engine.phase.parts.backlog.capacity > 1024
