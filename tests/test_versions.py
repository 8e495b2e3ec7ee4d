"""A store that changes: every version is a table of its own, for every join and for every reader."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from sample_data import ALGORITHMS, HOWS, products, sales

import semistream as ss
from semistream.testing import assert_same_rows, check_join, check_master


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


def changed_store(path, rng, keys, changes, t=pa.int64(), page_bytes=512):
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
@pytest.mark.parametrize("seed", range(4))
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
