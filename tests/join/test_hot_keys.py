"""What a front stage has learnt, handed on to another join."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.join.hot_keys import SCHEMA, load_hot_keys
from semistream.safety.sealed import seal
from semistream.testing import assert_same_rows, oracle
from tests.helpers.damage import outcomes

KEYS = 5_000


def master(kind: str) -> pa.Table:
    ids = [i // 2 if i % 7 == 0 else i for i in range(KEYS)]  # some keys twice
    key = pa.array(ids, pa.int64()) if kind == "int" else pa.array([f"k{i:05}" for i in ids])
    return pa.table({"id": key, "name": [f"name {i}" for i in range(KEYS)]})


def stream(kind: str, rows: int, seed: int) -> pa.RecordBatch:
    ids = (np.random.default_rng(seed).zipf(1.3, rows) - 1) % (KEYS + 200)
    key = pa.array(ids, pa.int64()) if kind == "int" else pa.array([f"k{i:05}" for i in ids])
    return pa.record_batch({"id": key, "nr": pa.array(range(rows))})


HALF = ss.Params(front_share=0.55)  # a cache, whatever a plan would say


def run(join: ss.SemiStreamJoin, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [*join.push(batch), *join.drain()]


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("kind", ["int", "text"])
@pytest.mark.parametrize("io", ["map", "pread"])
def test_a_new_join_begins_with_what_another_learnt(tmp_path, kind, how, io) -> None:
    table = master(kind)
    ss.Store.create(tmp_path / "m", table, key="id", page_bytes=2048).close()
    store = ss.Store.open(tmp_path / "m", io=io)
    batch = stream(kind, 20_000, 1)
    arguments = {"on": "id", "how": how, "algorithm": "sweepjoin", "memory": "300kB"}
    arguments["params"] = HALF
    with ss.SemiStreamJoin(store, **arguments) as join:
        for _ in range(3):
            run(join, batch)
        learnt = join.learnt()
    assert learnt
    later = stream(kind, 2_000, 2)
    fresh = ss.SemiStreamJoin(store, stream_schema=later.schema, **arguments)
    taught = ss.SemiStreamJoin(store, stream_schema=later.schema, **arguments)
    taught.learn(learnt)
    expected = oracle(pa.Table.from_batches([later]), table, "id", how)
    for join in (fresh, taught):
        assert_same_rows(run(join, later), expected)
        assert join.stats.peak_bytes <= join.budget
    assert taught.stats.front_hits > 0.5 * len(later) > fresh.stats.front_hits
    fresh.close()
    taught.close()


def test_what_was_learnt_from_an_older_version_shows_no_old_row(tmp_path) -> None:
    table = master("int")
    store = ss.Store.create(tmp_path / "m", table, key="id", page_bytes=2048)
    batch = stream("int", 20_000, 1)
    with ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="300kB", params=HALF) as join:
        run(join, batch)
        learnt = join.learnt()
    changed = pa.table({"id": list(range(0, 300, 3)), "name": ["new"] * 100})
    newer = store.upsert(changed).delete(pa.table({"id": [1, 4]}))
    for master_now in (newer, newer.compact()):
        with ss.SemiStreamJoin(
            master_now,
            "id",
            algorithm="sweepjoin",
            memory="300kB",
            stream_schema=batch.schema,
            how="left",
            params=HALF,
        ) as join:
            join.learn(learnt)
            now = pa.Table.from_batches(master_now.batches())
            assert_same_rows(
                run(join, batch), oracle(pa.Table.from_batches([batch]), now, "id", "left")
            )
            assert join.stats.front_hits


def test_a_smaller_front_stage_takes_the_most_popular(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "m", master("int"), key="id", page_bytes=2048)
    batch = stream("int", 20_000, 1)
    with ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="500kB", params=HALF) as join:
        for _ in range(3):
            run(join, batch)
        learnt, join_of_few = join.learnt(), join.learnt(10)
    small = ss.SemiStreamJoin(
        store, "id", algorithm="sweepjoin", memory="120kB", stream_schema=batch.schema, params=HALF
    )
    small.learn(learnt)
    run(small, batch.slice(0, 500))
    assert small.stats.front_hits > 250
    few = ss.SemiStreamJoin(
        store, "id", algorithm="sweepjoin", memory="500kB", stream_schema=batch.schema, params=HALF
    )
    few.learn(join_of_few)
    run(few, batch.slice(0, 500))
    assert 100 < few.stats.front_hits < small.stats.front_hits
    assert small.stats.peak_bytes <= small.budget


def test_learning_is_refused_with_a_reason(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "m", master("int"), key="id")
    batch = stream("int", 100, 1)
    join = ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="2MB")
    join.learn(b"")
    assert join.learnt() == b""
    with pytest.raises(ss.SpecError, match="not what a join has learnt"):
        join.learn(b"nonsense")
    with ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="2MB") as other:
        for _ in range(3):
            run(other, batch)
        learnt = other.learnt()
    for end in (1, len(learnt) // 2, len(learnt) - 9):
        with pytest.raises(ss.SpecError, match="not what a join has learnt"):
            join.learn(learnt[:end])
    with pytest.raises(ss.StateError, match="stream_schema"):
        join.learn(learnt)
    list(join.push(batch))
    assert join.stats.waiting
    with pytest.raises(ss.StateError, match="drain"):
        join.learn(learnt)


def test_masters_that_cannot_be_asked_for_codes_are_left_alone() -> None:
    table = master("int")
    batch = stream("int", 3_000, 1)
    with ss.SemiStreamJoin(ss.open_master(table, "id"), "id", algorithm="sweepjoin") as join:
        run(join, batch)
        run(join, batch)
        learnt = join.learnt()
    assert learnt
    with ss.SemiStreamJoin(
        ss.open_master(table, "id"), "id", algorithm="memory", stream_schema=batch.schema
    ) as join:
        join.learn(learnt)
        assert join.learnt() == b""
        expected = oracle(pa.Table.from_batches([batch]), table, "id", "inner")
        assert_same_rows(run(join, batch), expected)


def test_where_pages_must_be_read_learning_has_an_end(tmp_path) -> None:
    """About as many bytes as the budget: not the whole master for popular keys all over it."""
    wide = pa.table({"id": range(KEYS), "name": [f"{i:0300}" for i in range(KEYS)]})
    ss.Store.create(tmp_path / "m", wide, key="id", page_bytes=2048).close()
    store = ss.Store.open(tmp_path / "m", io="pread")
    batch = stream("int", 20_000, 1)
    scattered = pa.array(np.asarray(batch["id"]) * 7919 % KEYS)
    batch = batch.set_column(0, "id", scattered)
    arguments = {"algorithm": "sweepjoin", "memory": "400kB", "stream_schema": batch.schema}
    with ss.SemiStreamJoin(store, "id", **arguments) as join:
        for _ in range(3):
            run(join, batch)
        learnt = join.learnt()
    before = store.traffic.bytes
    with ss.SemiStreamJoin(store, "id", **arguments) as join:
        join.learn(learnt)
        assert 0 < store.traffic.bytes - before < 2 * join.budget
        assert store.traffic.bytes - before < store.describe().bytes


@pytest.mark.parametrize("io", ["map", "pread"])
@pytest.mark.parametrize("memory", ["1MB", "400kB"])
def test_many_rows_to_a_key_stay_within_the_budget(tmp_path, io, memory) -> None:
    """Also in a join that is smaller than the one that learnt."""
    ids = [i // 50 for i in range(20_000)]
    table = pa.table({"id": ids, "name": [f"{i:050}" for i in range(20_000)]})
    ss.Store.create(tmp_path / "m", table, key="id", page_bytes=4096).close()
    store = ss.Store.open(tmp_path / "m", io=io)
    keys = (np.random.default_rng(1).zipf(1.3, 3_000) - 1) % 450
    batch = pa.record_batch({"id": pa.array(keys, pa.int64())})
    asked = {"algorithm": "sweepjoin", "params": ss.Params(front_share=0.55)}
    with ss.SemiStreamJoin(store, "id", memory="1MB", **asked) as join:
        for _ in range(3):
            run(join, batch)
        learnt = join.learnt()
    assert learnt
    with ss.SemiStreamJoin(store, "id", memory=memory, stream_schema=batch.schema, **asked) as join:
        join.learn(learnt)
        assert join.stats.peak_bytes <= join.budget
        before = join.stats.front_hits
        run(join, batch.slice(0, 200))
        assert join.stats.front_hits - before > 50 or memory == "400kB"


def test_every_damaged_byte_of_what_was_learnt_is_noticed(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "m", master("int"), key="id")
    with ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="2MB", params=HALF) as join:
        for _ in range(3):
            run(join, stream("int", 100, 1))
        learnt = join.learnt(5)

    def use(raw: bytes) -> list[list[int]]:
        return [part.tolist() for part in load_hot_keys(raw)]

    assert set(outcomes(learnt, use)) == {"SpecError"}


@pytest.mark.parametrize(
    "wrong", [b"", b"nonsense", seal("hot", b"x"), seal("learnt", b"x"), "text"]
)
def test_what_no_join_has_learnt(wrong) -> None:
    with pytest.raises(ss.SpecError, match="not what a join has learnt"):
        load_hot_keys(wrong)


@pytest.mark.parametrize("column", [[None, 1], [-1, 2]])
def test_numbers_that_no_join_counts(column) -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array(column, pa.int32())], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    with pytest.raises(ss.SpecError, match="not what a join has learnt"):
        load_hot_keys(seal("learnt", sink.getvalue().to_pybytes()))


def test_the_hottest_are_chosen_without_sorting_all() -> None:
    from semistream.front.table import BLOCK, Groups, GroupTable

    rng = np.random.default_rng(2)
    n = 3 * BLOCK
    table = GroupTable(2 * n)
    uses = rng.permutation(n).astype(np.uint32)
    table.put(Groups(np.arange(n), np.zeros(n, np.int64), np.ones(n, np.int32), uses))
    for most in (None, 0, 1, 100, n, 2 * n):
        codes, found = table.hottest(most)
        best = np.argsort(-uses.astype(np.int64))[:most]
        assert found.tolist() == uses[best].tolist()
        assert codes.tolist() == best.tolist()
