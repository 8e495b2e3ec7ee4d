"""Codes of keys that are hashed: the published hash, and never trusted without a look."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from semistream.kernels import hashing
from semistream.rows import keys
from semistream.testing import check_join
from tests.helpers.sample_data import ALGORITHMS, KEY_VALUES, build, keys_for

KEY_TYPES = list(KEY_VALUES)


@pytest.mark.parametrize(
    "t", [pa.string(), pa.binary(), pa.binary(4), pa.decimal128(9, 2)], ids=str
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_colliding_hashes_never_match(t, algorithm, monkeypatch, tmp_path) -> None:
    """With one hash for all keys, only the comparison of values keeps them apart."""

    def all_the_same(*arguments) -> None:
        arguments[-1][:] = np.uint64(42)

    monkeypatch.setattr(hashing, "hash_var", all_the_same)
    monkeypatch.setattr(hashing, "hash_fixed", all_the_same)
    rng = random.Random(5)
    for i, key in enumerate((["k"], ["k", "l"])):
        table = pa.table({name: keys_for(t, 90, rng) for name in key})
        stream = pa.table({name: keys_for(t, 60, rng) for name in key})
        table, stream = (
            x.append_column(c, [range(len(x))]) for x, c in ((table, "v"), (stream, "n"))
        )
        for kind, how in (("map", "left"), ("pread", "anti"), ("memory", "semi")):
            path = tmp_path / f"{i}{kind}"
            path.mkdir()
            master = build(kind, table, key, path)
            check_join(
                master, stream, on=key, how=how, algorithm=algorithm, memory="2MB", table=table
            )


def test_hash_is_the_published_xxh64() -> None:
    rng = random.Random(6)
    texts = [rng.randbytes(n) for n in [*range(70), 127, 128, 1000]]
    for t in (pa.binary(), pa.large_binary()):
        codes = keys.codes_of([pa.array(texts, t)])
        assert [c % 2**64 for c in codes.tolist()] == [xxhash.xxh64_intdigest(x) for x in texts]


def test_hash_of_several_columns_is_chained() -> None:
    """As the store's format says: the hash of one column seeds the next."""
    arrays = [pa.array(["ab", "c"]), pa.array([5, -1], pa.int32())]
    expected = [
        xxhash.xxh64_intdigest(int(n).to_bytes(8, "little", signed=True), xxhash.xxh64_intdigest(s))
        for s, n in ((b"ab", 5), (b"c", -1))
    ]
    assert [c % 2**64 for c in keys.codes_of(arrays).tolist()] == expected


def test_codes_do_not_depend_on_slices_or_offsets() -> None:
    for t in KEY_TYPES:
        array = keys_for(t, 50, random.Random(7), nulls=0)
        array = array.cast(pa.string()) if keys.plain_type(t) != t else array
        whole = keys.codes_of([array])
        assert (keys.codes_of([array.slice(13, 20)]) == whole[13:33]).all()
