"""A join that follows a store: a row is answered from the version that was there when it came."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import weakref
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream as ss
from semistream.master.storage.place import StoreFile
from semistream.testing import assert_same_rows, oracle
from tests.helpers.history_data import KINDS, History
from tests.helpers.sample_data import ALGORITHMS, HOWS, PARAMS, build, least_memory


@pytest.fixture(autouse=True, scope="module")
def fast_disk():
    """Nothing here is about what survives a crash."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


CONDITIONS = {
    "compare": ss.Compare("number", ">=", "n"),
    "band": ss.Band("n", "number", "high"),
    "predicate": ss.Predicate(
        lambda stream, found: [
            (a + b) % 3 == 0
            for a, b in zip(stream["number"].to_pylist(), found["n"].to_pylist(), strict=True)
        ],
        ["number"],
        ["n"],
    ),
}
HOLDS = {
    "compare": lambda s, m: s >= m,
    "band": lambda s, m: s <= m <= s + 9,
    "predicate": lambda s, m: (s + m) % 3 == 0,
    None: lambda s, m: True,
}


def pairs(stream: pa.Table, master: pa.Table, on: list[str], how: str, condition) -> list[tuple]:
    """The join of ten lines, with a condition."""
    out = []
    rows = [(tuple(r[n] for n in on), r) for r in master.to_pylist()]
    for s in stream.to_pylist():
        key = tuple(s[n] for n in on)
        found = [
            m for k, m in rows
            if (not on or (k == key and None not in k)) and HOLDS[condition](s["number"], m["n"])
        ]  # fmt: skip
        left = tuple(s.values())
        if how in ("semi", "anti"):
            out += [left] if bool(found) == (how == "semi") else []
        else:
            out += [(*left, m["v"], m["n"]) for m in found]
            out += [(*left, None, None)] if how == "left" and not found else []
    return out


@given(
    name=st.sampled_from(list(KINDS)),
    rows=st.integers(0, 60),
    seed=st.integers(0, 2**32),
    algorithm=st.sampled_from(ALGORITHMS),
    how=st.sampled_from(HOWS),
    ordered=st.booleans(),
    condition=st.sampled_from([None, None, None, *CONDITIONS]),
    shed=st.booleans(),
    times=st.sampled_from([1.0, 1.3, 3.0, 30.0]),
    params=PARAMS,
)
def test_refresh_at_any_moment(
    name, rows, seed, algorithm, how, ordered, condition, shed, times, params
) -> None:
    """Every row is answered from the version that was there when it came."""
    rng = random.Random(seed)
    on = KINDS[name].names
    if condition is not None:
        algorithm, shed = rng.choice(["meshjoin", "rmeshjoin"]), False
        on = rng.choice([[], on])
    if shed:
        algorithm, ordered = rng.choice(["sweepjoin", "chybridjoin"]), False
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder) / "s", KINDS[name], rng)
        store = history.start(rows)
        store = ss.Store.open(history.path, io=rng.choice(["map", "pread"]))
        params = ss.Params(**{**vars(params), "release": "cycle"})
        more = {
            "on": on or None, "how": how, "params": params, "ordered": ordered,
            "condition": CONDITIONS.get(condition), "columns": ["v", "n"],
        }  # fmt: skip
        schema = history.stream(1)
        least = least_memory(
            store, algorithm, schema, **more,
            **({"shed": ss.Shedding(Path(folder) / "probe")} if shed else {}),
        )  # fmt: skip
        if shed:
            more["shed"] = ss.Shedding(Path(folder) / "out")
        memory = int(least * times)
        join = ss.SemiStreamJoin(store, algorithm=algorithm, memory=memory, **more)
        follow(join, history, on, how, condition)


def follow(join, history: History, on: list[str], how: str, condition) -> None:
    rng, total = history.rng, 0
    for _ in range(rng.randint(1, 5)):
        stream = history.stream(rng.randint(1, 40))
        total += len(stream)
        version = join.master.version
        out = []
        for batch in stream.to_batches(max_chunksize=rng.choice([3, 100])):
            out += join.push(batch)
            if rng.random() < 0.2:
                out += join.step()
        writer = ss.Store.open(history.path)
        for _ in range(rng.randint(0, 2)):
            writer = history.change(writer, rng.choice(["append", "upsert", "delete", "compact"]))
        try:
            out += join.refresh()
            assert join.master.version == writer.version
        except ss.BudgetError:  # it has grown; the join stays where it was
            assert join.master.version == version
            out += join.drain()
        right = pairs(stream, history.tables[version], on, how, condition)
        assert_same_rows([tuple(r.values()) for b in out for r in b.to_pylist()], right)
        if join.spec.ordered:
            numbers = [n for b in out for n in b["number"].to_pylist()]
            assert numbers == sorted(numbers), "not in the order of the stream"
        stats = join.stats
        assert stats.peak_bytes <= stats.budget_bytes
        assert stats.rows_in == total == stats.rows_matched + stats.rows_unmatched
        assert stats.waiting == stats.buffered == stats.shed_out == 0


@pytest.mark.parametrize("kind", ["memory", "parquet", "unsorted", "folder"])
def test_refresh_of_masters_that_never_change(kind, tmp_path) -> None:
    history = History(tmp_path / "s", KINDS["int"], random.Random(kind))
    table = KINDS["int"].table([history.key(0.1) for _ in range(60)], "base")
    for i, algorithm in enumerate(ALGORITHMS):
        (tmp_path / str(i)).mkdir()
        master = build(kind, table, "id", tmp_path / str(i))
        try:
            join = ss.SemiStreamJoin(
                master, "id", "left", algorithm=algorithm, memory="8MB", columns=["v"]
            )
        except ss.SemiStreamError as error:
            assert "index" in str(error)  # noqa: PT017 - some need one, some masters have none
            continue
        for _ in range(3):
            stream = history.stream(50)
            out = [o for b in stream.to_batches() for o in join.push(b)]
            out += join.refresh()
            assert_same_rows(out, oracle(stream, table, "id", "left", ["v"]))
            assert join.master is master


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_snapshot_is_of_its_version(algorithm, tmp_path) -> None:
    history = History(tmp_path / "s", KINDS["int"], random.Random(1))
    store = history.start(60)
    join = ss.SemiStreamJoin(store, "id", algorithm=algorithm, memory="2MB", columns=["v"])
    (batch,) = history.stream(20).to_batches()
    out = list(join.push(batch))
    saved = join.snapshot()
    newer = history.change(store, "upsert")
    with pytest.raises(ss.StateError, match="version"):
        ss.SemiStreamJoin(newer, "id", algorithm=algorithm, memory="2MB", columns=["v"]).restore(
            saved
        )
    same = ss.SemiStreamJoin(
        ss.Store.open(history.path, 1), "id", algorithm=algorithm, memory="2MB", columns=["v"]
    )
    same.restore(saved)
    out += same.refresh()
    expected = oracle(pa.Table.from_batches([batch]), history.tables[1], "id", "inner", ["v"])
    assert_same_rows(out, expected)
    assert same.master.version == 2
    with pytest.raises(ss.StateError, match="version"):
        ss.SemiStreamJoin(store, "id", algorithm=algorithm, memory="2MB", columns=["v"]).restore(
            same.snapshot()
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refresh_that_cannot_read_is_tried_again(algorithm, tmp_path, monkeypatch) -> None:
    """For every k, the k-th read after the changes fails: no row is lost, whatever is called next,
    and every row is answered from one version."""
    history = History(tmp_path / "s", KINDS["int"], random.Random(3))
    store = history.start(80)
    newer = history.change(history.change(store, "upsert"), "append")
    read_into, calls, fails = StoreFile.read_into, [], [0]

    def failing(self, offset, target):
        calls.append(offset)
        if len(calls) == fails[-1]:
            raise ss.StoreError("injected")
        read_into(self, offset, target)

    monkeypatch.setattr(StoreFile, "read_into", failing)
    for limit in range(1, 200):
        old = ss.Store.open(history.path, 1, io="pread")
        join = ss.SemiStreamJoin(
            old, "id", "left", algorithm=algorithm, memory="3MB", columns=["v"],
            params=ss.Params(threshold=1, read_bytes=1),
        )  # fmt: skip
        stream = history.stream(60)
        (batch,) = stream.to_batches()
        out = list(join.push(batch))
        calls.clear()
        fails.append(limit)
        failed = try_to(join.refresh, out)
        fails.append(0)
        out += join.drain()
        if join.master.version == 1:
            assert failed
            again = join.push(batch)
            second = [*again, *join.drain()]
            both = oracle(stream, history.tables[1], "id", "left", ["v"])
            assert_same_rows(second, both, f"read {limit} failed, and the version did not move")
            out += join.refresh()
        assert join.master.version == newer.version
        assert_same_rows(out, oracle(stream, history.tables[1], "id", "left", ["v"]))
        third = [*join.push(batch), *join.drain()]
        right = oracle(stream, history.tables[newer.version], "id", "left", ["v"])
        assert_same_rows(third, right, f"read {limit} failed")
        stats = join.stats
        assert stats.rows_in == stats.rows_matched + stats.rows_unmatched
        assert stats.peak_bytes <= stats.budget_bytes
        if not failed:
            break
    assert not failed


def try_to(call, out: list) -> bool:
    try:
        for batch in call():
            out.append(batch)
    except ss.StoreError as error:
        if "injected" not in str(error):
            raise
        return True
    return False


def test_a_join_lets_go_of_the_version_that_it_began_with(tmp_path) -> None:
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    store = ss.Store.create(tmp_path / "s", rows, key="id")
    first = weakref.ref(store)
    join = ss.SemiStreamJoin(store, on="id", stream_schema=pa.schema([("id", pa.int64())]))
    store.upsert(rows.slice(0, 1)).close()
    assert list(join.refresh()) == []
    del store
    gc.collect()
    assert first() is None
