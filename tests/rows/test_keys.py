"""Keys: every type, both sides, widened exactly, verified by value."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, check_join
from tests.helpers.sample_data import ALGORITHMS, HOWS, KEY_VALUES, build, keys_for

KEY_TYPES = list(KEY_VALUES)
INTEGERS = [t for t in KEY_TYPES if pa.types.is_integer(t)]
MOMENTS = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
SPANS = [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
BYTES = [pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view()]
DECIMALS = [
    pa.decimal128(5, 2),
    pa.decimal128(38, 0),
    pa.decimal128(38, 18),
    pa.decimal256(60, 20),
    pa.decimal256(76, 0),
]
ZONED = [pa.timestamp("s", "UTC"), pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "+02:00")]


def join(stream: pa.Array, master: pa.Array, how: str = "inner") -> list[tuple[int, int]]:
    """Row numbers of the matches between two key columns."""
    rows = pa.table({"key": master, "m": range(len(master))})
    batch = pa.record_batch({"key": stream, "s": range(len(stream))})
    out = list(ss.join_batches([batch], rows, on="key", how=how, algorithm="sweepjoin"))
    table = pa.Table.from_batches(out) if out else pa.table({"s": [], "m": []})
    return sorted(zip(table["s"].to_pylist(), table["m"].to_pylist(), strict=True))


@pytest.mark.parametrize("t", KEY_TYPES, ids=str)
def test_every_type_on_both_sides(t, tmp_path) -> None:
    rng = random.Random(1)
    table = pa.table({"key": keys_for(t, 60, rng), "v": range(60)})
    stream = pa.table({"key": keys_for(t, 80, rng), "n": range(80)})
    for seed, algorithm in enumerate(ALGORITHMS):
        path = tmp_path / str(seed)
        path.mkdir()
        master = build(("pread", "map")[seed % 2], table, "key", path)
        check_join(
            master,
            stream,
            on="key",
            how=HOWS[seed % len(HOWS)],
            algorithm=algorithm,
            memory="1MB",
            table=table,
            rng=seed,
        )


def _pairs(*families: list[pa.DataType]) -> list[tuple[pa.DataType, pa.DataType]]:
    return [(a, b) for family in families for a in family for b in family if a != b]


@pytest.mark.parametrize(
    ("stream", "master"), _pairs(INTEGERS, [pa.date32(), pa.date64()], TEXTS), ids=str
)
def test_widening(stream, master) -> None:
    """The same values in two types of a kind, beside values that only one type can hold."""
    values = {t: KEY_VALUES.get(t, KEY_VALUES[pa.string()]) for t in (stream, master)}
    left, right = (
        pa.array([*values[stream], None], stream),
        pa.array([*values[master], None], master),
    )
    expected = [
        (i, j) for i, a in enumerate(values[stream]) for j, b in enumerate(values[master]) if a == b
    ]
    assert join(left, right) == sorted(expected)
    assert expected


@pytest.mark.parametrize(("stream", "master"), _pairs(MOMENTS, ZONED, SPANS), ids=str)
def test_units_and_zones(stream, master) -> None:
    """Equal instants match in any unit and zone; what a unit cannot express matches nothing."""
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

    def column(t, seconds, odd):
        values = [s * per[t.unit] for s in seconds] + [odd, None]
        return pa.array(values, pa.int64()).view(t)

    left = column(stream, [0, 1, -1, 10**9], 7)
    right = column(master, [10**9, -1, 5, 0], 7)
    assert join(left, right) == [(0, 3), (2, 1), (3, 0)]


@pytest.mark.parametrize(("stream", "master"), _pairs(TIMES), ids=str)
def test_times_of_day(stream, master) -> None:
    values = [dt.time(0), dt.time(12), dt.time(23, 59, 59)]
    assert join(pa.array(values, stream), pa.array(values[::-1], master)) == [
        (0, 2),
        (1, 1),
        (2, 0),
    ]


@pytest.mark.parametrize(("stream", "master"), _pairs(BYTES), ids=str)
def test_bytes_of_any_kind(stream, master) -> None:
    fixed = pa.types.is_fixed_size_binary
    left = [b"abcd", b"\0\0\0\0", None] + ([] if fixed(stream) else [b"", b"abcde"])
    right = [b"\0\0\0\0", b"abcd", None] + ([] if fixed(master) else [b"abcde"])
    expected = [(0, 1), (1, 0)] + ([(4, 3)] if not fixed(stream) and not fixed(master) else [])
    assert join(pa.array(left, stream), pa.array(right, master)) == expected


@pytest.mark.parametrize(("stream", "master"), _pairs(DECIMALS), ids=str)
def test_decimals_of_any_scale(stream, master) -> None:
    def column(t, values):
        return pa.array(
            [None if v is None or -v.as_tuple().exponent > t.scale else v for v in values], t
        )

    left = [Decimal(3), Decimal("1.5"), Decimal("-2"), Decimal("0.000001"), None]
    right = [Decimal(-2), Decimal("1.50"), Decimal(3), Decimal("0.000001"), None]
    a, b = column(stream, left), column(master, right)
    if stream.precision + max(0, master.scale - stream.scale) > 76:
        with pytest.raises(ss.KeyTypeError, match="76 digits"):
            join(a, b)
        return
    expected = [
        (i, j)
        for i, x in enumerate(a.to_pylist())
        for j, y in enumerate(b.to_pylist())
        if x is not None and x == y
    ]
    assert join(a, b) == sorted(expected)


@pytest.mark.parametrize("decimal", DECIMALS, ids=str)
@pytest.mark.parametrize("integer", [pa.int8(), pa.int64(), pa.uint64()], ids=str)
def test_integers_and_decimals(integer, decimal) -> None:
    whole = pa.array([0, 100, 7, None], integer)
    exact = pa.array([Decimal(7), Decimal(0), Decimal(100), None], decimal)
    assert join(whole, exact) == [(0, 1), (1, 2), (2, 0)]
    assert join(exact, whole) == [(0, 2), (1, 0), (2, 1)]


def test_values_that_the_masters_type_cannot_hold_never_match() -> None:
    """300 is 44 in eight bits: the answer is "no match", not 44."""
    narrow = pa.array(range(-128, 128), pa.int8())
    assert join(pa.array([300, 256, -129, 44], pa.int64()), narrow) == [(3, 172)]
    assert join(pa.array([2**64 - 1, 1], pa.uint64()), pa.array([-1, 1], pa.int64())) == [(1, 1)]
    assert join(pa.array([-1, 1], pa.int64()), pa.array([2**64 - 1, 1], pa.uint64())) == [(1, 1)]
    half = pa.array([Decimal("1.5"), Decimal(1)], pa.decimal128(9, 1))
    assert join(half, pa.array([1, 2], pa.int32())) == [(1, 0)]
    big = pa.array([Decimal(2**63), Decimal(5)], pa.decimal128(38, 0))
    assert join(big, pa.array([-(2**63), 5], pa.int64())) == [(1, 1)]
    far = pa.array([2**62, 0], pa.int64()).view(pa.timestamp("s"))
    assert join(far, pa.array([0, 1], pa.int64()).view(pa.timestamp("ns"))) == [(1, 0)]


def test_a_value_the_masters_type_cannot_hold_is_unmatched_not_lost() -> None:
    stream = pa.record_batch({"key": pa.array([300, 1], pa.int64())})
    master = pa.table({"key": pa.array([44, 1], pa.int8()), "v": ["a", "b"]})
    out = list(ss.join_batches([stream], master, on="key", how="left"))
    assert_same_rows(out, [(300, None), (1, "b")])


@pytest.mark.parametrize("kind", ["map", "pread", "memory", "unsorted"])
def test_composite_keys_with_other_names(kind, tmp_path) -> None:
    rng = random.Random(3)
    types = [pa.int32(), pa.string(), pa.date32(), pa.bool_()]
    columns = {f"m{i}": keys_for(t, 200, rng, 0.03) for i, t in enumerate(types)}
    table = pa.table({**columns, "v": range(200)})
    wider = [pa.int64(), pa.large_string(), pa.date64(), pa.bool_()]
    some = {f"s{i}": keys_for(t, 150, rng, 0.03).cast(wider[i]) for i, t in enumerate(types)}
    stream = pa.table({**some, "n": range(150)})
    master = build(kind, table, [f"m{i}" for i in range(4)], tmp_path)
    on = {f"s{i}": f"m{i}" for i in (2, 0, 3, 1)}
    for how in HOWS:
        check_join(master, stream, on=on, how=how, algorithm="meshjoin", memory="8MB", table=table)


def test_composite_keys_do_not_run_together() -> None:
    """("ab", "c") is not ("a", "bc")."""
    master = pa.table({"a": ["ab", "a", ""], "b": ["c", "bc", "abc"], "v": [1, 2, 3]})
    batch = pa.record_batch({"a": ["a", "ab", "abc", ""], "b": ["bc", "c", "", "abc"]})
    out = list(ss.join_batches([batch], master, on=["a", "b"], algorithm="sweepjoin"))
    assert_same_rows(out, [("a", "bc", 2), ("ab", "c", 1), ("", "abc", 3)])


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "master"),
    [
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.bool_(), pa.int8()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.time32("s"), pa.duration("s")),
        (pa.decimal128(9, 2), pa.string()),
        (pa.duration("s"), pa.int64()),
    ],
    ids=str,
)
def test_types_that_are_never_equal(stream, master) -> None:
    for a, b in ((stream, master), (master, stream)):
        rows = pa.table({"k": pa.array([], b), "v": pa.array([], pa.int8())})
        with pytest.raises(ss.KeyTypeError) as caught:
            ss.SemiStreamJoin(rows, {"key": "k"}, stream_schema=pa.schema([("key", a)]))
        for part in (f"'key' is {a}", f"'k' is {b}", "cast"):
            assert part in str(caught.value)


@pytest.mark.parametrize("t", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_are_refused_with_the_reason(t, tmp_path) -> None:
    rows = pa.table({"k": pa.array([], t)})
    for call in (
        lambda: ss.open_master(rows, "k"),
        lambda: ss.Store.create(tmp_path / "s", rows, "k"),
        lambda: ss.SemiStreamJoin(pa.table({"k": [1]}), "k", stream_schema=rows.schema),
    ):
        with pytest.raises(ss.KeyTypeError, match=rf"'k' is {t}.*NaN.*cast"):
            call()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "t",
    [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null(), pa.month_day_nano_interval()],
)
def test_types_that_cannot_be_keys(t) -> None:
    with pytest.raises(ss.KeyTypeError, match=r"'k' is .*cannot be a key"):
        ss.open_master(pa.table({"k": pa.array([], t)}), "k")


def test_decimals_too_far_apart() -> None:
    a, b = pa.decimal256(76, 0), pa.decimal256(76, 70)
    assert join(pa.array([1], b), pa.array([1], pa.int64())) == [(0, 0)]  # 76 digits are enough
    for stream, master in ((a, b), (pa.int64(), b)):
        with pytest.raises(ss.KeyTypeError) as caught:
            join(pa.array([1], stream), pa.array([1], master))
        assert str(stream) in str(caught.value)
        assert str(master) in str(caught.value)
