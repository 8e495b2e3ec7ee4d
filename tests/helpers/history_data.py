"""Random histories of a store, and what each version should hold, as plain Python."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import semistream as ss

DAY = dt.datetime(2024, 2, 29)


@dataclass(frozen=True)
class Kind:
    """A kind of key: its columns, and values that repeat often."""

    types: dict[str, pa.DataType]
    values: list[tuple]

    @property
    def names(self) -> list[str]:
        return list(self.types)

    def table(self, keys: list[tuple | None], what: str) -> pa.Table:
        """Rows with these keys; None is a NULL in the last column."""
        parts = [[None] * len(self.types) if k is None else k for k in keys]
        columns = {
            name: pa.array([k[i] for k in parts], t)
            for i, (name, t) in enumerate(self.types.items())
        }
        values = [None if i % 7 == 3 else f"{what} {i}" for i in range(len(keys))]
        return pa.table(
            {
                **columns,
                "v": pa.array(values, pa.string()),
                "n": pa.array(range(len(keys)), pa.int64()),
            }
        )


def _one(t: pa.DataType, values: list[Any]) -> Kind:
    return Kind({"id": t}, [(v,) for v in values])


_WORDS = ["", "ä", *(f"key {i}" for i in range(25)), "a longer key with more than thirty-two bytes"]
KINDS = {
    "int": _one(pa.int64(), [-(2**63), 2**63 - 1, *range(-9, 20)]),
    "small int": _one(pa.int16(), [-(2**15), 2**15 - 1, *range(-9, 20)]),
    "unsigned": _one(pa.uint64(), [0, 2**64 - 1, 2**63, *range(5, 30)]),
    "bool": _one(pa.bool_(), [True, False]),
    "text": _one(pa.string(), _WORDS),
    "decimal": _one(pa.decimal128(9, 2), [Decimal(i) / 4 for i in range(-9, 20)]),
    "timestamp": _one(pa.timestamp("us"), [DAY + dt.timedelta(hours=i) for i in range(30)]),
    "binary": _one(pa.binary(4), [bytes([i]) * 4 for i in range(25)]),
    "composite": Kind(
        {"a": pa.string(), "b": pa.int32()}, [(f"k{i % 5}", i // 5) for i in range(25)]
    ),
    "date and bool": Kind(
        {"a": pa.date32(), "b": pa.bool_()},
        [(dt.date(2024, 1, i), i % 3 == 0) for i in range(1, 25)],
    ),
}
VERBS = ("append", "upsert", "upsert", "delete", "compact", "expire")
HISTORIES = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 2**32)), max_size=9)


@dataclass
class History:
    """A store, and the rows of each of its versions."""

    path: Path
    kind: Kind
    rng: random.Random
    tables: dict[int, pa.Table] = field(default_factory=dict)

    def start(self, rows: int, page_bytes: int = 512) -> ss.Store:
        keys = [self.key(0.05) for _ in range(rows)]
        table = self.kind.table(keys, "base")
        self.tables[1] = table
        return ss.Store.create(self.path, table, self.kind.names, page_bytes=page_bytes)

    def key(self, null: float = 0.0) -> tuple | None:
        return None if self.rng.random() < null else self.rng.choice(self.kind.values)

    def change(self, store: ss.Store, verb: str) -> ss.Store:
        if verb == "expire":
            gone = store.expire(0.0, keep=self.rng.randint(1, 4))
            for version in gone:
                del self.tables[version]
            return store
        before = self.tables[store.version]
        if verb == "compact":
            store = store.compact()
            self.tables[store.version] = before
            return store
        some = [self.key() for _ in range(self.rng.randint(0, 25))]
        after, data = self.changed(verb, before, some)
        spill = self.rng.choice([1, 1 << 30])
        store = getattr(store, verb)(data, spill_bytes=spill)
        self.tables[store.version] = after
        return store

    def changed(
        self, verb: str, before: pa.Table, keys: list[tuple | None]
    ) -> tuple[pa.Table, pa.Table]:
        """The rows after a change, and what the change is given."""
        if verb == "append":
            keys = [*keys, None]
        new = self.kind.table(keys, f"{verb} {self.rng.randrange(10**6)}")
        if verb == "append":
            return pa.concat_tables([before, new]), new
        wanted = {k for k in keys if k is not None}
        rows = zip(*(before[name].to_pylist() for name in self.kind.names), strict=True)
        stay = pa.array([key not in wanted or None in key for key in rows], pa.bool_())
        left = before.filter(stay) if len(before) else before
        if verb == "upsert":
            return pa.concat_tables([left, new]), new
        nobody = self.kind.table([None], "")
        return left, pa.concat_tables([new, nobody]).select(self.kind.names)

    def stream(self, rows: int) -> pa.Table:
        table = self.kind.table([self.key(0.1) for _ in range(rows)], "sale")
        table = table.rename_columns([*self.kind.names, "note", "number"])
        return table.append_column("high", pa.array([i + 9 for i in range(rows)], pa.int64()))
