"""Every algorithm on every master: the contract, and the cases that broke other joins."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.table import TableMaster
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.sample_data import (
    ALGORITHMS,
    DISK,
    HOWS,
    MASTERS,
    WAITING,
    build,
    least_memory,
    products,
    sales,
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = random.Random(1)
    keys = [rng.choice([*range(150), None]) for _ in range(300)] + [77] * 60
    return products(keys)


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    rng = random.Random(2)
    return sales(rng, 400, [*range(0, 170, 2), *[77] * 20, None])


@pytest.fixture(scope="module", params=MASTERS)
def master(request, table: pa.Table, tmp_path_factory) -> ss.master.Master:
    return build(request.param, table, "id", tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("how", HOWS)
def test_contract(master, table, stream, algorithm, how) -> None:
    if ss.ALGORITHMS[algorithm].needs == "index" and not master.describe().indexed:
        with pytest.raises(ss.MasterError, match=r"needs an index.*meshjoin.*Store\.create"):
            ss.SemiStreamJoin(master, "id", how, algorithm=algorithm)
        return
    for seed in range(2):
        rng = random.Random(seed)
        least = least_memory(master, algorithm, stream, on="id")
        memory = max(least, rng.choice([200_000, 1_000_000, 8_000_000]))
        check_join(
            master,
            stream,
            on="id",
            how=how,
            algorithm=algorithm,
            memory=memory,
            table=table,
            rng=rng,
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("master_keys", "stream_keys"),
    [
        ([], [1, 2, None]),  # an empty master
        (range(50), []),  # an empty stream
        ([], []),
        (range(50), range(100, 200)),  # orphans only
        (range(50), [None]),  # NULL keys only
        ([None] * 30, [None, 1]),
        ([None] * 30 + [1], [None, 1]),
        ([5], [5]),
        ([5] * 40, [5]),
        (range(2000), [3, 999, 1999]),  # a stream shorter than a cycle
        ([-(2**63), 2**63 - 1, 0, -1], [-(2**63), 2**63 - 1, 0, -1, None]),
    ],
)
@pytest.mark.parametrize("kind", ["map", "pread"])
def test_extremes(kind, master_keys, stream_keys, algorithm, tmp_path) -> None:
    table = products(list(master_keys))
    keys = list(stream_keys)
    stream = sales(random.Random(4), 40 if keys else 0, keys or [None])
    master = build(kind, table, "id", tmp_path)
    for how in HOWS:
        check_join(
            master, stream, on="id", how=how, algorithm=algorithm, memory="2MB", table=table, rng=5
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["map", "pread", "parquet"])
def test_a_key_that_spans_pages(kind, algorithm, tmp_path) -> None:
    """Groups of 1, 25, 60 rows with a group's end on every place of a page."""
    keys = [k for k in range(40) for _ in range((1, 25, 60)[k % 3])]
    table = products(keys)
    master = build(kind, table, "id", tmp_path)
    assert kind == "parquet" or master.seek(_codes([2]))[1][0] - master.seek(_codes([2]))[0][0] >= 3
    stream = sales(random.Random(5), 300, range(-1, 42))
    for how in HOWS:
        check_join(
            master,
            stream,
            on="id",
            how=how,
            algorithm=algorithm,
            memory="8MB",
            table=table,
            rng=6,
        )


def _codes(values: list[int]):
    return pa.array(values, pa.int64()).to_numpy()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("how", HOWS)
def test_as_many_matches_as_rows_but_not_one_each(how, algorithm) -> None:
    """Two rows, two matches, both of the first row: also when all is answered from memory."""
    table = products([1, 1, 3, 3, 3])
    stream = pa.table({"id": pa.array([1, 2, 3, 4, 2, 1, 2]), "n": range(7)})
    for rows in (stream.slice(0, 2), stream.slice(1, 4), stream.slice(4), stream):
        batch = rows.combine_chunks().to_batches()[0]
        with ss.SemiStreamJoin(table, "id", how, None, algorithm, "2MB") as join:
            for _ in range(6):
                out = [*join.push(batch), *join.drain()]
                assert_same_rows(out, oracle(rows, table, "id", how))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["map", "pread"])
def test_a_hot_key_with_many_rows_waiting(kind, algorithm, tmp_path) -> None:
    """10^5 rows of one key, then others: quadratic work anywhere would take minutes."""
    rows = 100_000
    master = build(kind, products(range(500)), "id", tmp_path)
    stream = pa.table({"id": pa.array([7] * rows + list(range(490, 510))), "n": range(rows + 20)})
    with ss.SemiStreamJoin(
        master, "id", "left", ["name"], algorithm, "64MB", ss.Params(front_share=0.0)
    ) as join:
        out = [b for batch in stream.to_batches(30_000) for b in join.push(batch)]
        if algorithm in WAITING:
            assert join.stats.waiting == rows + 20
        out += join.drain()
        assert join.stats.peak_bytes <= join.stats.budget_bytes
        assert (join.stats.rows_matched, join.stats.rows_unmatched) == (rows + 10, 10)
    expected = oracle(stream, products(range(500)), "id", "left", ["name"])
    assert_same_rows(out, expected)


@pytest.mark.parametrize("algorithm", DISK)
def test_absent_keys_asked_for_again_and_again(algorithm, tmp_path) -> None:
    """What is remembered as absent must never hide a key that is there."""
    table = products(range(0, 4_000, 2))
    master = build("pread", table, "id", tmp_path)
    stream = sales(random.Random(7), 2_500, range(0, 300))
    for how in ("anti", "left"):
        stats = check_join(
            master,
            stream,
            on="id",
            how=how,
            algorithm=algorithm,
            memory=400_000,
            table=table,
            rng=8,
        )
        assert stats.rows_matched > 500
        assert stats.rows_unmatched > 500


def test_absent_keys_are_remembered(tmp_path) -> None:
    master = build("pread", products(range(0, 400, 2)), "id", tmp_path)
    batch = pa.record_batch({"id": pa.array([1, 3, 5] * 50)})
    with ss.SemiStreamJoin(master, "id", "anti", algorithm="sweepjoin", memory="4MB") as join:
        for _ in range(3):
            assert sum(len(b) for b in [*join.push(batch), *join.drain()]) == 150
        assert join.stats.pages_read <= 1, "the second and third time nothing needs reading"


@pytest.mark.parametrize("algorithm", DISK)
def test_one_join_keeps_its_result_while_its_cache_works(algorithm) -> None:
    """Much more master than cache, and a hot set that moves: groups come, go and come back."""
    table = products([k for k in range(3_000) for _ in range(1 + k % 3)])
    master = TableMaster(table, "id", page_rows=64)
    rng = random.Random(9)
    keys = [rng.randrange(60) + 300 * (i // 1_000) for i in range(10_000)]
    stream = pa.table({"id": pa.array(keys, pa.int64()), "n": range(10_000)})
    for how in ("inner", "left"):
        stats = check_join(
            master, stream, on="id", how=how, algorithm=algorithm, memory=150_000, table=table,
            params=ss.Params(front_share=0.55),
        )  # fmt: skip
    assert stats.front_hits > 1_000 or algorithm != "sweepjoin"


def test_paths_stay_paths(tmp_path: Path) -> None:
    """A path, a Store and a table as master give the same rows."""
    table = products(range(20))
    ss.Store.create(tmp_path / "s", table, "id")
    batch = pa.record_batch({"id": pa.array([3, 5, 99])})
    for source in (str(tmp_path / "s"), tmp_path / "s", ss.Store.open(tmp_path / "s"), table):
        out = list(ss.join_batches([batch], source, on="id", how="left"))
        assert_same_rows(out, oracle(pa.table(batch), table, "id", "left"))
