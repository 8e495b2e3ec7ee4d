"""The data of the benchmarks and the demo: products, and sales that point at them.

Everything is a pure function of its arguments. A product's columns are a function of its key, so
any slice of the master can be made anywhere, in a Spark task for instance. A sale's key is a Zipf
rank sent through a seeded permutation, so hot products lie scattered over the master. Neither needs
a table: 100 million products take no more memory than the slice that is being made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.kernels.arrays import F64, I64, U64

KEY = "product_id"

_INSTANT = pa.timestamp("us", tz="UTC")
MASTER_SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.int64(), nullable=False),
        ("name", pa.string()),
        ("category", pa.int32()),
        ("price", pa.float64()),
        ("cost", pa.float64()),
        ("weight", pa.float64()),
        ("rating", pa.float64()),
        ("supplier_id", pa.int64()),
        ("stock", pa.int64()),
        ("brand", pa.string()),
        ("listed_at", _INSTANT),
        ("changed_at", _INSTANT),
    ]
)
STREAM_SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.int64(), nullable=False),
        ("quantity", pa.int32()),
        ("sold_at", _INSTANT),
    ]
)

_ADJECTIVES = pa.array(["Amber", "Bold", "Calm", "Elegant", "Golden", "Handy", "Modern", "Plain"])
_NOUNS = pa.array(["Armchair", "Basket", "Candle", "Drawer", "Guitar", "Hammock", "Kettle", "Oven"])
_BRANDS = pa.array(["Aldermoor", "Brightwell", "Castellane", "Driftwood", "Fernworthy", "Harrow"])
_EPOCH = 1_700_000_000_000_000  # microseconds; a fixed date keeps every file reproducible
_YEAR = 365 * 86_400_000_000


# --- the master ---------------------------------------------------------------------------------


def master_table(first: int, count: int) -> pa.Table:
    """Products `first` .. `first + count - 1`, in key order, about 120 bytes each."""
    keys = np.arange(first, first + count, dtype=np.int64)
    cents = _draw(keys, 3, 100_000)
    columns = {
        KEY: keys,
        "name": _names(keys),
        "category": _draw(keys, 2, 1_000).astype(np.int32),
        "price": cents / 100.0,
        "cost": cents * (50 + _draw(keys, 4, 40)) / 10_000.0,
        "weight": _draw(keys, 5, 1 << 40) / float(1 << 34),
        "rating": _draw(keys, 6, 501) / 100.0,
        "supplier_id": _draw(keys, 7, 1 << 40),
        "stock": _draw(keys, 8, 5_000),
        "brand": _BRANDS.take(pa.array(_draw(keys, 9, len(_BRANDS)))),
        "listed_at": _EPOCH - _draw(keys, 10, 5 * _YEAR),
        "changed_at": _EPOCH - _draw(keys, 11, _YEAR),
    }
    return _table(columns, MASTER_SCHEMA)


def master_row_bytes() -> float:
    """Bytes of one product in Arrow memory: what "10 % of the master" is a share of."""
    return float(master_table(1_000_000, 10_000).nbytes) / 10_000


def _names(keys: I64) -> Any:
    adjectives = _ADJECTIVES.take(pa.array(_draw(keys, 0, len(_ADJECTIVES))))
    nouns = _NOUNS.take(pa.array(_draw(keys, 1, len(_NOUNS))))
    numbers = pc.utf8_lpad(pa.array(keys).cast(pa.string()), width=10, padding="0")
    return pc.binary_join_element_wise(adjectives, nouns, numbers, " ")


def _draw(keys: I64, column: int, below: int) -> I64:
    """Integers in [0, below), one per key, that look random but depend on key and column only."""
    mixed = _mix(keys.astype(np.uint64) * np.uint64(16) + np.uint64(column))
    return ((mixed >> np.uint64(11)) % np.uint64(below)).astype(np.int64)


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    arrays = [pa.array(columns[f.name]).cast(f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


# --- the stream ---------------------------------------------------------------------------------


def stream_table(
    rng: np.random.Generator,
    n: int,
    rows: int,
    skew: float,
    *,
    seed: int = 0,
    ordered: bool = False,
) -> pa.Table:
    """`n` sales of `rows` products, 20 bytes each, popularity Zipf(`skew`).

    `seed` says which products are the popular ones. It must stay the same over one stream (each
    batch continues `rng`), or every batch would have a new set of hot keys. `ordered`: the first
    products are the popular ones, so that the master lies in the order of popularity.
    """
    ranks = zipf_ranks(rng, n, rows, skew)
    return sales_table(rng, ranks if ordered else rank_to_key(ranks, rows, seed))


def sales_table(rng: np.random.Generator, keys: I64) -> pa.Table:
    """One sale of each of these products, in this order, 20 bytes each."""
    n = len(keys)
    columns = {
        KEY: keys,
        "quantity": rng.integers(1, 10, n, dtype=np.int32),
        "sold_at": _EPOCH + np.sort(rng.integers(0, 1_000_000 * max(n, 1), n)),
    }
    return _table(columns, STREAM_SCHEMA)


def zipf_ranks(rng: np.random.Generator, n: int, rows: int, skew: float) -> I64:
    """`n` ranks in [0, rows), rank k with probability proportional to (k + 1) ** -skew; exact.

    Rejection-inversion (Hörmann and Derflinger 1996): draw from the continuous x ** -skew, round to
    the nearest rank, reject the little that rounding adds. No table, so `rows` costs nothing.
    """
    if rows < 1 or skew < 0:
        raise ValueError(f"zipf_ranks needs rows >= 1 and skew >= 0, got rows={rows}, skew={skew}")
    if skew == 0:
        return rng.integers(0, rows, n)
    ranks = np.empty(n, dtype=np.int64)
    done = 0
    while done < n:
        kept = _zipf_draw(rng, n - done, rows, skew)
        ranks[done : done + len(kept)] = kept
        done += len(kept)
    return ranks


def _zipf_draw(rng: np.random.Generator, n: int, rows: int, skew: float) -> I64:
    """One round of rejection-inversion: at most `n` ranks, those that were accepted."""
    low = _area(np.array(1.5), skew) - 1.0
    high = _area(np.array(rows + 0.5), skew)
    area = low + rng.random(n) * (high - low)
    x = _inverse_area(area, skew)
    ranks = np.clip(np.floor(x + 0.5), 1, rows)
    accepted = area >= _area(ranks + 0.5, skew) - ranks**-skew
    return ranks[accepted].astype(np.int64) - 1


def _area(x: F64, skew: float) -> F64:
    """Integral of t ** -skew from 1 to x."""
    if skew == 1:
        return np.log(x)
    return np.expm1((1 - skew) * np.log(x)) / (1 - skew)


def _inverse_area(area: F64, skew: float) -> F64:
    if skew == 1:
        return np.exp(area)
    return np.exp(np.log1p((1 - skew) * area) / (1 - skew))


def rank_to_key(ranks: I64, rows: int, seed: int) -> I64:
    """A seeded one-to-one map of [0, rows) onto itself: which product has which popularity.

    A four-round Feistel network permutes the next power of four above `rows`; a value that lands
    beyond `rows` is sent round again until it is inside, which keeps the map one-to-one.
    """
    half = max(1, -(-int(rows - 1).bit_length() // 2))
    keys = _feistel(ranks.astype(np.uint64), half, seed)
    outside = np.flatnonzero(keys >= rows)
    while len(outside):
        keys[outside] = _feistel(keys[outside], half, seed)
        outside = outside[keys[outside] >= rows]
    return keys.astype(np.int64)


def _feistel(values: U64, half: int, seed: int) -> U64:
    """Permute the integers below 4 ** half."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for turn in range(4):
        salt = np.uint64((seed * 4 + turn) % (1 << 31) << 32)
        left, right = right, left ^ (_mix(right | salt) & mask)
    return (left << shift) | right


def _mix(values: U64) -> U64:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
