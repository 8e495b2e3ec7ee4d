"""Load shedding: no row is lost, none is made up, the budget holds, and what was shed returns."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.join.shed.policy import VICTIMS
from semistream.join.shed.segment import new_name
from semistream.join.shed.target import Folder
from semistream.master.storage.place import StoreFile
from semistream.testing import assert_same_rows, oracle
from tests.helpers.sample_data import ALGORITHMS, HOWS, build, sales
from tests.helpers.shed_data import (
    MEMORY,
    SHEDS,
    STREAM_KEYS,
    TABLE,
    Run,
    masters,
    overloaded,
    pread,
)

__all__ = ["masters", "pread"]  # fixtures


# --- exact, whatever happens ----------------------------------------------------------------------


# Every kind of victims with two join types, every join type with half of them.
MIXED = [(how, v) for i, how in enumerate(HOWS) for j, v in enumerate(VICTIMS) if (i + j) % 2 == 0]


@pytest.mark.parametrize("algorithm", SHEDS)
@pytest.mark.parametrize(("how", "victims"), MIXED)
def test_the_exact_join_in_the_end(how, algorithm, victims, masters, tmp_path) -> None:
    for seed, (kind, memory) in enumerate(MEMORY.items()):
        rng = random.Random(seed)
        stream = sales(rng, 4_000, STREAM_KEYS)
        shed = ss.Shedding(tmp_path / kind, victims=victims, seed=seed)
        run = Run(masters[kind], shed, how, algorithm=algorithm, memory=memory)
        run.push(stream, rng)
        run.finish(by_steps=seed == 0)
        assert_same_rows(run.out, oracle(stream, TABLE, "id", how))
        assert run.join.stats.rows_in == len(stream)
        assert run.join.stats.shed > 0 or kind == "parquet", "this was to be an overload"
        assert not list((tmp_path / kind).iterdir()), "every segment is deleted"


@pytest.mark.parametrize("algorithm", SHEDS)
@pytest.mark.parametrize("how", HOWS)
def test_hashed_keys_and_wide_rows(how, algorithm, tmp_path) -> None:
    """Keys that are verified by value; texts far wider than the plan foresaw."""
    key = pc.cast(TABLE["id"], pa.string())
    table = TABLE.set_column(0, "id", key)
    master = build("pread", table, "id", tmp_path)
    rng = random.Random(3)
    plain = sales(rng, 900, STREAM_KEYS)
    notes = [None if i % 5 == 0 else "w" * rng.choice([3, 30, 9_000]) for i in range(900)]
    stream = plain.set_column(0, "id", pc.cast(plain["id"], pa.large_string()))
    stream = stream.set_column(2, "note", pa.array(notes))
    run = Run(master, ss.Shedding(tmp_path / "out"), how, algorithm=algorithm, memory=250_000)
    run.push(stream, rng, sizes=(1, 50, 300))
    run.finish()
    assert run.join.stats.shed > 0
    assert_same_rows(run.out, oracle(stream, table, "id", how))


def test_without_overload_nothing_is_shed(pread, tmp_path) -> None:
    run = Run(pread, ss.Shedding(tmp_path), algorithm="sweepjoin")
    for i in range(30):
        run.push(sales(random.Random(i), 20, STREAM_KEYS), random.Random(i), sizes=(20,))
        assert run.join.stats.waiting + run.join.stats.buffered == 0, "one iteration per push"
    assert run.join.stats.shed == 0


def test_the_load_falls_and_rows_come_back(pread, tmp_path) -> None:
    run, stream = overloaded(pread, tmp_path)
    out = run.join.stats.shed_out
    for _ in range(2_000):
        run.read(run.join.step())
        assert run.join.stats.shed_out <= out, "nothing is shed while nothing arrives"
        out = run.join.stats.shed_out
        if out == 0:
            break
    assert out == 0
    assert run.join.stats.reloaded == run.join.stats.shed
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


def test_a_batch_far_larger_than_the_buffer(pread, tmp_path) -> None:
    stream = sales(random.Random(4), 20_000, STREAM_KEYS)
    run = Run(pread, ss.Shedding(tmp_path), algorithm="sweepjoin")
    run.read(run.join.push(stream.combine_chunks().to_batches()[0]))
    assert run.join.stats.rows_in == 20_000
    assert run.join.stats.shed_out > 10_000
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


@pytest.mark.parametrize("algorithm", SHEDS)
def test_a_failed_read_of_the_master_loses_nothing(algorithm, pread, tmp_path, monkeypatch) -> None:
    run, stream = overloaded(pread, tmp_path, algorithm=algorithm)
    real, rng = StoreFile.read_into, random.Random(7)

    def flaky(*arguments, **named):
        if rng.random() < 0.1:
            raise ss.StoreError("injected")
        return real(*arguments, **named)

    monkeypatch.setattr(StoreFile, "read_into", flaky)
    for _ in range(10_000):
        try:
            run.read(run.join.drain())
            break
        except ss.StoreError:
            s = run.join.stats
            answered = s.rows_matched + s.rows_unmatched
            assert s.rows_in == answered + s.waiting + s.buffered + s.shed_out, s
    monkeypatch.undo()
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


# --- snapshots, resets ----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", SHEDS)
def test_snapshot_and_restore(algorithm, pread, tmp_path) -> None:
    """At any moment, also with segments that came back in part: exactly once."""
    rng = random.Random(5)
    stream = sales(rng, 2_500, STREAM_KEYS)
    shed = ss.Shedding(tmp_path)
    run = Run(pread, shed, algorithm=algorithm)
    batches = stream.combine_chunks().to_batches(max_chunksize=400)
    for batch in [*batches, *[None] * 10]:
        run.read(run.join.step() if batch is None else run.join.push(batch))
        old, fresh = run.join, Run(pread, shed, algorithm=algorithm).join
        fresh.restore(old.snapshot())
        for name in ("rows_in", "waiting", "buffered", "shed", "reloaded", "shed_out"):
            assert getattr(fresh.stats, name) == getattr(old.stats, name), name
        old.close()
        run.join = fresh
        run.check()
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))
    assert not list(tmp_path.iterdir())


def test_snapshots_of_other_joins_are_refused(pread, tmp_path) -> None:
    run, _ = overloaded(pread, tmp_path / "a")
    saved = run.join.snapshot()
    plain = ss.SemiStreamJoin(pread, "id", "left", algorithm="chybridjoin", memory="1MB")
    with pytest.raises(ss.StateError, match="not a snapshot"):
        plain.restore(saved)
    list(plain.push(sales(random.Random(1), 5, [1]).to_batches()[0]))
    with pytest.raises(ss.StateError, match="not a snapshot of a join that sheds"):
        Run(pread, ss.Shedding(tmp_path / "b")).join.restore(plain.snapshot())
    small = Run(pread, ss.Shedding(tmp_path / "a"))
    small.join.restore(saved)
    with pytest.raises(ss.StateError, match="has taken in rows"):
        small.join.restore(saved)


def test_reset_forgets_what_is_in_memory_and_keeps_what_is_out(pread, tmp_path) -> None:
    run, _ = overloaded(pread, tmp_path)
    out = run.join.stats.shed_out
    run.join.reset()
    s = run.join.stats
    assert (s.waiting, s.buffered, s.shed_out) == (0, 0, out)
    run.check()
    run.finish()


# --- processes that die ---------------------------------------------------------------------------

_VICTIM = """
import sys, time
import pyarrow as pa, pyarrow.parquet as pq
import semistream as ss

store, stream, out = sys.argv[1:]
join = ss.SemiStreamJoin(
    ss.Store.open(store, io="pread"), "id", "left", algorithm="chybridjoin", memory=110_000,
    shed=ss.Shedding(out),
)
answered = []
for batch in pq.read_table(stream).to_batches(max_chunksize=500):
    for rows in join.push(batch):
        answered += rows["qty"].to_pylist()
print(join.stats.shed_out, *sorted(set(answered)), flush=True)
time.sleep(600)
"""


def test_kill_9_and_a_new_join_answers_what_was_shed(tmp_path) -> None:
    master = build("pread", TABLE, "id", tmp_path)
    stream = sales(random.Random(6), 2_000, STREAM_KEYS)
    pq.write_table(stream, tmp_path / "stream.parquet")
    words = [str(tmp_path / "store"), str(tmp_path / "stream.parquet"), str(tmp_path / "out")]
    child = subprocess.Popen(
        [sys.executable, "-c", _VICTIM, *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        out, *answered = map(int, child.stdout.readline().split())
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert out > 0
    (tmp_path / "out" / (new_name(99) + ".tmp")).write_bytes(b"half a segment")
    run = Run(master, ss.Shedding(tmp_path / "out"))
    run.finish()  # no push: the segments know the stream's columns
    s = run.join.stats
    assert s.rows_in == s.shed == s.reloaded == out
    numbers = pa.Table.from_batches(run.out)["qty"].to_pylist()
    kept = stream.filter(pc.is_in(stream["qty"], pa.array(numbers, pa.int32())))
    assert len(kept) == out
    assert_same_rows(run.out, oracle(kept, TABLE, "id", "left"))
    assert not set(numbers) & set(answered), "rows that came back and were answered are gone"
    assert not list((tmp_path / "out").iterdir())


def test_what_is_found_counts_and_is_answered_beside_new_rows(pread, tmp_path) -> None:
    run, stream = overloaded(pread, tmp_path)
    left = run.join.stats.shed_out
    new = sales(random.Random(9), 50, STREAM_KEYS)
    again = Run(pread, ss.Shedding(tmp_path), stream_schema=stream.schema)
    assert (again.join.stats.rows_in, again.join.stats.shed_out) == (left, left)
    again.push(new, random.Random(1))
    again.finish()
    assert again.join.stats.rows_in == left + 50


def test_segments_of_another_question_are_refused(pread, tmp_path) -> None:
    _, stream = overloaded(pread, tmp_path)
    before = sorted(tmp_path.iterdir())
    other = stream.rename_columns(["id", "quantity", "note"]).schema
    for more in ({"how": "inner", "stream_schema": stream.schema}, {"stream_schema": other}):
        with pytest.raises(ss.StateError, match=r"belong to another question.*shed-0.*another pl"):
            Run(pread, ss.Shedding(tmp_path), **more)
    assert sorted(tmp_path.iterdir()) == before


def test_a_disk_that_refuses_loses_nothing(pread, tmp_path, monkeypatch) -> None:
    run, stream = overloaded(pread, tmp_path)
    more = sales(random.Random(8), 3_000, STREAM_KEYS)

    real, before = Folder.put, sorted(tmp_path.iterdir())

    def full(*arguments):
        """Half of a segment can be written, as on a disk that fills up."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, limits[1]))
        try:
            return real(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(Folder, "put", full)
    failed = 0
    for batch in more.combine_chunks().to_batches(max_chunksize=500):
        try:
            run.read(run.join.push(batch))
        except ss.ShedError as error:
            failed += "File too large" in str(error)
            run.check()
    assert failed
    assert set(tmp_path.iterdir()) <= set(before), "and nothing is left of the halves"
    run.finish()  # needs no more room outside
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"target": "x", "victims": "hot"}, "victims='hot' does not exist.*popularity"),
        ({"target": ""}, "target=''.*directory"),
        ({"target": 5}, "target=5"),
        ({"target": "tcp://host"}, "'tcp://host' is not an address.*tcp://host:port"),
        ({"target": "tcp://host:99999"}, "is not an address"),
        ({"target": __file__}, "is a file; give a directory"),
        ({"target": "x", "seed": -1}, "seed=-1"),
        ({"target": "x", "timeout": 0}, "timeout=0"),
        ({"target": "x", "timeout": float("inf")}, "timeout=inf"),
        ({"target": "x", "timeout": "10"}, "timeout='10'"),
        ({"target": "x", "token": "a token for no one"}, "token= is for a receiver"),
        ({"target": "tcp://host:1", "token": "short"}, "at least 16 characters"),
        ({"target": "tcp://host:1", "token": 1234567890123456}, "at least 16 characters"),
    ],
)
def test_wrong_words_are_refused(words, message) -> None:
    with pytest.raises(ss.SpecError, match=message):
        ss.Shedding(**words)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(SHEDS)))
def test_other_algorithms_cannot_shed(algorithm, pread, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match=f"{algorithm} cannot shed.*chybridjoin.*sweepjoin"):
        ss.SemiStreamJoin(pread, "id", algorithm=algorithm, shed=ss.Shedding(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_auto_takes_one_that_can(pread, tmp_path) -> None:
    assert Run(pread, ss.Shedding(tmp_path), algorithm="auto").join.algorithm.name == "sweepjoin"
    with pytest.raises(ss.SpecError, match=r"shed='x'.*ss\.Shedding"):
        ss.SemiStreamJoin(pread, "id", shed="x")


@pytest.mark.parametrize("algorithm", SHEDS)
def test_the_least_budget_named_is_one_that_works(algorithm, pread, tmp_path) -> None:
    stream = sales(random.Random(1), 500, STREAM_KEYS)
    words = {"algorithm": algorithm, "stream_schema": stream.schema}
    with pytest.raises(ss.BudgetError) as caught:
        Run(pread, ss.Shedding(tmp_path), memory=1, **words)
    run = Run(pread, ss.Shedding(tmp_path), memory=caught.value.least, **words)
    run.push(stream, random.Random(2))
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


# --- which rows -----------------------------------------------------------------------------------


def test_popularity_serves_most() -> None:
    """At twice the capacity, wherever popular keys lie; `benchmarks/shedding.py` has more of it."""
    from benchmarks.shedding import PLACES, Setup, measure

    found = measure(Setup(rows=8_000, iterations=120, memory=300_000), "chybridjoin")
    for place in PLACES:
        served = {v: found[place, v].served for v in VICTIMS}
        assert served["popularity"] >= served["considering"], served
        assert served["popularity"] >= served["upfront"], served


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_popularity_serves_a_sweep_with_fewer_pages(seed) -> None:
    """A sweep answers all that waits, whichever rows were kept: so many slots, so many rows. What
    the victims decide is how many pages it takes, where there are more pages than it needs."""
    from benchmarks.shedding import PLACES, Setup, measure

    setup = Setup(rows=40_000, iterations=30, memory=300_000, seed=seed)
    found = measure(setup, "sweepjoin")
    for place in PLACES:
        per_page = {v: found[place, v].served / found[place, v].pages for v in VICTIMS}
        assert all(per_page["popularity"] > per_page[v] for v in VICTIMS if v != "popularity")
        assert found[place, "popularity"].served > found[place, "upfront"].served


def test_names_are_in_the_order_of_shedding(tmp_path) -> None:
    folder = Folder(tmp_path)
    for number in (2, 10, 1):
        folder.put(new_name(number), pa.record_batch({"n": np.arange(number)}), "{}")
    assert [s.rows for s in folder.look().segments] == [1, 2, 10]
