"""A store that changes: every version is a table of its own, for every join and every reader."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.store import change as store_change
from semistream.testing import assert_same_rows, check_join, check_master, oracle
from tests.helpers.sample_data import ALGORITHMS, HOWS, products, sales


class Model:
    """What the store should hold: rows by key, as plain Python."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = list(rows)

    def append(self, rows: list[dict]) -> None:
        self.rows += rows

    def upsert(self, rows: list[dict]) -> None:
        keys = {r["id"] for r in rows}
        self.rows = [r for r in self.rows if r["id"] not in keys or r["id"] is None] + rows

    def delete(self, keys: list) -> None:
        self.rows = [r for r in self.rows if r["id"] not in set(keys) - {None}]

    def table(self, schema: pa.Schema) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=schema)


def random_change(rng: random.Random, model: Model, schema: pa.Schema, keys: list) -> tuple:
    """(kind, data): a change of some keys, and the model with it."""
    kind = rng.choice(["append", "upsert", "upsert", "delete"])
    some = [rng.choice(keys) for _ in range(rng.randint(1, 30))]
    if kind == "delete":
        model.delete(some)
        return kind, pa.table({"id": pa.array([*some, None], schema.field("id").type)})
    if kind == "append" and rng.random() < 0.3:
        some.append(None)
    rows = products([0] * len(some)).to_pylist()
    for row, key in zip(rows, some, strict=True):
        row |= {"id": key, "name": f"{kind} {rng.randint(0, 10**6)}"}
    getattr(model, kind)(rows)
    return kind, pa.Table.from_pylist(rows, schema=schema)


def changed_store(path, rng, keys, changes, t, page_bytes=512):
    start = products([rng.randrange(len(keys)) for _ in range(150)])
    ids = [None if rng.random() < 0.05 else keys[i] for i in start["id"].to_pylist()]
    start = start.set_column(0, "id", pa.array(ids, t))
    model = Model(start.to_pylist())
    store = ss.Store.create(path, start, "id", page_bytes=page_bytes)
    tables = {1: start}
    for _ in range(changes):
        kind, data = random_change(rng, model, start.schema, keys)
        store = getattr(store, kind)(data)
        tables[store.version] = model.table(start.schema)
    return store, tables


KEYS = {
    "int": (pa.int64(), [*range(-20, 60)]),
    "text": (pa.string(), [f"k{i}" for i in range(60)]),
    "dense": (pa.int64(), [1, 2, 3]),
}


@pytest.mark.parametrize("io", ["map", "pread"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KEYS)
def test_every_version_is_what_it_was(name, seed, io, tmp_path) -> None:
    t, keys = KEYS[name]
    store, tables = changed_store(tmp_path / "s", random.Random(seed), keys, 9, t)
    assert len(tables) > 5
    for version, table in tables.items():
        old = ss.Store.open(tmp_path / "s", version, io=io)
        check_master(old, table, "id", rng=seed)
        assert old.verify() == old.describe().pages
    compacted = store.compact()
    check_master(compacted, tables[store.version], "id")
    assert len(compacted.manifest.runs) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("io", ["map", "pread"])
def test_every_join_sees_one_version(algorithm, how, io, tmp_path) -> None:
    rng = random.Random(f"{algorithm}{how}{io}")
    t, keys = KEYS[rng.choice(["int", "text"])]
    _, tables = changed_store(tmp_path / "s", rng, keys, 6, t)
    version = max(tables)
    store = ss.Store.open(tmp_path / "s", version, io=io)
    assert len(store.manifest.runs) > 1
    stream = sales(rng, 200, [None, 7])
    ids = [None if rng.random() < 0.1 else rng.choice([*keys, keys[0]]) for _ in range(200)]
    stream = stream.set_column(0, "id", pa.array(ids, t))
    check_join(
        store, stream, on="id", how=how, algorithm=algorithm, memory="2MB", table=tables[version],
        rng=rng,
    )  # fmt: skip
    assert_same_rows(pa.Table.from_batches(store.batches()), tables[version])


# --- a join that follows -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int", "text"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refresh_answers_each_row_from_the_version_of_its_time(algorithm, name, tmp_path) -> None:
    """Also rows that waited when the version moved, cached groups and keys known to be absent."""
    rng = random.Random(f"{algorithm}{name}")
    t, keys = KEYS[name]
    store, tables = changed_store(tmp_path / "s", rng, keys, 1, t)
    model = Model(tables[store.version].to_pylist())
    join = ss.SemiStreamJoin(
        store, "id", "left", algorithm=algorithm, memory="3MB", params=ss.Params(threshold=1)
    )
    kept = 0
    for step in range(12):
        stream = pa.table({"id": pa.array([rng.choice(keys) for _ in range(80)], t)})
        stream = stream.append_column("n", pa.array(range(80)))
        hits = join.stats.front_hits
        out = [out for batch in stream.to_batches() for out in join.push(batch)]
        writer = ss.Store.open(tmp_path / "s")
        for _ in range(rng.randint(0, 2)):
            kind, data = random_change(rng, model, writer.manifest.schema, keys)
            writer = getattr(writer, kind)(data)
            tables[writer.version] = model.table(writer.manifest.schema)
        if step == 7:
            writer = writer.compact()
            tables[writer.version] = model.table(writer.manifest.schema)
        kept += join.stats.front_hits > hits
        before = join.master.version
        out += list(join.refresh())
        assert_same_rows(out, oracle(stream, tables[before], "id", "left"))
        assert join.master.version == writer.version
    stats = join.stats
    assert stats.waiting == 0
    assert stats.rows_in == 12 * 80 == stats.rows_matched + stats.rows_unmatched
    if algorithm in ("sweepjoin", "chybridjoin", "cinlj"):
        assert kept > 3, "the cache is lost with every version"


@pytest.mark.parametrize("algorithm", ["auto", "sweepjoin", "meshjoin", "hybridjoin", "memory"])
def test_the_master_doubles_while_the_join_runs(algorithm, tmp_path) -> None:
    """Also beyond what fits into memory, where "auto" goes on in another way."""
    half = pa.table({"id": range(0, 6_000, 2), "v": [f"value {i}" for i in range(3_000)]})
    store = ss.Store.create(tmp_path / "s", half, "id", page_bytes=4096)
    memory = 1_700_000 if algorithm == "auto" else "16MB"
    join = ss.SemiStreamJoin(store, "id", "left", algorithm=algorithm, memory=memory)
    stream = pa.record_batch({"id": pa.array(range(6_000))})
    first = list(join.push(stream))
    if algorithm == "auto":
        assert join.algorithm.name == "memory"
    other = pa.table({"id": range(1, 6_000, 2), "v": [f"more {i}" for i in range(3_000)]})
    more = pa.table({"id": range(10_000, 40_000), "v": ["x" * 20] * 30_000})
    store.append(pa.concat_tables([other, more]))
    first += list(join.refresh())
    assert_same_rows(first, oracle(stream, half, "id", "left"))
    second = [*join.push(stream), *join.drain()]
    assert_same_rows(second, oracle(stream, pa.concat_tables([half, other, more]), "id", "left"))
    if algorithm == "auto":
        assert join.algorithm.name == "sweepjoin"


def test_refresh_where_nothing_is_new(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", products(range(50)), "id")
    join = ss.SemiStreamJoin(store, "id")
    out = list(join.push(pa.record_batch({"id": [1, 2]})))
    out += list(join.refresh())
    assert join.master is store
    assert len(pa.Table.from_batches(out)) == 2
    assert list(join.refresh()) == []


def test_an_unread_refresh_does_not_move(tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", products(range(50)), "id")
    join = ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="2MB")
    list(join.push(pa.record_batch({"id": [1, 2]})))
    store.delete(pa.table({"id": [1]}))
    join.refresh()
    with pytest.raises(ss.StateError, match="not read to its end"):
        join.push(pa.record_batch({"id": [1]}))


def test_refresh_of_a_master_that_never_changes() -> None:
    join = ss.SemiStreamJoin(ss.open_master(products(range(5)), "id"), "id")
    out = [*join.push(pa.record_batch({"id": [1, 7]})), *join.refresh()]
    assert len(pa.Table.from_batches(out)) == 1


def test_a_version_that_expires_while_a_change_of_it_is_merged(tmp_path, monkeypatch) -> None:
    """Someone else was first, that is all: no file is damaged."""
    store = ss.Store.create(tmp_path / "s", products([*range(50)]), key="id")
    store = store.upsert(products([1, 2]))

    def late(*arguments: object) -> object:
        monkeypatch.setattr(store_change, "merge", merge)
        newer = ss.Store.open(tmp_path / "s").delete(pa.table({"id": [3]}))
        newer.compact().expire(older_than=0)
        return merge(*arguments)

    merge = store_change.merge
    monkeypatch.setattr(store_change, "merge", late)
    with pytest.raises(ss.ConflictError, match="published by someone else"):
        store.upsert(products([4, 5]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_row_deleted(algorithm, tmp_path) -> None:
    """There are pages, but no rows that can be seen."""
    table = products([*range(60)])
    store = ss.Store.create(tmp_path / "s", table, "id", page_bytes=512)
    store = store.delete(table.select(["id"]))
    nothing = table.slice(0, 0)
    check_master(store, nothing, "id")
    assert store.verify() == store.describe().pages > 3
    stream = sales(random.Random(1), 50, [*range(70)])
    check_join(store, stream, on="id", how="left", algorithm=algorithm, memory="1MB", table=nothing)
    assert store.compact().describe().pages == 0


def test_a_snapshot_belongs_to_one_store(tmp_path) -> None:
    """Another store with the same question and the same version number is another master."""
    for name in "ab":
        ss.Store.create(tmp_path / name, products(range(50)), "id")
    first = ss.SemiStreamJoin(tmp_path / "a", "id", algorithm="sweepjoin", memory="2MB")
    list(first.push(pa.record_batch({"id": [1, 2]})))
    saved = first.snapshot()
    with pytest.raises(ss.StateError, match="the snapshot has master"):
        ss.SemiStreamJoin(tmp_path / "b", "id", algorithm="sweepjoin", memory="2MB").restore(saved)
    again = ss.SemiStreamJoin(tmp_path / "a", "id", algorithm="sweepjoin", memory="2MB")
    again.restore(saved)
    assert again.stats.waiting == 2
