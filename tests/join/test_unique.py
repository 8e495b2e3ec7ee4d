"""validate="many_to_one" and unique=True: a key with two rows is an error with an example, or is
counted."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.testing import oracle, rows_of
from tests.helpers.sample_data import DISK, build, sales

ONCE = pa.table({"id": range(40), "name": [f"n{i}" for i in range(40)]})
TWICE = pa.concat_tables([ONCE, pa.table({"id": [7], "name": ["again"]})])
STREAM = sales(random.Random(1), 60, [*range(45), None])
KINDS = ["memory", "map", "pread", "parquet", "unsorted"]


def _able(kind: str) -> list[str]:
    """meshjoin's family joins with anything, the others need an index."""
    every = [*DISK, "memory"]
    return [a for a in every if kind != "unsorted" or ss.ALGORITHMS[a].needs != "index"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_with_two_rows_is_an_error_that_names_it(kind, tmp_path) -> None:
    master = build(kind, TWICE, "id", tmp_path)
    stream = pa.record_batch({"id": [3, 7, 8]})
    for algorithm in _able(kind):
        for how in ("inner", "left", "semi", "anti"):
            join = ss.SemiStreamJoin(
                master, "id", how, algorithm=algorithm, memory="2MB", validate="many_to_one"
            )
            with pytest.raises(ss.DuplicateKeyError, match="more than one row for id=7, and") as it:
                list(join.push(stream)) + list(join.drain())
            assert (it.value.key, it.value.count) == ({"id": 7}, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_unique_keys_pass(kind, tmp_path) -> None:
    master = build(kind, ONCE, "id", tmp_path)
    for i, algorithm in enumerate(_able(kind)):
        how = ("inner", "left", "semi", "anti")[i % 4]
        out = ss.join_batches(
            STREAM.to_batches(), master, "id", how, algorithm=algorithm, memory="2MB",
            validate="m:1",
        )  # fmt: skip
        assert sorted(map(repr, rows_of(out))) == sorted(map(repr, oracle(STREAM, ONCE, "id", how)))


@pytest.mark.parametrize("kind", ["pread", "map", "unsorted"])
def test_rows_on_two_pages_are_noticed(kind, tmp_path) -> None:
    """The second row comes with another read, when the first is out."""
    table = pa.table({"id": [*range(300), 7, *range(300, 600)], "text": ["x" * 500] * 601})
    master = build(kind, table, "id", tmp_path)
    params = ss.Params(read_bytes=1)
    for algorithm in _able(kind):
        asked = (master, "id", "left", None, algorithm, "2MB", params)
        join = ss.SemiStreamJoin(*asked, validate="many_to_one")
        with pytest.raises(ss.DuplicateKeyError):
            list(join.push(pa.record_batch({"id": [7]}))) + list(join.drain())


def test_several_columns_and_several_keys(tmp_path) -> None:
    table = pa.table({"a": ["x", "x", "y", "y", "z"], "b": [1, 1, 2, 2, 3], "v": range(5)})
    master = build("map", table, ["a", "b"], tmp_path)
    join = ss.SemiStreamJoin(master, ["a", "b"], validate="many_to_one", algorithm="sweepjoin")
    with pytest.raises(ss.DuplicateKeyError, match=r"a='.', b=. and 1 other keys") as caught:
        list(join.push(pa.record_batch({"a": ["x", "y", "z"], "b": [1, 2, 3]}))) + list(
            join.drain()
        )
    assert caught.value.count == 2


def test_keys_that_share_a_hash_are_not_duplicates(tmp_path) -> None:
    """Two keys of 16 bytes with one XXH64, found by inverting its rounds."""
    one, two = _same_hash(2)
    master = build("map", pa.table({"id": [one, two], "v": [1, 2]}), "id", tmp_path)
    for algorithm in [*DISK, "memory"]:
        batch = pa.record_batch({"id": [one, two, one]})
        found = ss.join_batches([batch], master, "id", algorithm=algorithm, validate="many_to_one")
        assert sorted(v for _, v in rows_of(found)) == [1, 1, 2], algorithm


def test_rows_can_be_saved_after_the_error(tmp_path) -> None:
    master = build("pread", TWICE, "id", tmp_path)
    join = ss.SemiStreamJoin(master, "id", algorithm="sweepjoin", validate="many_to_one")
    out = list(join.push(pa.record_batch({"id": [3, 7]})))
    with pytest.raises(ss.DuplicateKeyError):
        join.drain()
    fresh = ss.SemiStreamJoin(master, "id", algorithm="sweepjoin")
    fresh.restore(join.snapshot())
    assert sorted(rows_of([*out, *fresh.drain()])) == [(3, "n3"), (7, "again"), (7, "n7")]


def test_without_it_they_are_counted(tmp_path) -> None:
    master = build("pread", TWICE, "id", tmp_path)
    for how, extra in (("inner", 2), ("left", 2), ("semi", 0)):
        join = ss.SemiStreamJoin(master, "id", how, algorithm="meshjoin")
        list(join.push(pa.record_batch({"id": [7, 8, 7, 99]})))
        list(join.drain())
        assert join.stats.extra_rows == extra


def test_a_master_may_be_opened_so(tmp_path) -> None:
    once, twice = (build("unsorted", t, "id", tmp_path / str(i)) for i, t in _paths(tmp_path))
    batch = pa.record_batch({"id": [7]})
    for master, fits in ((once, True), (twice, False)):
        master.require_unique()
        join = ss.SemiStreamJoin(master, "id", algorithm="meshjoin")
        if fits:
            assert rows_of([*join.push(batch), *join.drain()]) == [(7, "n7")]
        else:
            with pytest.raises(ss.DuplicateKeyError):
                list(join.push(batch)) + list(join.drain())


def _paths(folder):
    for i, table in enumerate((ONCE, TWICE)):
        (folder / str(i)).mkdir()
        yield i, table


def test_a_table_in_memory_tells_at_once() -> None:
    assert ss.open_master(ONCE, key="id", unique=True).describe().unique
    with pytest.raises(ss.DuplicateKeyError, match=r"1 keys .* such as id=7, and unique=True"):
        ss.open_master(TWICE, key="id", unique=True)
    one, two = _same_hash(2)  # two keys with one code
    ss.open_master(pa.table({"id": [one, two]}), key="id", unique=True)


def test_a_file_tells_when_a_join_meets_the_key(tmp_path) -> None:
    pq.write_table(TWICE, tmp_path / "m.parquet")
    master = ss.open_master(tmp_path / "m.parquet", key="id", unique=True)
    assert rows_of(ss.join_batches([pa.record_batch({"id": [3]})], master, "id")) == [(3, "n3")]
    with pytest.raises(ss.DuplicateKeyError, match="id=7"):
        list(ss.join_batches([pa.record_batch({"id": [7]})], master, "id"))


@pytest.mark.parametrize("word", ["one_to_one", "1:m", "sometimes"])
def test_words_that_cannot_be_kept_are_refused(word) -> None:
    with pytest.raises(ss.SpecError, match=f"validate='{word}'.*choose"):
        ss.SemiStreamJoin(ONCE, "id", validate=word)


M64 = (1 << 64) - 1
P1, P2, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotated(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & M64


def _same_hash(count: int) -> list[bytes]:
    i1, i2 = (pow(p, -1, 1 << 64) for p in (P1, P2))
    found = []
    for i in range(count):
        first = 0x4141414100000000 | i
        mixed = _rotated(first * P2 & M64, 31) * P1 & M64
        state = (_rotated(((P5 + 16) & M64) ^ mixed, 27) * P1 + P4) & M64
        need = _rotated((0x1234567890ABCDEF - P4) * i1 & M64, 37) ^ state
        second = _rotated(need * i1 & M64, 33) * i2 & M64
        found.append(first.to_bytes(8, "little") + second.to_bytes(8, "little"))
    return found
