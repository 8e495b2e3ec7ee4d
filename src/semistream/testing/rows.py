"""Rows as plain Python values, a join of ten lines over them, and random batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

Row = tuple[Hashable, ...]
Rows = Iterable[Any]  # a table, a batch, batches, or row tuples
On = str | Sequence[str] | Mapping[str, str]
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_MOST_BATCHES = 60


def plain_value(value: Any) -> Hashable:
    """A hashable value that is equal where the data is: NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return tuple(plain_value(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, plain_value(v)) for k, v in value.items())
    result: Hashable = value
    return result


def values_of(column: pa.ChunkedArray | pa.Array) -> list[Hashable]:
    """A column as Python values; times as exact nanoseconds, whatever unit they came in."""
    t = column.type
    if not pa.types.is_temporal(t) or pa.types.is_interval(t):
        return [plain_value(v) for v in column.to_pylist()]
    unit = 86_400 * 10**9 if pa.types.is_date32(t) else 10**6
    unit = unit if pa.types.is_date(t) else _NANOSECONDS[t.unit]
    whole = pa.int32() if t.bit_width == 32 else pa.int64()
    return [None if v is None else v * unit for v in column.cast(whole).to_pylist()]


def rows_of(rows: Rows) -> list[Row]:
    """Any rows (a table, a batch, batches, tuples) as tuples that can be counted and compared."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        columns = [values_of(column) for column in rows.columns]
        return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows
    result: list[Row] = []
    for item in rows:
        result += rows_of(item) if isinstance(item, pa.Table | pa.RecordBatch) else [item]
    return result


def keys_of(table: pa.Table, names: Sequence[str]) -> list[Row]:
    return list(zip(*(values_of(table[name]) for name in names), strict=True))


def name_pairs(on: On) -> list[tuple[str, str]]:
    names = [on] if isinstance(on, str) else on
    return list(names.items()) if isinstance(names, Mapping) else [(n, n) for n in names]


def oracle(
    stream: pa.Table,
    master: pa.Table,
    on: On,
    how: str,
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
) -> list[Row]:
    """The join in plain Python: the stream's columns, then the master's without its key.

    Rows come in stream order; compare them with `assert_same_rows`. `suffix` renames columns and
    so changes no row: it is here so that one set of arguments serves both joins.
    """
    pairs = name_pairs(on)
    keep = master.column_names if columns is None else columns
    shown = [name for name in keep if name not in [m for _, m in pairs]]
    groups: dict[Row, list[Row]] = {}
    others = rows_of(master.select(shown)) if shown else [()] * master.num_rows
    for key, other in zip(keys_of(master, [m for _, m in pairs]), others, strict=True):
        groups.setdefault(key, []).append(other)
    result: list[Row] = []
    for key, row in zip(keys_of(stream, [s for s, _ in pairs]), rows_of(stream), strict=True):
        found = [] if None in key else groups.get(key, [])
        if how in ("semi", "anti"):
            result += [row] if bool(found) == (how == "semi") else []
        else:
            missing: list[Row] = [(None,) * len(shown)] if how == "left" else []
            result += [row + other for other in found or missing]
    return result


def assert_same_rows(actual: Rows, expected: Rows, what: str = "rows") -> None:
    """Equal as multisets; the message counts what is missing and extra and shows the first few."""
    have, want = Counter(rows_of(actual)), Counter(rows_of(expected))
    if have == want:
        return
    lines = [f"{what}: {have.total()} instead of {want.total()}"]
    for name, rows in (("missing", want - have), ("extra", have - want)):
        lines.append(f"{rows.total()} {name}, {len(rows)} of them distinct")
        lines += [f"  {name} {count} x {row!r:.300}" for row, count in rows.most_common(5)]
    raise AssertionError("\n".join(lines))


def rebatch(table: pa.Table, rng: random.Random) -> list[pa.RecordBatch]:
    """The table's rows in batches of random size: some empty, some sliced, some with columns that
    lie at different offsets of their buffers (Arrow allows it, and slices of tables have it)."""
    columns = [one_array(column) for column in table.columns]
    most = rng.choice([1, 3, table.num_rows // 7, table.num_rows])
    most = max(1, most, table.num_rows // _MOST_BATCHES)
    batches, at = [], 0
    while at < table.num_rows or rng.random() < 0.3:
        count = 0 if rng.random() < 0.15 else min(rng.randint(1, most), table.num_rows - at)
        arrays = [column.slice(at, count) for column in columns]
        if rng.random() < 0.3:
            arrays = [_shifted(array, rng.randint(0, 9)) for array in arrays]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
        at += count
    return batches


def one_array(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _shifted(array: pa.Array, by: int) -> pa.Array:
    """The same values, further into their buffers."""
    before = array.slice(0, by)
    return pa.concat_arrays([before, array]).slice(len(before))
