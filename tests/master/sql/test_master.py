"""The contract of masters and joins over tables in real databases."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master import from_locator
from semistream.master.sql import master as sql
from semistream.master.sql import pages as sql_pages
from semistream.testing import check_join, check_master
from tests.helpers.database_servers import execute, load
from tests.helpers.sample_data import HOWS, keys_for, sales

KEYS = {
    "dense": range(200),
    "duplicates": [k // 7 for k in range(200)],
    "one key": [5] * 120,
    "nulls": [None if k % 5 == 0 else k // 3 for k in range(200)],
    "nulls only": [None] * 50,
    "empty": [],
    "extremes": [-(2**63), 2**63 - 1, 0, -1, 1],
}
_BOTH = (pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32())
_BOTH += (pa.timestamp("us"), pa.decimal128(9, 2), pa.decimal256(50, 4))
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
TYPES = {
    "postgresql": (*_BOTH, pa.bool_(), pa.time64("us"), pa.timestamp("us", "UTC")),
    "mariadb": (*_BOTH, *_UNSIGNED, pa.int8(), pa.duration("us")),
}
SPANS = [dt.timedelta(seconds=-5), dt.timedelta(0), dt.timedelta(hours=400, microseconds=1)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(sql, "PAGE_BYTES", 600)
    monkeypatch.setattr(sql_pages, "CHUNK_ROWS", 64)


def items(keys) -> pa.Table:
    rows = range(len(keys))
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"product {i} ä" for i in rows], pa.string()),
            "price": pa.array([None if i % 11 == 0 else i / 4 for i in rows], pa.float64()),
            "cost": pa.array([Decimal(i) / 8 for i in rows], pa.decimal128(12, 3)),
            "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i) for i in rows], pa.date32()),
        }
    )


def opened(server, name, key, **more):
    return ss.open_master(server.url(), key, table=name, **more)


# --- masters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["index", "pk"])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_conforms(server, keys, index) -> None:
    table = items(list(keys))
    master = opened(server, load(server, table, ["id"], index), "id", columns=table.column_names)
    info = check_master(master, table, "id")
    assert info.indexed
    assert master.ranges
    check_master(from_locator(master.locator()), table, "id", rng=2)


def test_conforms_for_key_types(server) -> None:
    rng = random.Random(1)
    for t in TYPES[server.kind]:
        keys = keys_for(t, 60, rng)
        if t == pa.duration("us"):
            keys = pa.array([rng.choice(SPANS) for _ in range(60)], t)
        table = pa.table({"key": keys, "v": pa.array(range(60), pa.int32())})
        master = opened(server, load(server, table, ["key"], "pk"), "key", columns=["v"])
        assert master.describe().schema.field("key").type == t
        check_master(master, table, "key")


def test_conforms_for_composite_keys(server) -> None:
    rng = random.Random(2)
    table = pa.table(
        {
            "v": pa.array(range(120), pa.int32()),
            "b": keys_for(pa.string(), 120, rng),
            "a": keys_for(pa.int16(), 120, rng),
        }
    )
    name = load(server, table, ["a", "b"], "pk")
    master = opened(server, name, ["a", "b"], columns=table.column_names)
    assert not master.ranges
    check_master(master, table, ["a", "b"])


def test_composite_primary_key_is_the_order_of_scans(server) -> None:
    table = pa.table(
        {
            "a": pa.array([i % 9 for i in range(150)], pa.int32()),
            "b": pa.array([f"b{i}" for i in range(150)]),
            "v": pa.array(range(150), pa.int32()),
        }
    )
    master = opened(server, load(server, table, ["a", "b"], "primary"), ["a", "b"])
    assert master.describe().pages > 3
    check_master(master, table, ["a", "b"])


def test_without_an_index_it_is_scanned_only(server) -> None:
    table = items(range(100))
    plain = load(server, table, ["id"], "none")
    execute(server, f"ALTER TABLE {plain} ADD PRIMARY KEY (cost)")
    master = opened(server, plain, "id")
    check_master(master, table, "id")
    with pytest.raises(ss.MasterError, match=r"needs an index on \['id'\]"):
        ss.SemiStreamJoin(master, "id", algorithm="sweepjoin")
    heap = opened(server, load(server, table, ["id"], "none"), "id")
    with pytest.raises(ss.MasterError, match="primary key"):
        list(heap.batches())
    for algorithm in ("meshjoin", "memory"):
        with pytest.raises(ss.MasterError, match="primary key"):
            ss.SemiStreamJoin(heap, "id", algorithm=algorithm)


def test_a_view_is_asked_by_key(server) -> None:
    """What cannot be read as it is can be cast in a view; nobody sees the index behind it."""
    table = items(range(50))
    name = load(server, table, ["id"], "primary")
    text = "text" if server.kind == "postgresql" else "char"
    execute(server, f"CREATE VIEW {name}_v AS SELECT id, CAST(cost AS {text}) AS cost FROM {name}")
    master = opened(server, f"{name}_v", "id")
    shown = table.select(["id"]).append_column("cost", table["cost"].cast(pa.string()))
    join = ss.SemiStreamJoin(master, "id")
    assert join.algorithm.name == "sweepjoin"
    stream = pa.table({"id": pa.array(range(40, 60), pa.int64())})
    check_join(master, stream, on="id", how="left", table=shown, memory="4MB")


def test_where_and_columns(server) -> None:
    table = items(range(100))
    name = load(server, table, ["id"], "primary")
    master = opened(server, name, "id", columns=["price"], where="price < 5 OR id = 99 -- no end")
    want = [(i, None if i % 11 == 0 else i / 4) for i in range(100)]
    rows = [r for r in want if (r[1] is not None and r[1] < 5) or r[0] == 99]
    types = [pa.int64(), pa.float64()]
    table = pa.table(
        [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)],
        ["id", "price"],
    )
    check_master(master, table, "id")


def test_a_table_that_changes_meanwhile(server) -> None:
    """Pages are ranges: new rows belong to one, pages whose rows are gone are empty."""
    name = load(server, items(range(0, 300, 3)), ["id"], "primary")
    master = opened(server, name, "id")
    pages = master.describe().pages
    assert len(master.first) == pages > 4
    execute(server, f"DELETE FROM {name} WHERE id BETWEEN 50 AND 200")
    for key in (-7, 1000, 250):
        execute(server, f"INSERT INTO {name} (id, name) VALUES ({key}, 'new')")
    kept = [i for i in range(0, 300, 3) if not 50 <= i <= 200]
    ids = [i for b in master.batches(["id"]) for i in b.column(0).to_pylist()]
    assert sorted(ids) == sorted([*kept, -7, 1000, 250])
    stream = pa.table({"id": pa.array(range(-10, 1010), pa.int64())})
    for algorithm in ("sweepjoin", "hybridjoin", "ssij", "meshjoin"):
        out = ss.join_batches(stream.to_batches(), master, "id", algorithm=algorithm, columns=[])
        found = [i for b in out for i in b.column(0).to_pylist()]
        assert sorted(found) == sorted(ids), algorithm


# --- joins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_every_algorithm_gives_exactly_the_join(server, joined, algorithm, how) -> None:
    master, table = joined[server.kind]
    rng = random.Random(f"{algorithm} {how}")
    stream = sales(rng, 150, [None, *range(-3, 60)])
    check_join(
        master, stream, on="id", how=how, algorithm=algorithm, memory="4MB", table=table, rng=rng
    )


@pytest.fixture(scope="module")
def joined(postgresql, mariadb):
    """A table with duplicates, NULL keys and gaps in each server."""
    table = items([None if i % 9 == 0 else i // 3 for i in range(150)])
    patch = pytest.MonkeyPatch()
    patch.setattr(sql, "PAGE_BYTES", 900)
    result = {}
    for server in (postgresql, mariadb):
        name = load(server, table, ["id"], "pk")
        result[server.kind] = (opened(server, name, "id", columns=table.column_names), table)
    patch.undo()
    return result


@pytest.mark.parametrize("how", HOWS)
def test_joins_on_text_and_composite_keys(server, how) -> None:
    rng = random.Random(how)
    words = ["a", "A", "ä", "b", "", "a ", "x\\'\"; DROP TABLE t; --", "?", "$1", "long " * 20]
    table = pa.table(
        {
            "b": pa.array([rng.choice(words) for _ in range(120)]),
            "a": pa.array([rng.randrange(4) for _ in range(120)], pa.int32()),
            "v": pa.array(range(120), pa.int32()),
        }
    )
    stream = pa.table(
        {
            "b": pa.array([rng.choice([*words, "none", None, "\0"]) for _ in range(150)]),
            "a": pa.array([rng.randrange(5) for _ in range(150)], pa.int64()),
        }
    )
    name = load(server, table, ["a", "b"], "pk")
    master = opened(server, name, ["a", "b"], columns=table.column_names)
    for algorithm in ("sweepjoin", "cinlj", "rmeshjoin", "cmeshjoin"):
        check_join(
            master, stream, on=["a", "b"], how=how, algorithm=algorithm, memory="4MB", table=table,
            rng=rng,
        )  # fmt: skip
    for algorithm in ("hybridjoin", "xhybridjoin", "ssij"):
        with pytest.raises(ss.MasterError, match="ranges of keys"):
            ss.SemiStreamJoin(master, ["a", "b"], algorithm=algorithm)
