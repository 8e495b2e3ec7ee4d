"""Wide data: long texts, many columns, nested columns, through every change of a store."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.store import change, merge
from semistream.rows import chunks, sort
from semistream.rows.chunks import Chunks, one_batch
from semistream.testing import assert_same_rows, check_join, check_master, rows_of
from tests.helpers.sample_data import ALGORITHMS

MB = 10**6


def repeated(size: int, n: int) -> pa.Array:
    """`n` texts of `size` bytes, all of them the same memory."""
    data = pa.py_buffer(b"x" * size)
    one = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, size], np.int32)), data]
    )
    return pa.chunked_array([one] * n)


# --- more than one batch can hold ----------------------------------------------------------------


def test_a_gather_beyond_32_bits_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([repeated(10 * MB, 1).chunk(0)], ["text"])
    chunks = Chunks.of(batch)
    assert chunks.widths(np.zeros(300, np.int64))[-1] > 3_000 * MB
    with pytest.raises(ss.SpecError, match=r"3000000000 bytes of a string.*make .* large_string"):
        chunks.gather(np.zeros(300, np.int64))
    (some,) = chunks.gather(np.zeros(3, np.int64))
    assert [len(text) for text in some.to_pylist()] == [10 * MB] * 3


def test_many_batches_that_are_not_one() -> None:
    """Arrow combines as many rows as fit, and leaves the others in further chunks: these must not
    be forgotten."""
    table = pa.table({"text": repeated(750 * MB, 3)})
    with pytest.raises(ss.SpecError, match="large_string"):
        one_batch(table)
    assert len(one_batch(table.slice(0, 0))) == 0


def test_a_master_in_memory_that_is_too_wide(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "MOST_BYTES", 5_000)
    table = pa.table({"id": range(20), "text": ["x" * 1_000] * 20})
    with pytest.raises(ss.SpecError, match="large_string"):
        ss.open_master(table, "id")
    wide = table.set_column(1, "text", table["text"].cast(pa.large_string()))
    check_master(ss.open_master(wide, "id"), wide, "id")


# --- pieces by bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("spill_bytes", [1, 5_000, 1 << 30])
@pytest.mark.parametrize("text_key", [False, True])
@pytest.mark.parametrize("limit", [1, 3_000])
def test_pieces_end_between_keys(limit, text_key, spill_bytes, tmp_path, monkeypatch) -> None:
    """However few bytes a piece may have, all rows of a key are changed together."""
    monkeypatch.setattr(sort, "PIECE_BYTES", limit)
    monkeypatch.setattr(change, "OLD_BYTES", limit)
    monkeypatch.setattr(merge, "MERGE_BYTES", limit)
    rng = random.Random(limit)

    def table(keys: list[int], what: str) -> pa.Table:
        ids = [f"key {k}" for k in keys] if text_key else keys
        return pa.table({"id": ids, "v": [what * rng.randint(0, 900) for _ in keys]})

    def some(n: int) -> list[int]:
        return [rng.randrange(40) for _ in range(n)]

    base, more, new = table(some(90), "b"), table(some(50), "m"), table(some(50), "n")
    first = ss.Store.create(
        tmp_path / "s", base.to_batches(max_chunksize=7), "id", page_bytes=700,
        spill_bytes=spill_bytes,
    )  # fmt: skip
    check_master(first, base, "id")
    second = first.append(more.to_batches(max_chunksize=7), spill_bytes=spill_bytes)
    both = pa.concat_tables([base, more])
    check_master(second, both, "id")
    third = second.upsert(new.to_batches(max_chunksize=7), spill_bytes=spill_bytes)
    keys = set(new["id"].to_pylist())
    rows = [r for r in both.to_pylist() if r["id"] not in keys] + new.to_pylist()
    check_master(third, pa.Table.from_pylist(rows, base.schema), "id")
    gone = table(some(5), "")["id"]
    fourth = third.delete(pa.table({"id": gone}), spill_bytes=spill_bytes)
    rows = [r for r in rows if r["id"] not in set(gone.to_pylist())]
    for store in (fourth, fourth.compact()):
        check_master(store, pa.Table.from_pylist(rows, base.schema), "id")
        store.verify()


# --- long texts ----------------------------------------------------------------------------------


def texts(keys: range, first: str) -> pa.Table:
    """10 MB each, told apart by their first bytes."""
    return pa.table({"id": keys, "text": [f"{first} {k} ".ljust(10 * MB, "x") for k in keys]})


def heads(batches: list[pa.RecordBatch]) -> dict[int, str]:
    table = pa.Table.from_batches(batches)
    assert all(len(b) == 1 for b in batches), "an output batch is one such row"
    return {
        k: v.as_py()[:9].strip("x ")
        for k, v in zip(table["id"].to_pylist(), table["text"], strict=True)
    }


@pytest.mark.parametrize("io", ["map", "pread"])
def test_texts_of_ten_megabytes(io, tmp_path) -> None:
    store = ss.Store.create(tmp_path / "s", texts(range(7), "old"), "id")
    store = store.upsert(texts(range(3, 5), "new"))
    store = store.append(texts(range(20, 21), "new"))
    right = {k: f"{'new' if k in (3, 4, 20) else 'old'} {k}" for k in [*range(7), 20]}
    stream = pa.record_batch({"id": [*range(25)]})
    for version in (store, store.compact()):
        opened = ss.Store.open(tmp_path / "s", version.version, io=io)
        assert opened.verify() == 8 if version is not store else opened.verify() >= 8
        for algorithm in ("sweepjoin", "inlj", "hybridjoin", "meshjoin", "cmeshjoin", "memory"):
            memory = "900MB" if algorithm == "memory" else "200MB"
            out = ss.join_batches([stream], opened, "id", algorithm=algorithm, memory=memory)
            assert heads(list(out)) == right
        opened.close()


@pytest.mark.slow
@pytest.mark.huge
def test_three_gigabytes_of_text(tmp_path) -> None:
    """300 rows of 10 MB, which no single batch could hold."""
    n = 300
    table = pa.table({"id": pa.array(range(n)), "text": repeated(10 * MB, n)})
    rows = [b for b in table.to_batches() if len(b)]
    store = ss.Store.create(tmp_path / "s", rows, "id", spill_bytes=1 << 40)
    assert store.describe().rows == store.describe().pages == n
    small = pa.table({"id": range(0, n, 2), "text": ["new"] * (n // 2)})
    appended = store.append(small)  # brings along 1.5 GB
    assert appended.describe().rows == n + n // 2
    upserted = appended.upsert(pa.table({"id": range(n), "text": ["now"] * n}))
    assert upserted.describe().rows == n
    assert upserted.compact().verify() >= 1
    stream = pa.record_batch({"id": [*range(n), 7]})
    seen: dict[int, int] = {}
    for batch in ss.join_batches([stream], appended, "id", memory="200MB"):
        for key, text in zip(batch["id"].to_pylist(), batch["text"], strict=True):
            seen[key] = seen.get(key, 0) + len(text.as_py())
    assert seen == {k: 10 * MB * (2 if k == 7 else 1) + (3 if k % 2 == 0 else 0) for k in range(n)}


# --- many columns, odd columns -------------------------------------------------------------------


def odd(keys: range, salt: int) -> pa.Table:
    n = [k * 7 + salt for k in keys]
    struct = pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())})
    return pa.table(
        {
            "id": pa.array(keys, pa.int32()),
            "list": pa.array([[i % 9, None] if i % 3 else None for i in n], pa.list_(pa.int8())),
            "struct": pa.array([{"a": i, "b": [str(i)] * (i % 3)} for i in n], struct),
            "map": pa.array([[("k", i)] * (i % 2) for i in n], pa.map_(pa.string(), pa.int64())),
            "words": pa.array([f"w{i % 5}" for i in n]).dictionary_encode(),
            "view": pa.array([f"view {i}" for i in n], pa.string_view()),
            "nothing": pa.nulls(len(n)),
            "flag": pa.array([None if i % 4 == 0 else i % 3 == 0 for i in n]),
            "fixed": pa.array([[i, i + 1] for i in n], pa.list_(pa.int64(), 2)),
            "large": pa.array([[f"{i}"] for i in n], pa.large_list(pa.large_string())),
        }
    )


def many(keys: range, salt: int) -> pa.Table:
    cells = {
        f"c{i}": [f"{i}.{k}.{salt}" if (i + k) % 9 else None for k in keys] for i in range(500)
    }
    return pa.table({"id": pa.array(keys, pa.int32()), **cells})


@pytest.mark.parametrize("io", ["map", "pread"])
@pytest.mark.parametrize("make", [odd, many])
def test_many_and_odd_columns(make, io, tmp_path) -> None:
    page_bytes = 600 if make is odd else 1 << 16
    base, new = make(range(30), 0), make(range(20, 40), 1)
    store = ss.Store.create(tmp_path / "s", base, "id", page_bytes=page_bytes)
    store = (
        store.upsert(new)
        .append(make(range(3), 2))
        .delete(pa.table({"id": pa.array([7], pa.int32())}))
    )
    rows = [r for r in base.slice(0, 20).to_pylist() if r["id"] != 7]
    rows += new.to_pylist() + make(range(3), 2).to_pylist()
    right = pa.Table.from_pylist(rows, schema=store.manifest.schema)
    compacted = store.compact()
    for version in (store, compacted):
        opened = ss.Store.open(tmp_path / "s", version.version, io=io)
        assert_same_rows(pa.Table.from_batches(opened.batches()), right)
        opened.verify()
        stream = pa.table({"id": pa.array(range(50), pa.int32())})
        some = ALGORITHMS if make is odd else ("sweepjoin", "meshjoin", "chybridjoin")
        for algorithm in some:
            memory = "4MB" if make is odd else "60MB"
            check_join(
                opened, stream, on="id", how="left", algorithm=algorithm, memory=memory, table=right
            )
    assert rows_of(compacted.lookup(pa.record_batch({"id": pa.array([7], pa.int32())}))) == []
