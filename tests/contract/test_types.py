"""Columns of every type that Arrow users have: they travel through a join as they are, or are
refused before the first row with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.rows.layout import plain

ROWS = 12
ALGORITHMS = ["sweepjoin", "cmeshjoin", "hybridjoin", "cinlj", "ssij", "memory"]


class Celsius(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "semistream.tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Celsius:
        return cls()


@pytest.fixture(autouse=True, scope="module")
def _registered():
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("semistream.tests.celsius")


def values(some: list[object], t: pa.DataType) -> Callable[[int], pa.Array]:
    return lambda batch: pa.array([some[(i + batch) % len(some)] for i in range(ROWS)], t)


def numbers(some: list[int | None], t: pa.DataType) -> Callable[[int], pa.Array]:
    """By the numbers in the bytes of values, which Python may not be able to say."""
    storage = pa.int32() if t.bit_width == 32 else pa.int64()
    return lambda batch: values(some, storage)(batch).view(t)


INT8 = pa.int8()


def dictionary(some: pa.Array, index: pa.DataType = INT8) -> Callable[[int], pa.Array]:
    """Every batch has its own order of values."""

    def make(batch: int) -> pa.Array:
        order = [(i + batch) % len(some) for i in range(len(some))]
        own = pa.array([some[i].as_py() for i in order], some.type)
        picks = pa.array([None if i == 5 else i % len(some) for i in range(ROWS)], index)
        return pa.DictionaryArray.from_arrays(picks, own)

    return make


def stored(t: pa.ExtensionType, some: list[object]) -> Callable[[int], pa.Array]:
    return lambda batch: pa.ExtensionArray.from_storage(t, values(some, t.storage_type)(batch))


def dense_union(batch: int) -> pa.Array:
    parts = [pa.array(range(batch, batch + 6)), pa.array([f"s{batch + i}" for i in range(6)])]
    at = pa.array([i // 2 for i in range(ROWS)], pa.int32())
    return pa.UnionArray.from_dense(pa.array([0, 1] * 6, pa.int8()), at, parts)


def sparse_union(batch: int) -> pa.Array:
    parts = [pa.array(range(batch, batch + 12)), pa.array([f"s{batch + i}" for i in range(12)])]
    return pa.UnionArray.from_sparse(pa.array([0, 1] * 6, pa.int8()), parts)


def runs(batch: int) -> pa.Array:
    ends, found = pa.array([4, 8, ROWS], pa.int32()), pa.array(["x", None, f"z{batch}"])
    return pa.RunEndEncodedArray.from_arrays(ends, found)


def inside(make: Callable[[int], pa.Array]) -> Callable[[int], pa.Array]:
    return lambda batch: pa.StructArray.from_arrays([make(batch)], ["inner"])


def listed(make: Callable[[int], pa.Array]) -> Callable[[int], pa.Array]:
    offsets = pa.array(range(ROWS + 1), pa.int32())
    return lambda batch: pa.ListArray.from_arrays(offsets, make(batch))


MONTHS = pa.month_day_nano_interval()
LONG = "longer than the twelve bytes that a view holds itself"
CARRIED = {
    "dictionary": dictionary(pa.array(["a", "b", "d"])),
    "dictionary with NULL": dictionary(pa.array(["a", None, "d"])),
    "dictionary of uint32": dictionary(pa.array(["a", "b"]), pa.uint32()),
    "dictionary of int64": dictionary(pa.array([7, 8])),
    "dictionary of date32": dictionary(pa.array([1, 2], pa.date32())),
    "dictionary of timestamp": dictionary(pa.array([1, 2], pa.timestamp("us"))),
    "dictionary of time64": dictionary(pa.array([1, 2], pa.time64("us"))),
    "dictionary of duration": dictionary(pa.array([1, 2], pa.duration("us"))),
    "dictionary of decimal": dictionary(pa.array([Decimal(1), Decimal(2)], pa.decimal128(5, 2))),
    "dictionary of string_view": dictionary(pa.array(["x", LONG], pa.string_view())),
    "dictionary of list": dictionary(pa.array([[1], [2, 3]])),
    "dictionary of struct": dictionary(pa.array([{"a": 1}, {"a": 2}])),
    "string_view": values(["a", None, LONG], pa.string_view()),
    "binary_view": values([b"a", None, LONG.encode()], pa.binary_view()),
    "dense_union": dense_union,
    "sparse_union": sparse_union,
    "struct of union": inside(dense_union),
    "extension": stored(Celsius(), [1, None, 3]),
    "uuid": stored(pa.uuid(), [b"0" * 16, None, b"1" * 16]),
    "bool8": stored(pa.bool8(), [1, None, 0]),
    "json": stored(pa.json_(pa.string()), ["1", None, "{}"]),
    "tensor": stored(pa.fixed_shape_tensor(pa.int32(), (2,)), [[1, 2], None]),
    "float16": values([np.float16(1.5), None, np.float16("nan")], pa.float16()),
    "list": values([[1, 2], None, []], pa.list_(pa.int64())),
    "list_view": values([[1, 2], None, []], pa.list_view(pa.int64())),
    "large_list_view": values([[1, 2], None, []], pa.large_list_view(pa.int64())),
    "fixed_size_list": values([[1, 2], None], pa.list_(pa.int64(), 2)),
    "map": values([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "month_day_nano": values([pa.MonthDayNano([1, 2, 3]), None], MONTHS),
    "null": lambda batch: pa.nulls(ROWS),
    "date32 of any year": numbers([2**31 - 1, -(2**31), None], pa.date32()),
    "date64 of any year": numbers([2**62, -(2**63), None], pa.date64()),
    "timestamp of any year": numbers([2**62, -(2**63), None], pa.timestamp("us")),
    "zoned, of any year": numbers([2**62, -(2**63), None], pa.timestamp("s", "Asia/Tokyo")),
    "decimal32": values([Decimal(1), None], pa.decimal32(5, 2)),
    "decimal256": values([Decimal(1), None], pa.decimal256(70, 2)),
}
REFUSED = {
    "struct of dictionary": inside(dictionary(pa.array(["a", "b"]))),
    "list of dictionary": listed(dictionary(pa.array(["a", "b"]))),
    "list of view": listed(values(["a", "b"], pa.string_view())),
    "struct of runs": inside(runs),
}


def same(found: pa.Array, expected: pa.Array) -> bool:
    """Equal values and types, NaN like itself."""
    if found.type != expected.type:
        return False
    a, b = plain(found), plain(expected)
    if pa.types.is_float16(a.type):
        return a.view(pa.uint16()).equals(b.view(pa.uint16()))
    return bool(a.equals(b))


def in_order(batches: list[pa.RecordBatch], column: str) -> pa.Array:
    """A column of the output, its rows in the order of `row`."""
    parts = [plain(b.column(column)) for b in batches]
    rows = np.concatenate([np.asarray(b.column("row")) for b in batches])
    whole = pa.concat_arrays(parts)
    return whole.take(pa.array(np.argsort(rows, kind="stable")))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("make", CARRIED.values(), ids=CARRIED)
def test_columns_of_the_stream_come_out_as_they_went_in(make, algorithm) -> None:
    """Also where rows of several batches wait, and a snapshot lies between."""
    master = ss.open_master(pa.table({"k": range(9), "v": range(9)}), key="k")

    def new_join() -> ss.SemiStreamJoin:
        return ss.SemiStreamJoin(master, "k", "left", algorithm=algorithm, memory="2MB")

    join, out, columns = new_join(), [], [make(batch) for batch in range(3)]
    for batch, column in enumerate(columns):
        keys = pa.array([i % 11 for i in range(ROWS)])
        rows = pa.array([batch * ROWS + i for i in range(ROWS)])
        stream = pa.RecordBatch.from_arrays([keys, column, rows], names=["k", "d", "row"])
        out += join.push(stream)
    if algorithm != "memory":
        snapshot, join = join.snapshot(), new_join()
        join.restore(snapshot)
    out += join.drain()
    assert all(b.schema == join.output_schema for b in out)
    assert join.output_schema.field("d").type == columns[0].type
    assert same(in_order(out, "d"), pa.concat_arrays([plain(c) for c in columns]))


@pytest.mark.parametrize("kind", ["memory", "map", "pread", "batches", "upsert"])
@pytest.mark.parametrize("make", [*CARRIED.values(), runs], ids=[*CARRIED, "runs"])
def test_columns_of_a_master_come_out_as_plain_values(make, kind, tmp_path) -> None:
    column = make(0)
    table, path = pa.table({"k": range(ROWS), "d": column}), tmp_path / "store"
    if kind == "memory":
        master = ss.open_master(table, key="k")
    elif kind == "batches":
        master = ss.Store.create(path, table.to_batches(), key="k")
    elif kind == "upsert":
        master = ss.Store.create(path, table.slice(0, 5), key="k").upsert(table.slice(3))
    else:
        ss.Store.create(path, table, key="k")
        master = ss.Store.open(path, io=kind)
    for algorithm in ALGORITHMS:
        stream = pa.record_batch({"k": range(ROWS), "row": range(ROWS)})
        out = list(ss.join_batches([stream, stream], master, on="k", algorithm=algorithm))
        expected = plain(column).take(pa.array([i // 2 for i in range(2 * ROWS)]))
        assert same(in_order(out, "d"), expected), algorithm


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_encodings_inside_nested_columns_are_refused(make, tmp_path) -> None:
    table = pa.Table.from_arrays([pa.array(range(ROWS)), make(0)], names=["k", "d"])
    with pytest.raises(ss.SpecError, match=r"'d' is .* cast it to plain values first"):
        ss.Store.create(tmp_path / "s", table, key="k")
    with pytest.raises(ss.SpecError, match="master column 'd'"):
        ss.open_master(table, key="k")
    with pytest.raises(ss.SpecError, match="stream column 'd'"):
        ss.SemiStreamJoin(pa.table({"k": [1]}), "k", stream_schema=table.schema)


def test_runs_of_a_stream_are_refused() -> None:
    schema = pa.schema([("k", pa.int64()), ("d", runs(0).type)])
    with pytest.raises(ss.SpecError, match=r"'d' is run_end_encoded.*run_end_decode"):
        ss.SemiStreamJoin(pa.table({"k": [1]}), "k", stream_schema=schema)


def test_extension_types_as_keys_are_refused() -> None:
    table = pa.table({"k": stored(pa.uuid(), [b"0" * 16])(0)})
    with pytest.raises(ss.KeyTypeError, match=r"use its storage \(fixed_size_binary\[16\]\)"):
        ss.open_master(table, "k")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_values_than_a_dictionary_can_say_make_smaller_batches(algorithm) -> None:
    """Four batches with 100 values each: no int8 dictionary holds all 400."""
    master = ss.open_master(pa.table({"k": range(1000), "v": range(1000)}), key="k")
    join, out = ss.SemiStreamJoin(master, "k", "left", algorithm=algorithm, memory="2MB"), []
    for batch in range(4):
        words = pa.array([f"{batch}-{i}" for i in range(100)])
        column = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), words)
        rows = pa.array([100 * batch + i for i in range(100)])
        out += join.push(pa.RecordBatch.from_arrays([rows, rows, column], names=["k", "row", "d"]))
    out += join.drain()
    assert {b.schema.field("d").type for b in out} == {pa.dictionary(pa.int8(), pa.string())}
    assert in_order(out, "d").to_pylist() == [f"{b}-{i}" for b in range(4) for i in range(100)]


@pytest.mark.parametrize("io", ["map", "pread"])
@pytest.mark.parametrize(
    "wide", [[f"item {i}" for i in range(9_000)], [True] * 300_000, [[1] * 9] * 9_000], ids=len
)
def test_the_least_budget_is_enough_for_wide_nested_values(wide, io, tmp_path) -> None:
    narrow = wide[:1]
    table = pa.table({"k": range(300), "d": [wide if i == 5 else narrow for i in range(300)]})
    ss.Store.create(tmp_path / "s", table, key="k")
    master = ss.Store.open(tmp_path / "s", io=io)
    for algorithm in ALGORITHMS:
        memory, schema = 1, pa.schema([("k", pa.int64())])
        while True:
            try:
                join = ss.SemiStreamJoin(
                    master, "k", algorithm=algorithm, memory=memory, stream_schema=schema
                )
                break
            except ss.BudgetError as error:
                memory = error.least
        out = [*join.push(pa.record_batch({"k": [5, 6, 7]})), *join.drain()]
        assert sum(map(len, out)) == 3
        assert join.stats.peak_bytes <= memory
