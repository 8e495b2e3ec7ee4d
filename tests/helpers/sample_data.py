"""Tables, key types and masters that the core tests share."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st

import semistream as ss
from semistream.master import Master
from semistream.master.table import TableMaster

_INTS = {
    t: [t_min, t_max, 0, 1, 7, 100]
    for t, t_min, t_max in (
        (pa.int8(), -(2**7), 2**7 - 1),
        (pa.int16(), -(2**15), 2**15 - 1),
        (pa.int32(), -(2**31), 2**31 - 1),
        (pa.int64(), -(2**63), 2**63 - 1),
        (pa.uint8(), 2, 2**8 - 1),
        (pa.uint16(), 2, 2**16 - 1),
        (pa.uint32(), 2, 2**32 - 1),
        (pa.uint64(), 2, 2**64 - 1),
    )
}
_WORDS = ["", "a", "ä", "a longer key with more than thirty-two bytes", "A", "b"]
_TIMES = [dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 1)]
_ZONED = [t.replace(tzinfo=dt.UTC) for t in _TIMES]
_DECIMALS = [Decimal("-1.50"), Decimal(0), Decimal("0.01"), Decimal("12345.67"), Decimal(7)]
_DATES = [dt.date(1969, 7, 20), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(2100, 1, 1)]
_CLOCK = [dt.time(0), dt.time(12, 30), dt.time(23, 59, 59)]
_SPANS = [dt.timedelta(seconds=-5), dt.timedelta(0), dt.timedelta(days=400)]

KEY_VALUES: dict[pa.DataType, list[Any]] = {
    **_INTS,
    pa.bool_(): [True, False],
    pa.string(): _WORDS,
    pa.large_string(): _WORDS,
    pa.binary(): [w.encode() for w in _WORDS],
    pa.large_binary(): [w.encode() for w in _WORDS],
    pa.binary(4): [b"\0\0\0\0", b"abcd", b"abce", b"\xff\xff\xff\xff"],
    pa.date32(): _DATES,
    pa.date64(): _DATES,
    pa.timestamp("s"): _TIMES,
    pa.timestamp("ms"): _TIMES,
    pa.timestamp("us"): _TIMES,
    pa.timestamp("ns"): _TIMES,
    pa.timestamp("us", "UTC"): _ZONED,
    pa.timestamp("ns", "Europe/Vienna"): _ZONED,
    pa.time32("s"): _CLOCK,
    pa.time64("us"): _CLOCK,
    pa.duration("s"): _SPANS,
    pa.duration("us"): _SPANS,
    pa.decimal128(9, 2): _DECIMALS,
    pa.decimal128(38, 10): _DECIMALS,
    pa.decimal256(50, 4): _DECIMALS,
    pa.dictionary(pa.int32(), pa.string()): _WORDS,
    pa.string_view(): _WORDS,
}

ALGORITHMS = tuple(ss.ALGORITHMS)
HOWS = ("inner", "left", "semi", "anti")
MASTERS = ("memory", "map", "pread", "changed", "parquet", "unsorted", "folder", "delta")
WAITING = tuple(a.name for a in ss.ALGORITHMS.values() if a.disk not in ("none", "lookup"))
DISK = tuple(a.name for a in ss.ALGORITHMS.values() if a.disk != "none")

PARAMS = st.builds(
    ss.Params,
    front_share=st.sampled_from([None, 0.0, 0.3, 0.9]),
    output_bytes=st.sampled_from([None, 1, 500]),
    read_bytes=st.sampled_from([None, 1, 2_000]),
    piece_rows=st.sampled_from([None, 1, 5]),
    threshold=st.integers(1, 3),
    release=st.sampled_from(["cycle", "match"]),
    lookup=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    pinned_probe=st.sampled_from(["stream", "waiting"]),
    page_pool=st.sampled_from([0.0, 0.2, 0.9]),
)


def allowed(params: ss.Params, master: Master) -> ss.Params:
    """The same, without what only a unique key allows where the master's is not."""
    return params if master.describe().unique else replace(params, release="cycle")


def keys_for(t: pa.DataType, count: int, rng: random.Random, nulls: float = 0.1) -> pa.Array:
    """Random keys of a type: often equal, sometimes NULL."""
    known = KEY_VALUES[t]
    return pa.array([None if rng.random() < nulls else rng.choice(known) for _ in range(count)], t)


def sales(rng: random.Random, rows: int, keys: Sequence[int | None]) -> pa.Table:
    """A stream: a key, a number, and a text that is sometimes NULL."""
    return pa.table(
        {
            "id": pa.array([rng.choice(keys) for _ in range(rows)], pa.int64()),
            "qty": pa.array(range(rows), pa.int32()),
            "note": [None if i % 5 == 0 else f"note {i}" for i in range(rows)],
        }
    )


def products(keys: Sequence[int | None]) -> pa.Table:
    """A master with a row for every key given, duplicates and NULLs included."""
    rows = range(len(keys))
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"product {i}" for i in rows]),
            "price": pa.array([i / 4 for i in rows]),
            "active": pa.array([None if i % 11 == 0 else i % 2 == 0 for i in rows]),
            "tags": pa.array([[i, None] if i % 3 else None for i in rows], pa.list_(pa.int16())),
        }
    )


def build(kind: str, table: pa.Table, key: str | list[str], path: Path) -> Master:
    """The table as a master of some kind, with many small pages."""
    return _BUILDERS[kind](table, [key] if isinstance(key, str) else key, path)


def _store(io: str) -> Callable[[pa.Table, list[str], Path], Master]:
    def make(table: pa.Table, key: list[str], path: Path) -> Master:
        ss.Store.create(path / "store", table, key, page_bytes=512).close()
        return ss.Store.open(path / "store", io=io)

    return make


def _changed(table: pa.Table, key: list[str], path: Path) -> Master:
    """A store that came to hold the table by changes, of which it still has several runs."""
    some = [row for row in range(len(table)) if row % 3]
    rest = [row for row in range(len(table)) if row % 3 == 0]
    first = table.take(pa.array(some, pa.int64()))
    store = ss.Store.create(path / "changed", first, key, page_bytes=512)
    keyed = first.filter(pc.is_valid(first[key[0]])) if len(first) else first
    for name in key[1:]:
        keyed = keyed.filter(pc.is_valid(keyed[name]))
    odd = keyed.slice(0, max(1, len(keyed) // 2))
    store = store.delete(odd.select(key))
    kept = pa.Table.from_batches(store.batches(), table.schema)
    missing = _less(first, kept)
    store = store.append(missing.slice(0, len(missing) // 2))
    store = store.append(missing.slice(len(missing) // 2))
    return store.append(table.take(pa.array(rest, pa.int64())))


def _less(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Rows without as many of each as there are among the others."""
    left = Counter(map(repr, others.to_pylist()))
    keep = []
    for i, row in enumerate(map(repr, rows.to_pylist())):
        if left[row]:
            left[row] -= 1
        else:
            keep.append(i)
    return rows.take(pa.array(keep, pa.int64()))


def _parquet(table: pa.Table, key: list[str], path: Path) -> Master:
    plain = pa.table([_plain(table[name]) for name in key], key)
    order = pc.sort_indices(plain, [(name, "ascending") for name in key])
    rows = table.take(order)
    pq.write_table(rows, path / "m.parquet", row_group_size=max(1, len(table) // 5))
    return ss.open_master(path / "m.parquet", key)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _unsorted(table: pa.Table, key: list[str], path: Path) -> Master:
    """Rows in an order in which row groups overlap, so that there is no index."""
    half = list(range(0, len(table), 2)) + list(range(1, len(table), 2))
    rows = table.take(pa.array(half, pa.int64()))
    pq.write_table(rows, path / "m.parquet", row_group_size=max(1, len(table) // 3))
    return ss.open_master(path / "m.parquet", key)


def _folder(table: pa.Table, key: list[str], path: Path) -> Master:
    folder = path / "folder"
    folder.mkdir()
    step = max(1, len(table) // 3)
    for i, at in enumerate(range(0, max(1, len(table)), step)):
        pq.write_table(table.slice(at, step), folder / f"part-{i}.parquet")
    (folder / "_SUCCESS").touch()
    return ss.open_master(folder, key)


def _delta(table: pa.Table, key: list[str], path: Path) -> Master:
    """Partitioned by a column that may be NULL."""
    by = [f.name for f in table.schema if pa.types.is_boolean(f.type)]
    DeltaTable.create(path / "delta", table.schema, partition_by=by)
    write_deltalake(path / "delta", table, mode="append")
    return ss.open_master(path / "delta", key)


_BUILDERS: dict[str, Callable[[pa.Table, list[str], Path], Master]] = {
    "memory": lambda table, key, _: TableMaster(table, key, page_rows=8),
    "map": _store("map"),
    "pread": _store("pread"),
    "changed": _changed,
    "parquet": _parquet,
    "unsorted": _unsorted,
    "folder": _folder,
    "delta": _delta,
}


def least_memory(master: Master, algorithm: str, stream: pa.Table, **join: Any) -> int:
    """The smallest budget that a join with this stream accepts."""
    memory = 1
    while True:
        try:
            ss.SemiStreamJoin(
                master, algorithm=algorithm, memory=memory, stream_schema=stream.schema, **join
            )
            return memory
        except ss.BudgetError as error:
            memory = max(memory + 1, error.least)
