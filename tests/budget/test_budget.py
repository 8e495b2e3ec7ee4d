"""The memory budget: from the least accepted upward, whatever the rows look like."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.sample_data import ALGORITHMS, DISK, build, least_memory, products, sales

TIMES = [1.0, 1.1, 2.0, 16.0]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = random.Random(1)
    return products([rng.choice([*range(150), None]) for _ in range(300)] + [77] * 60)


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return sales(random.Random(2), 300, [*range(0, 170, 2), *[77] * 20, None])


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
def test_from_the_least_budget_upward(kind, algorithm, times, table, stream, tmp_path) -> None:
    master = build(kind, table, "id", tmp_path)
    least = least_memory(master, algorithm, stream, on="id")
    for how, seed in (("left", 0), ("semi", 2)):
        check_join(
            master,
            stream,
            on="id",
            how=how,
            algorithm=algorithm,
            memory=int(least * times),
            table=table,
            rng=seed,
        )


@pytest.mark.parametrize(
    "params",
    [
        ss.Params(front_share=0.0),
        ss.Params(front_share=1.0, threshold=1),
        ss.Params(threshold=200),
        ss.Params(output_bytes=1),
        ss.Params(read_bytes=1),
        ss.Params(piece_rows=1),
        ss.Params(piece_rows=7, output_bytes=2_000, read_bytes=3_000, front_share=0.7),
    ],
    ids=repr,
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_params_change_no_result(algorithm, params, table, stream, tmp_path) -> None:
    master = build("pread", table, "id", tmp_path)
    few = stream.slice(0, 120)
    for memory in (least_memory(master, algorithm, few, on="id", params=params), 1_000_000):
        check_join(
            master,
            few,
            on="id",
            how="left",
            algorithm=algorithm,
            memory=memory,
            params=params,
            table=table,
            rng=3,
        )


def _wide_rows(ids: list[int], sizes: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": ["x" * n for n in sizes]})


SIZES = {
    "even": [2_000] * 120,
    "wide first": [40_000] * 10 + [10] * 110,
    "wide last": [10] * 110 + [40_000] * 10,
    "one giant": [10] * 60 + [90_000] + [10] * 59,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("algorithm", DISK)
@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
def test_wide_master_rows(kind, algorithm, sizes, tmp_path) -> None:
    """The widest page decides the least budget, so every row fits into the budget accepted."""
    table = _wide_rows(list(range(120)), sizes)
    master = build(kind, table, "id", tmp_path)
    rng = random.Random(1)
    stream = pa.table({"id": pa.array([rng.randrange(130) for _ in range(200)])})
    least = least_memory(master, algorithm, stream, on="id")
    if kind == "parquet":  # what a page decodes to is not known before: errors say what it takes
        least = _grown(master, algorithm, stream, least)
    for times in (1.0, 3.0):
        check_join(
            master,
            stream,
            on="id",
            how="left",
            algorithm=algorithm,
            memory=int(least * times),
            table=table,
        )


def _grown(master, algorithm, stream, memory) -> int:
    """The budget after following errors' advice; a join that overran keeps its rows and says so
    again."""
    for _ in range(8):
        join = ss.SemiStreamJoin(master, "id", "left", algorithm=algorithm, memory=memory)
        try:
            for batch in stream.to_batches():
                list(join.push(batch))
            list(join.drain())
        except ss.BudgetError as error:
            assert error.least > memory  # noqa: PT017 - the loop goes on from it
            memory = error.least
            with pytest.raises(ss.BudgetError):
                join.drain()
        else:
            return memory
    raise AssertionError(f"no end of errors up to {memory}")


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("algorithm", DISK)
@pytest.mark.parametrize("memory", [1_000_000, 4_000_000])
def test_wide_stream_rows(memory, algorithm, sizes, tmp_path) -> None:
    """Nothing is known about the stream beforehand, least of all how even its rows are."""
    table = products(range(100))
    master = build("pread", table, "id", tmp_path)
    many = [n for n in sizes for _ in range(8)]
    stream = _wide_rows([i % 110 for i in range(len(many))], many)
    check_join(
        master, stream, on="id", how="left", algorithm=algorithm, memory=memory, table=table, rng=4
    )


@pytest.mark.parametrize("algorithm", DISK)
def test_one_batch_whose_first_rows_are_wide(algorithm) -> None:
    """The mean width of a long batch says nothing about the rows that are taken in first."""
    rows = 20_000
    ids = pa.array([i % 1_100 for i in range(rows)])
    batch = pa.record_batch({"id": ids, "t": ["x" * 10_000 * (i < 500) for i in range(rows)]})
    with ss.SemiStreamJoin(
        products(range(1_000)), "id", "left", ["price"], algorithm, "4MB"
    ) as join:
        count = sum(len(b) for b in join.push(batch))
        count += sum(len(b) for b in join.drain())
        assert count == rows
        assert join.stats.peak_bytes <= 4_000_000


@pytest.mark.parametrize("algorithm", DISK)
def test_a_stream_row_wider_than_the_budget_is_refused_and_loses_nothing(algorithm) -> None:
    stream = _wide_rows([1, 2, 3], [10, 5_000_000, 10])
    join = ss.SemiStreamJoin(
        ss.open_master(products(range(9)), "id"), "id", algorithm=algorithm, memory="200kB"
    )
    with pytest.raises(ss.BudgetError, match="give memory=") as caught:
        list(join.push(stream.to_batches()[0]))
    check_join(
        products(range(9)), stream, on="id", algorithm=algorithm, memory=caught.value.least, rng=1
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", [pytest.param("map", marks=pytest.mark.campaign), "pread"])
def test_five_hundred_columns(kind, algorithm, tmp_path) -> None:
    """Many columns of few bytes: what is small per column is not small in sum."""
    rows = 6
    columns = {"id": pa.array(range(rows))}
    for i in range(500):
        columns[f"c{i}"] = pa.array([None if j % 9 == 0 else f"{i}-{j}" for j in range(rows)])
    table = pa.table(columns)
    stream = table.rename_columns(["id", *[f"s{i}" for i in range(500)]])
    master = build(kind, table, "id", tmp_path)
    least = least_memory(master, algorithm, stream, on="id")
    for times in (1.0, 4.0):
        check_join(
            master, stream, on="id", algorithm=algorithm, memory=int(least * times), table=table
        )


@pytest.mark.parametrize("probe", ["stream", "waiting"])
@pytest.mark.parametrize("kind", ["map", "pread"])
def test_pinned_pages_have_very_different_numbers_of_rows(kind, probe, tmp_path) -> None:
    """A thousand times the mean on the first page: the table for the pinned rows has room for them
    (a full one would be searched for ever)."""
    table = _wide_rows(list(range(2_050)), [1] * 2_000 + [4_000] * 50)
    ss.Store.create(tmp_path / "s", table, "id", page_bytes=4_096).close()
    master = ss.Store.open(tmp_path / "s", io=kind)
    stream = pa.table({"id": pa.array([7 * i % 2_100 for i in range(400)])})
    params = ss.Params(pinned_probe=probe)
    for memory in (100_000, 300_000, 1_000_000):
        check_join(
            master,
            stream,
            on="id",
            algorithm="xhybridjoin",
            memory=memory,
            params=params,
            table=table,
        )


@pytest.mark.parametrize("algorithm", DISK)
@pytest.mark.parametrize("kind", ["map", "pread", "memory"])
def test_many_to_many_stays_within_the_budget(kind, algorithm, tmp_path) -> None:
    """150 master rows for each of 4 keys: 90,000 rows out of 600 rows in."""
    table = products([k for k in range(4) for _ in range(150)])
    master = build(kind, table, "id", tmp_path)
    stream = sales(random.Random(6), 600, range(4))
    memory = 2 * least_memory(master, algorithm, stream, on="id", columns=["name"])
    stats = check_join(
        master, stream, on="id", algorithm=algorithm, memory=memory, columns=["name"], table=table
    )
    assert stats.rows_out == 600 * 150


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parquet_that_is_small_on_disk_and_large_in_memory(algorithm, tmp_path) -> None:
    """Repeated values take no room in Parquet, so its own sizes say little about memory."""
    texts = ["y" * 1_000, "z" * 1_000]
    table = pa.table({"id": pa.array(range(20_000)), "text": [texts[i % 2] for i in range(20_000)]})
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=5_000)
    master = ss.open_master(tmp_path / "m.parquet", "id")
    stream = pa.table({"id": pa.array(np.arange(0, 21_000, 100))})
    memory = max(8_000_000, least_memory(master, algorithm, stream, on="id"))
    with ss.SemiStreamJoin(master, "id", algorithm=algorithm, memory=memory) as join:
        out = [*join.push(stream.combine_chunks().to_batches()[0]), *join.drain()]
        assert join.stats.peak_bytes <= memory
    assert_same_rows(out, oracle(stream, table, "id", "inner"))


@pytest.mark.parametrize("algorithm", DISK)
def test_nested_columns_of_very_different_sizes(algorithm) -> None:
    lists = [[1] * (20_000 if i == 50 else 2) for i in range(200)]
    table = pa.table({"id": pa.array(range(200)), "list": pa.array(lists, pa.list_(pa.int64()))})
    stream = pa.table(
        {"id": pa.array([i % 210 for i in range(400)]), "own": [[i] for i in range(400)]}
    )
    check_join(table, stream, on="id", how="left", algorithm=algorithm, memory="2MB", rng=2)


@pytest.mark.parametrize("algorithm", DISK)
@pytest.mark.parametrize("kind", ["map", "pread"])
def test_the_popular_nested_values_are_the_widest(kind, algorithm, tmp_path) -> None:
    """By the mean of their page a hundred times as many of them would seem to fit."""
    rng, n = np.random.default_rng(1), 1_500
    lists = [[i] * (300 if i < 30 else i % 4) for i in range(n)]
    kinds = pa.map_(pa.int64(), pa.struct([("a", pa.list_(pa.int32()))]))
    maps = pa.array([[(i, {"a": [1] * len(some)})] for i, some in enumerate(lists)], kinds)
    ids = rng.permutation(n)
    table = pa.table({"id": ids, "list": lists, "map": maps})
    keys = ids[np.minimum(rng.zipf(1.3, 1_500) - 1, n - 1)]
    stream = pa.table({"id": keys, "n": range(1_500)})
    master = build(kind, table, "id", tmp_path)
    check_join(master, stream, on="id", algorithm=algorithm, memory=400_000, table=table)


def test_a_share_of_the_master(table) -> None:
    master = ss.open_master(products(range(20_000)), "id")
    join = ss.SemiStreamJoin(master, "id", memory="50%", algorithm="sweepjoin")
    assert join.stats.budget_bytes == master.describe().bytes // 2
    for memory, expected in (("64MB", 64_000_000), ("64MiB", 64 << 20), (12_345_678, 12_345_678)):
        assert ss.SemiStreamJoin(table, "id", memory=memory).stats.budget_bytes == expected


@pytest.mark.parametrize("memory", ["lots", "", "-5MB", 0, -1, None, True, "10 parsecs", "%"])
def test_what_is_no_size(table, memory) -> None:
    with pytest.raises(ss.SpecError, match="memory="):
        ss.SemiStreamJoin(table, "id", memory=memory)


def test_auto_takes_the_bound_only_where_it_fits(table, tmp_path) -> None:
    big = products(range(20_000))
    assert ss.SemiStreamJoin(table, "id", memory="64MB").algorithm.name == "memory"
    assert ss.SemiStreamJoin(big, "id", memory="1MB").algorithm.name == "sweepjoin"
    unsorted = build("unsorted", big, "id", tmp_path)
    least = least_memory(unsorted, "meshjoin", big, on="id", how="semi")
    assert ss.SemiStreamJoin(unsorted, "id", memory=least).algorithm.name == "meshjoin"
