"""matched_column: which rows of a left join have a match, whatever the master says of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, oracle

MASTER = pa.table({"id": [*range(300), 5, 5], "name": [None] * 150 + ["x"] * 152})
STREAM = pa.table({"id": [*range(0, 400, 3), None, 5, 5], "nr": range(137)})


def with_flags(on: str = "id") -> list[tuple[object, ...]]:
    known = set(MASTER["id"].to_pylist())
    return [(*row, row[0] in known) for row in oracle(STREAM, MASTER, on, "left")]


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
@pytest.mark.parametrize("ordered", [False, True])
def test_every_algorithm_tells(tmp_path, algorithm, ordered) -> None:
    store = ss.Store.create(tmp_path / "m", MASTER, key="id", page_bytes=512)
    join = ss.SemiStreamJoin(
        store, "id", "left", algorithm=algorithm, ordered=ordered, matched_column="found"
    )
    batches = STREAM.to_batches(max_chunksize=40)
    out = [row for batch in batches for row in join.push(batch)] + list(join.drain())
    join.close()
    assert out[0].schema.names == ["id", "nr", "name", "found"]
    assert_same_rows(out, with_flags())
    if ordered:
        numbers = pa.Table.from_batches(out)["nr"].to_pylist()
        assert numbers == sorted(numbers)


def test_a_condition_tells() -> None:
    join = ss.SemiStreamJoin(
        ss.open_master(MASTER, "id"), "id", "left", ["name"], "rmeshjoin",
        condition=ss.Compare("nr", ">", "id"), matched_column="found",
    )  # fmt: skip
    batch = pa.record_batch({"id": [3, 4, 999], "nr": [9, 2, 1]})
    out = pa.Table.from_batches([*join.push(batch), *join.drain()])
    assert_same_rows(out, [(3, 9, None, True), (4, 2, None, False), (999, 1, None, False)])


def test_no_column_of_the_master() -> None:
    batch = pa.record_batch({"id": [3, 999]})
    out = ss.join_batches(
        [batch], ss.open_master(MASTER, "id"), "id", "left", [], matched_column="known"
    )
    assert_same_rows(out, [(3, True), (999, False)])


@pytest.mark.parametrize("how", ["inner", "semi", "anti"])
def test_other_join_types_have_one_kind_of_row(how) -> None:
    join = ss.SemiStreamJoin(ss.open_master(MASTER, "id"), "id", how, matched_column="found")
    with pytest.raises(ss.SpecError, match='use how="left"'):
        join.check(STREAM.schema)


@pytest.mark.parametrize("name", ["nr", "name"])
def test_a_name_that_is_taken(name) -> None:
    join = ss.SemiStreamJoin(ss.open_master(MASTER, "id"), "id", "left", matched_column=name)
    with pytest.raises(ss.SpecError, match="there is such a column already"):
        join.check(STREAM.schema)
