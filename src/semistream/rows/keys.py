"""Key columns -> 64-bit codes.

One integer, date, time, timestamp or bool column keeps its natural order: the code is the value.
Everything else (strings, binary, decimals, several columns) is coded by XXH64 over the values, and
every match found by a hash is verified on the values themselves.

A stream key is first brought to the master's type, exactly: a value that the master's type cannot
hold (300 in an int8, half a day in a date) cannot match and is treated like NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import KeyTypeError, SpecError
from ..kernels import hashing
from ..kernels.arrays import I64, U64, Mask
from .chunks import too_wide
from .layout import plain, plain_type

HASH = "xxh64-chained-seed0"  # named in every store's manifest
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_MOST_DIGITS = 76  # of a decimal256
_NATURAL = ("integer", "bool", "date", "timestamp", "timestamp with zone", "time", "duration")
On = str | Sequence[str] | Mapping[str, str]  # columns of both sides, or stream's to master's


def family(t: pa.DataType) -> str | None:
    """The kind of key a type is, or None if it cannot be one."""
    tests = (
        ("bool", pa.types.is_boolean),
        ("integer", pa.types.is_integer),
        ("date", pa.types.is_date),
        ("time", pa.types.is_time),
        ("duration", pa.types.is_duration),
        ("string", lambda x: pa.types.is_string(x) or pa.types.is_large_string(x)),
        ("decimal", pa.types.is_decimal),
        (
            "binary",
            lambda x: (
                pa.types.is_binary(x)
                or pa.types.is_large_binary(x)
                or pa.types.is_fixed_size_binary(x)
            ),
        ),
    )
    t = plain_type(t)
    if pa.types.is_timestamp(t):
        return "timestamp" if t.tz is None else "timestamp with zone"
    return next((name for name, test in tests if test(t)), None)


def check_key_type(t: pa.DataType, column: str, side: str) -> None:
    if pa.types.is_floating(t):
        raise KeyTypeError(
            f"{side} key column {column!r} is {t}: floating-point numbers are refused as keys, "
            "since NaN, -0.0 and rounding make equality ambiguous; cast it to a decimal or an "
            "integer first"
        )
    if isinstance(t, pa.BaseExtensionType):
        raise KeyTypeError(
            f"{side} key column {column!r} is {t}: extension types cannot be keys; use its storage "
            f"({t.storage_type}) if that can be one"
        )
    if family(t) is None:
        raise KeyTypeError(
            f"{side} key column {column!r} is {t}, which cannot be a key; use an integer, string, "
            "binary, date, timestamp, decimal or bool column"
        )


def is_natural(types: Sequence[pa.DataType]) -> bool:
    """True where the code is the value itself: order is kept and nothing needs verifying."""
    return len(types) == 1 and family(types[0]) in _NATURAL


def is_raw(types: Sequence[pa.DataType]) -> bool:
    """True where the column's own bytes are the codes (8-byte signed values)."""
    t = types[0]
    return is_natural(types) and t.bit_width == 64 and not pa.types.is_unsigned_integer(t)


def _raw(array: pa.Array) -> I64:
    """The values of a natural key as int64 in signed order; whatever lies under a NULL."""
    t = array.type
    if pa.types.is_boolean(t):
        return np.asarray(pc.fill_null(array, False).cast(pa.int64()))
    dtype = {1: "i1", 2: "i2", 4: "i4", 8: "i8"}[t.bit_width // 8]
    unsigned = pa.types.is_unsigned_integer(t)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), np.int64)
    values = np.frombuffer(buffer, dtype.replace("i", "u") if unsigned else dtype)
    values = values[array.offset : array.offset + len(array)]
    if unsigned and t.bit_width == 64:
        return (values ^ np.uint64(1 << 63)).view(np.int64)
    return values.astype(np.int64, copy=False)


def values_of(codes: I64, t: pa.DataType) -> pa.Array:
    """The values that these codes of a natural key stand for: the reverse of `codes_of`."""
    if pa.types.is_boolean(t):
        return pa.array(codes.astype(np.bool_))
    if pa.types.is_unsigned_integer(t) and t.bit_width == 64:
        return pa.array(codes.view(np.uint64) ^ np.uint64(1 << 63))
    kind = "u" if pa.types.is_unsigned_integer(t) else "i"
    array = pa.array(codes.astype(f"{kind}{t.bit_width // 8}"))
    return array if array.type == t else array.view(t)


def codes_of(arrays: Sequence[pa.Array]) -> I64:
    """Codes of key columns (plain types, one array each); a row with a NULL gets any code."""
    types = [a.type for a in arrays]
    if is_natural(types):
        return _raw(arrays[0])
    hashes = np.zeros(len(arrays[0]), np.uint64)
    if len(hashes) == 0:
        return hashes.view(np.int64)
    for array in arrays:
        _hash_column(array, hashes)
    return hashes.view(np.int64)


def _hash_column(array: pa.Array, hashes: U64) -> None:
    t, buffers = array.type, array.buffers()
    if family(t) in _NATURAL:
        values = np.ascontiguousarray(_raw(array))
        hashing.hash_fixed(values.ctypes.data, 8, hashes)
    elif pa.types.is_decimal(t) or pa.types.is_fixed_size_binary(t):
        width = t.bit_width // 8
        hashing.hash_fixed(buffers[1].address + array.offset * width, width, hashes)
    else:
        wide = pa.types.is_large_string(t) or pa.types.is_large_binary(t)
        data = buffers[2].address if buffers[2] is not None else 0
        hashing.hash_var(buffers[1].address + array.offset * (8 if wide else 4), wide, data, hashes)


def not_null(arrays: Sequence[pa.Array]) -> Mask | None:
    """True where no key column is NULL; None when that is everywhere."""
    result: Mask | None = None
    for array in arrays:
        if array.null_count:
            valid = np.asarray(array.is_valid())
            result = valid if result is None else result & valid
    return result


# --- bringing a stream key to the master's type ------------------------------------------------


def coerce(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """The array in the master's type, and where that is exact (None: everywhere)."""
    array = plain(array)
    if array.type == target:
        return array, None
    if pa.types.is_decimal(array.type) or pa.types.is_decimal(target):
        return _to_decimal(array, target)
    kind = family(target)
    if kind == "integer":
        return _to_integer(array, target)
    if kind in _NATURAL:
        return _to_unit(array, target)
    if pa.types.is_fixed_size_binary(target):
        ok = np.asarray(pc.fill_null(pc.equal(pc.binary_length(array), target.byte_width), False))
        return pc.if_else(pa.array(ok), array, None).cast(target), ok
    try:
        return array.cast(target), None
    except pa.ArrowInvalid:  # large texts into offsets of 32 bits
        raise too_wide(target, array.nbytes) from None


def _to_integer(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask | None]:
    unsigned = pa.types.is_unsigned_integer(target)
    top = 2 ** (target.bit_width - (0 if unsigned else 1)) - 1
    bottom = 0 if unsigned else -top - 1
    has = np.iinfo(array.type.to_pandas_dtype())
    if has.min >= bottom and has.max <= top:
        return array.cast(target), None
    low, high = max(bottom, has.min), min(top, has.max)
    inside = pc.and_(
        pc.greater_equal(array, pa.scalar(low, array.type)),
        pc.less_equal(array, pa.scalar(high, array.type)),
    )
    ok = np.asarray(pc.fill_null(inside, False))
    return array.cast(target, safe=False), ok


def _per_second(t: pa.DataType) -> tuple[int, int]:
    """(numerator, denominator): how many of the type's units make a second."""
    if pa.types.is_date32(t):
        return 1, _DAY
    return (1000, 1) if pa.types.is_date64(t) else (_PER_SECOND[t.unit], 1)


def _to_unit(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Dates, times, timestamps and durations of another unit (a zone is only a way to print)."""
    (a, b), (c, d) = _per_second(array.type), _per_second(target)
    values, times, over = _raw(array), c * b, a * d
    if times >= over:
        factor = times // over
        ok = (values <= (2**63 - 1) // factor) & (values >= -(2**63 // factor))
        values = np.where(ok, values, 0) * factor
    else:
        values, rest = np.divmod(values, over // times)
        ok = rest == 0
    if target.bit_width == 32:
        has = np.iinfo(np.int32)
        ok &= (values <= has.max) & (values >= has.min)
        values = np.where(ok, values, 0).astype(np.int32)
    mask = np.asarray(array.is_null()) if array.null_count else None
    storage = pa.array(values, mask=mask)
    return storage.view(target), None if ok.all() else ok


def _to_decimal(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Between decimals of any scale, and integers. All steps are within 76 digits, where Arrow
    rescales exactly; only values that the target can hold are brought to its own width."""
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    scale = _decimal(target)[1]
    coarser = min(array.type.scale, scale)  # only the difference counts, and Arrow wants no minus
    mine, goal = (pa.decimal256(_MOST_DIGITS, s - coarser) for s in (array.type.scale, scale))
    wide = _widened(array, mine).cast(max(mine, goal, key=lambda t: t.scale))
    cut = wide.cast(goal, safe=False)
    same = pc.equal(cut.cast(wide.type, safe=False), wide)  # what was cut shows on the way back
    if pa.types.is_decimal(target):
        low, high = 1 - 10**target.precision, 10**target.precision - 1
    else:
        has = np.iinfo(target.to_pandas_dtype())
        low, high = int(has.min), int(has.max)
    within = pc.and_(
        pc.greater_equal(cut, _decimal_scalar(low, goal)),
        pc.less_equal(cut, _decimal_scalar(high, goal)),
    )
    ok = pc.fill_null(pc.and_(same, within), False)
    return _narrowed(pc.if_else(ok, cut, pa.scalar(None, goal)), target), np.asarray(ok)


def _widened(array: pa.Array, wide: pa.DataType) -> pa.Array:
    """The same numbers in 32 bytes each, whatever scale the array says they have."""
    t = array.type
    plain_scale = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
    whole = plain_scale[t.bit_width](t.precision, 0)
    whole_array = pa.Array.from_buffers(whole, len(array), array.buffers(), offset=array.offset)
    widened = whole_array.cast(pa.decimal256(_MOST_DIGITS, 0))
    return pa.Array.from_buffers(wide, len(array), widened.buffers(), offset=widened.offset)


def _narrowed(kept: pa.Array, target: pa.DataType) -> pa.Array:
    """Numbers of 32 bytes each in the bytes of `target`, which can hold them: a number in two's
    complement that fits into fewer bytes is their lowest ones."""
    if not len(kept):
        return pa.nulls(0, target)
    raw = np.frombuffer(kept.buffers()[1], np.uint8).reshape(-1, 32)
    raw = raw[kept.offset : kept.offset + len(kept), : target.bit_width // 8]
    valid = pc.is_valid(kept).cast(pa.uint8())
    bits = np.packbits(np.asarray(valid), bitorder="little")
    buffers = [pa.py_buffer(bits), pa.py_buffer(np.ascontiguousarray(raw))]
    return pa.Array.from_buffers(target, len(kept), buffers)


def _decimal_scalar(number: int, t: pa.DataType) -> pa.Scalar:
    """A decimal256 with this number in its bytes."""
    raw = pa.py_buffer(number.to_bytes(32, "little", signed=True))
    return pa.Array.from_buffers(t, 1, [None, raw])[0]


# --- the stream's side of a join -----------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Keys of one stream batch: codes, where they can match at all, and the key columns in the
    master's types."""

    codes: I64
    usable: Mask | None
    arrays: list[pa.Array]


@dataclass(frozen=True)
class KeyCoder:
    """Brings stream keys to the master's types and codes them."""

    stream: tuple[str, ...]
    master: tuple[str, ...]
    types: tuple[pa.DataType, ...]  # of the master's key columns
    verify: bool

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        if not self.stream:  # joined on a condition alone
            return Encoded(np.zeros(len(batch), np.int64), None, [])
        arrays, usable = [], None
        for name, target in zip(self.stream, self.types, strict=True):
            array, ok = coerce(batch.column(name), target)
            arrays.append(array)
            if ok is not None:
                usable = ok if usable is None else usable & ok
        valid = not_null(arrays)
        if valid is not None:
            usable = valid if usable is None else usable & valid
        return Encoded(codes_of(arrays), usable, arrays)


def pair_names(on: str | Sequence[str] | Mapping[str, str]) -> list[tuple[str, str]]:
    """(stream name, master name) for every key column."""
    if isinstance(on, str):
        return [(on, on)]
    pairs = list(on.items()) if isinstance(on, Mapping) else [(name, name) for name in on]
    if not pairs or not all(isinstance(x, str) for pair in pairs for x in pair):
        raise SpecError(
            f"on={on!r} names no key columns; give a name, a list of names, or a mapping "
            "{stream column: master column}"
        )
    return pairs


def key_coder(
    on: str | Sequence[str] | Mapping[str, str], stream: pa.Schema, master: pa.Schema
) -> KeyCoder:
    """Check both sides' key columns against each other."""
    pairs = pair_names(on)
    for side, schema, names in (
        ("stream", stream, [s for s, _ in pairs]),
        ("master", master, [m for _, m in pairs]),
    ):
        for name in names:
            found = len(schema.get_all_field_indices(name))
            if found != 1:
                problem = "does not exist" if found == 0 else f"exists {found} times"
                raise SpecError(
                    f"key column {name!r} {problem} in the {side}; it has {schema.names}"
                )
            check_key_type(schema.field(name).type, name, side)
        if len(set(names)) != len(names):
            raise SpecError(f"on={on!r} names a {side} column twice; name each one once")
    for s, m in pairs:
        _check_pair(s, stream.field(s).type, m, master.field(m).type)
    types = tuple(plain_type(master.field(m).type) for _, m in pairs)
    return KeyCoder(
        tuple(s for s, _ in pairs), tuple(m for _, m in pairs), types, not is_natural(types)
    )


def _check_pair(stream: str, a: pa.DataType, master: str, b: pa.DataType) -> None:
    kinds = {family(a), family(b)}
    plain_a, plain_b = plain_type(a), plain_type(b)
    numbers = "decimal" in kinds and kinds <= {"integer", "decimal"}
    if numbers and _digits(plain_a, plain_b) > _MOST_DIGITS:
        raise KeyTypeError(
            f"stream column {stream!r} is {a} and master column {master!r} is {b}: comparing them "
            "takes more than 76 digits; cast one of them to fewer digits first"
        )
    fixed = pa.types.is_fixed_size_binary(plain_a) and pa.types.is_fixed_size_binary(plain_b)
    comparable = not fixed or plain_a == plain_b  # bytes of two lengths are never equal
    if (len(kinds) == 1 and comparable) or kinds == {"integer", "decimal"}:
        return
    raise KeyTypeError(
        f"stream column {stream!r} is {a} and master column {master!r} is {b}: these types are "
        "never equal; cast one side to the other's type first"
    )


def _digits(stream: pa.DataType, master: pa.DataType) -> int:
    """Decimal digits it takes to compare them at the finer of their scales (see _to_decimal)."""
    digits, scale = _decimal(stream)
    return max(digits, scale - _decimal(master)[1], digits - scale + _decimal(master)[1])


def _decimal(t: pa.DataType) -> tuple[int, int]:
    return (20, 0) if pa.types.is_integer(t) else (t.precision, t.scale)
