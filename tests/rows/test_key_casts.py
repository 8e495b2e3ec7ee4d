"""Every pair of key types, with the extremes of both, against Python's own arithmetic.

A key of the stream is brought to the master's type. That is exact, or the value is known to have no
equal there, or the pair of types is refused: nothing else may happen.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream as ss
from semistream import KeyTypeError
from semistream.rows.keys import coerce, key_coder

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = [None, "UTC", "Asia/Tokyo", "+02:00"]
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
DECIMALS = [pa.decimal32(1, 0), pa.decimal32(6, 2), pa.decimal32(9, 0), pa.decimal32(9, 9)]
DECIMALS += [pa.decimal64(18, 2), pa.decimal64(18, 0), pa.decimal64(10, 10), pa.decimal64(5, -3)]
DECIMALS += [pa.decimal128(5, 2), pa.decimal128(20, 10), pa.decimal128(38, 0)]
DECIMALS += [pa.decimal128(38, 37), pa.decimal128(38, 38), pa.decimal128(7, -5)]
DECIMALS += [pa.decimal256(45, 37), pa.decimal256(60, 50), pa.decimal256(76, 0)]
DECIMALS += [pa.decimal256(76, 76), pa.decimal256(40, -20)]
FAMILIES = [
    [pa.bool_()],
    [*INTEGERS, *DECIMALS],
    [pa.date32(), pa.date64()],
    [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    [pa.duration(unit) for unit in UNITS],
    [pa.timestamp(unit) for unit in UNITS],
    [pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES if zone],
]
PAIRS = [(a, b) for family in FAMILIES for a in family for b in family]


def limits(t: pa.DataType) -> tuple[int, int]:
    """The least and the greatest number that may stand in the bytes of a value."""
    if pa.types.is_boolean(t):
        return 0, 1
    if pa.types.is_decimal(t):
        return 1 - 10**t.precision, 10**t.precision - 1
    if pa.types.is_unsigned_integer(t):
        return 0, 2**t.bit_width - 1
    return -(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1


def worth(t: pa.DataType) -> Fraction:
    """What the number 1 in the bytes of a value stands for."""
    if pa.types.is_decimal(t):
        return Fraction(10) ** -t.scale
    if pa.types.is_date(t):
        return Fraction(86_400) if pa.types.is_date32(t) else Fraction(1, 1000)
    return Fraction(1, UNITS[t.unit]) if hasattr(t, "unit") else Fraction(1)


def column(t: pa.DataType, numbers: list[int | None]) -> pa.Array:
    """An array with these numbers in its bytes: no conversion that could go wrong."""
    if pa.types.is_boolean(t):
        return pa.array([None if n is None else bool(n) for n in numbers])
    width = t.bit_width // 8
    signed = not pa.types.is_unsigned_integer(t)
    raw = b"".join((n or 0).to_bytes(width, "little", signed=signed) for n in numbers)
    bits = sum(1 << i for i, n in enumerate(numbers) if n is not None)
    validity = pa.py_buffer(bits.to_bytes(len(numbers) // 8 + 1, "little"))
    return pa.Array.from_buffers(t, len(numbers), [validity, pa.py_buffer(raw)])


def numbers_in(array: pa.Array) -> list[int | None]:
    t, valid = array.type, array.is_valid().to_pylist()
    if pa.types.is_boolean(t):
        return [None if v is None else int(v) for v in array.to_pylist()]
    width, raw = t.bit_width // 8, array.buffers()[1].to_pybytes()
    signed = not pa.types.is_unsigned_integer(t)
    every = [
        raw[i * width : (i + 1) * width] for i in range(array.offset, array.offset + len(array))
    ]
    numbers = [int.from_bytes(piece, "little", signed=signed) for piece in every]
    return [n if ok else None for n, ok in zip(numbers, valid, strict=True)]


def check(stream: pa.DataType, master: pa.DataType, numbers: list[int]) -> bool:
    """Bring numbers of the stream's type to the master's; False if the pair is refused."""
    schemas = (pa.schema([("k", t)]) for t in (stream, master))
    try:
        key_coder("k", *schemas)
    except KeyTypeError:
        return False
    array = column(stream, [0, None, 1, None, *numbers, None, 0])[3:-1]  # slices are usual, too
    result, exact = coerce(array, master)
    assert result.type == master
    found = numbers_in(result)
    for i in (0, -1):  # NULL
        assert found[i] is None or (exact is not None and not exact[i])
    least, most = limits(master)
    for i, number in enumerate(numbers, 1):
        value = number * worth(stream)
        wanted = value / worth(master)
        if wanted.denominator == 1 and least <= wanted <= most:
            assert exact is None or exact[i], f"{value} of {stream} is {wanted} in {master}"
            assert found[i] == wanted, f"{value} of {stream} is {wanted} in {master}"
        else:
            assert exact is not None, f"{value} of {stream} has no equal in {master}"
            assert not exact[i], f"{value} of {stream} has no equal in {master}"
    return True


def around(stream: pa.DataType, master: pa.DataType) -> list[int]:
    """Numbers of the stream's type near every limit of both types, and near nothing."""
    low, high = limits(stream)
    ratio = worth(master) / worth(stream)
    near = [low, high, 0, *(int(limit * ratio) for limit in limits(master)), int(ratio)]
    near += [int(k * ratio) for k in (2, 3, 10, -10, 7_000_000)]
    found = {n + d for n in near for d in (-2, -1, 0, 1, 2)} | {10**e for e in range(20)}
    return sorted(n for n in found if low <= n <= high)


@pytest.mark.parametrize(("stream", "master"), PAIRS, ids=str)
def test_extremes_are_exact_or_have_no_equal(stream: pa.DataType, master: pa.DataType) -> None:
    check(stream, master, around(stream, master))


def test_few_pairs_are_refused() -> None:
    """Only decimals so far apart that no type of Arrow holds both."""
    refused = [(a, b) for a, b in PAIRS if not check(a, b, [0])]
    assert all(pa.types.is_decimal(a) or pa.types.is_decimal(b) for a, b in refused)
    assert len(refused) < len(PAIRS) / 8


def test_bytes_of_two_lengths_are_never_equal() -> None:
    schemas = (pa.schema([("k", pa.binary(n))]) for n in (2, 4))
    with pytest.raises(KeyTypeError, match=r"fixed_size_binary\[2\].*never equal"):
        key_coder("k", *schemas)


@pytest.mark.parametrize("values", [[1, 2], [Decimal("1.25"), Decimal(-7)]], ids=str)
def test_dictionaries_of_numbers_against_decimals(values: list[object]) -> None:
    column = pa.array(values).dictionary_encode()
    master = pa.table(
        {"k": pa.array([Decimal(v) for v in values], pa.decimal128(5, 2)), "m": [1, 2]}
    )
    out = ss.join_batches([pa.record_batch({"k": column})], master, on="k")
    assert sorted(pa.Table.from_batches(out)["m"].to_pylist()) == [1, 2]


@given(st.sampled_from(PAIRS), st.data())
def test_any_value_is_exact_or_has_no_equal(
    pair: tuple[pa.DataType, pa.DataType], data: st.DataObject
) -> None:
    stream, master = pair
    whole = st.integers(*limits(stream))
    ratio = worth(master) / worth(stream)
    low, high = limits(stream)
    inside = st.integers(*limits(master)).map(lambda n: int(n * ratio))
    close = inside.filter(lambda n: low <= n <= high)
    check(stream, master, data.draw(st.lists(st.one_of(whole, close), min_size=1, max_size=20)))
