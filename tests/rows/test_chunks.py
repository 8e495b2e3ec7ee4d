"""Gathering rows from many chunks: every Arrow type, slices, NULLs; packed records do the same."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from semistream.rows.chunks import Chunks
from semistream.rows.layout import row_bytes, value_bytes
from semistream.rows.records import Records
from semistream.testing import rebatch, rows_of
from tests.helpers.sample_data import KEY_VALUES

VALUES = {
    **{t: v for t, v in KEY_VALUES.items() if t != pa.string_view()},  # made plain before
    pa.null(): [None],
    pa.float16(): [np.float16(1.5), np.float16(-2)],
    pa.float32(): [1.5, float("nan"), -0.0, float("inf")],
    pa.float64(): [1.5, float("nan"), -0.0, 1e300],
    pa.time32("ms"): [dt.time(1, 2, 3)],
    pa.time64("ns"): [dt.time(1, 2, 3, 4)],
    pa.binary(0): [b""],
    pa.binary(3): [b"abc", b"\0\0\0"],
    pa.binary(300): [b"x" * 300, b"y" * 300],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(-1)],
    pa.decimal256(76, 0): [Decimal(10**75), Decimal(-1)],
    pa.string(): ["", "a", "ä" * 100, "z" * 5_000],
    pa.list_(pa.int64()): [[], [1], [1, None, 3] * 50],
    pa.large_list(pa.string()): [[], ["a", None], ["b" * 100]],
    pa.list_(pa.int8(), 2): [[1, 2], [None, 4]],
    pa.struct([("a", pa.int8()), ("b", pa.string())]): [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    pa.map_(pa.string(), pa.int32()): [[("k", 1)], []],
    pa.list_(pa.struct([("d", pa.date32())])): [[{"d": dt.date(2024, 1, 1)}], []],
    pa.dictionary(pa.int8(), pa.string()): ["red", "green", "blue"],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3])],
    pa.uuid(): [b"0123456789abcdef"],
}
if hasattr(pa, "decimal32"):
    VALUES |= {pa.decimal32(7, 2): [Decimal("1.25")], pa.decimal64(15, 3): [Decimal("-7.125")]}


def column(t: pa.DataType, count: int, rng: random.Random, nulls: float) -> pa.Array:
    known = VALUES[t]
    return pa.array([None if rng.random() < nulls else rng.choice(known) for _ in range(count)], t)


def everywhere(chunks: Chunks, rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Places of rows: random, repeated, out of order."""
    filled = [c for c, batch in enumerate(chunks.keep) if len(batch)]
    places: list[tuple[int, int]] = []
    for _ in range(count if filled else 0):
        c = rng.choice(filled)
        places.append((c, rng.randrange(len(chunks.keep[c]))))
    return places


def located(places: list[tuple[int, int]]) -> np.ndarray:
    return np.array([c << 32 | row for c, row in places], np.int64)


@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("t", VALUES, ids=str)
def test_gather_every_type(t, nulls) -> None:
    """Two columns of a type in batches of all shapes, against plain indexing."""
    rng = random.Random(f"{t}{nulls}")
    columns = [column(t, 70, rng, nulls), column(t, 70, rng, 0.0)]
    batches = rebatch(pa.table(columns, ["a", "b"]), rng)
    chunks = Chunks.of(*batches)
    places = everywhere(chunks, rng, 200)
    found = [chunks.gather(located(places))]
    if Records.can_hold(chunks.schema):
        records = Records(chunks.schema)
        records.add(None, chunks, located(places)[:0])  # chunk numbers other than 0 work too
        _, where, _ = records.add(None, chunks, located(places))
        found.append(records.gather(where))
        again = Records(chunks.schema)  # packed from packed, as segments are
        found.append(again.gather(again.add(None, records, where)[1]))
    for got in found:
        for j, array in enumerate(got):
            array.validate(full=True)
            assert array.type == t
            assert array.null_count == array.to_pylist().count(None)
            rows = [rows_of(batch.select([j])) for batch in batches]
            expected = [rows[c][row] for c, row in places]
            assert rows_of(pa.table([array], ["x"])) == expected


@pytest.mark.parametrize("t", VALUES, ids=str)
def test_gather_nothing(t) -> None:
    schema = pa.schema([("a", t)])
    for chunks in (
        Chunks(schema),
        Chunks.of(pa.RecordBatch.from_arrays([pa.array([], t)], schema=schema)),
        Chunks.of(pa.RecordBatch.from_arrays([column(t, 3, random.Random(1), 0)], schema=schema)),
    ):
        got = chunks.gather(np.zeros(0, np.int64))
        assert (len(got), len(got[0]), got[0].type) == (1, 0, t)


def test_columns_at_different_offsets_of_one_batch() -> None:
    """Slices of a table whose columns are chunked differently: the bits of each column begin
    elsewhere."""
    one = pa.array([None, True, False, None, True, False, True], pa.bool_())
    two = pa.array(["x", "y", None, "z"])
    batch = pa.record_batch([one.slice(3), two], ["one", "two"])
    for some in (batch, batch.select(["two", "one"])):
        got = Chunks.of(some).gather(np.arange(4))
        assert [g.to_pylist() for g in got] == [c.to_pylist() for c in some.columns]
    table = pa.table(
        {
            "a": pa.chunked_array([[1, None, 3], [None, 5]]),
            "b": pa.chunked_array([[None], [True, False, None, True]], pa.bool_()),
        }
    )
    batches = table.to_batches()
    chunks = Chunks.of(*batches)
    where = [(c, r) for c, batch in enumerate(batches) for r in range(len(batch))]
    got = chunks.gather(located(where))
    assert [g.to_pylist() for g in got] == [c.to_pylist() for c in table.columns]


def test_put_replaces_one_chunk() -> None:
    chunks = Chunks.of(*[pa.record_batch({"a": [i], "s": [str(i)]}) for i in range(3)])
    chunks.put(1, pa.record_batch({"a": pa.array([None, 7]), "s": ["x", None]}))
    got = chunks.gather(located([(0, 0), (1, 0), (1, 1), (2, 0)]))
    assert [g.to_pylist() for g in got] == [[0, None, 7, 2], ["0", "x", None, "2"]]


def test_a_selection_of_columns() -> None:
    chunks = Chunks.of(pa.record_batch({"a": [1, 2], "b": ["x", "y"], "c": [True, None]}))
    got = chunks.gather(np.array([1, 0]), [2, 0])
    assert [g.to_pylist() for g in got] == [[None, True], [2, 1]]


@pytest.mark.parametrize("t", [pa.string(), pa.large_binary(), pa.int32(), pa.binary(3)], ids=str)
def test_widths_are_the_bytes_of_the_rows(t) -> None:
    """What is measured beforehand is what a gather then allocates (NULL bits are rounded up)."""
    rng = random.Random(3)
    chunks = Chunks.of(pa.record_batch([column(t, 50, rng, 0.2)], ["a"]))
    where = located(everywhere(chunks, rng, 64))
    widths = chunks.widths(where)
    assert widths[0] == 0
    assert (np.diff(widths) >= 0).all()
    for n in (1, 10, 64):
        gathered = chunks.gather(where[:n])[0]
        assert gathered.get_total_buffer_size() <= widths[n] + 16


EXACT = [t for t in VALUES if not pa.types.is_dictionary(t)]


@pytest.mark.parametrize("t", EXACT, ids=str)
@pytest.mark.parametrize("nulls", [0.0, 0.3])
def test_bytes_of_each_value_also_of_a_slice(t, nulls) -> None:
    """As pyarrow counts them for a slice of one row, but for bits and the last offset."""
    whole = column(t, 200, random.Random(7), nulls)
    for array in (whole, whole.slice(13, 101), whole.slice(0, 0)):
        found = value_bytes(array, np.arange(len(array)))
        counted = [array.slice(i, 1).nbytes for i in range(len(array))]
        assert len(found) == len(counted)
        if len(array):
            assert np.abs(found - np.array(counted)).max() <= 24
        some = np.array([3, 50, 77]) if len(array) else np.zeros(0, np.int64)
        assert (value_bytes(array, some) == found[some]).all()


def test_row_bytes_is_never_nothing() -> None:
    for t in VALUES:
        assert row_bytes(pa.schema([("a", t)])) > 0
