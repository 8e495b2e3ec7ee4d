"""Joins on inequalities, bands and predicates: every pair, many-to-many, for the scan family."""

from __future__ import annotations

import operator
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.testing import rebatch

SCANS = ["meshjoin", "rmeshjoin"]
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
}


def same_letters(stream: pa.RecordBatch, master: pa.RecordBatch) -> pa.Array:
    """Name similarity: the first two letters agree."""
    left = pc.utf8_slice_codeunits(stream.column(0), 0, 2)
    return pc.equal(left, pc.utf8_slice_codeunits(master.column(0), 0, 2))


def data(rng: random.Random) -> tuple[pa.Table, pa.Table]:
    def some(count: int, most: int) -> pa.Array:
        return pa.array(
            [rng.choice([None, *[rng.randrange(most)] * 5]) for _ in range(count)], pa.int64()
        )

    rows, count = rng.choice([0, 7, 150]), rng.choice([0, 20, 200])
    master = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": some(rows, 30),
            "name": pa.array([f"{rng.randrange(100):03d}" for _ in range(rows)], pa.string()),
        }
    )
    stream = pa.table(
        {
            "n": pa.array(range(count), pa.int64()),
            "low": some(count, 25),
            "high": some(count, 30),
            "text": pa.array([f"{rng.randrange(100):03d}" for _ in range(count)], pa.string()),
        }
    )
    return stream, master


def expected(stream: pa.Table, master: pa.Table, how: str, holds: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    nothing = dict.fromkeys(master.column_names)
    for row in stream.to_pylist():
        matches = [other for other in master.to_pylist() if holds(row, other)]
        if how in ("inner", "left"):
            found += [row | other for other in matches]
            found += [row | nothing] if how == "left" and not matches else []
        elif bool(matches) == (how == "semi"):
            found.append(row)
    return found


def between(row: dict[str, Any], other: dict[str, Any]) -> bool:
    if None in (row["low"], row["high"], other["x"]):
        return False
    return bool(row["low"] <= other["x"] <= row["high"])


def compared(name: str) -> Any:
    def holds(row: dict[str, Any], other: dict[str, Any]) -> bool:
        return None not in (row["low"], other["x"]) and COMPARE[name](row["low"], other["x"])

    return holds


CONDITIONS: dict[str, tuple[Any, Any]] = {
    **{name: (ss.Compare("low", name, "x"), compared(name)) for name in COMPARE},
    "band": (ss.Band("x", low="low", high="high"), between),
    "predicate": (
        ss.Predicate(same_letters, ["text"], ["name"]),
        lambda row, other: row["text"][:2] == other["name"][:2],
    ),
}


def by_values(row: dict[str, Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in row.values()]


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("algorithm", SCANS)
def test_every_pair_is_asked(algorithm: str, name: str, how: str) -> None:
    condition, holds = CONDITIONS[name]
    rng = random.Random(f"{algorithm}{name}{how}")
    for memory in (150_000, "4MB"):
        stream, table = data(rng)
        master = ss.open_master(table, key="id")
        join = ss.SemiStreamJoin(
            master,
            how=how,
            algorithm=algorithm,
            memory=memory,
            condition=condition,
            ordered=rng.random() < 0.3,
            stream_schema=stream.schema,
        )
        out = []
        for batch in rebatch(stream, rng):
            out += [row for part in join.push(batch) for row in part.to_pylist()]
            assert join.stats.bytes_held <= join.stats.budget_bytes
        out += [row for part in join.drain() for row in part.to_pylist()]
        want = expected(stream, table, how, holds)
        assert sorted(out, key=by_values) == sorted(want, key=by_values)


def test_a_condition_besides_the_key() -> None:
    """Prices that are valid for a while: equal product, and the day within."""
    prices = pa.table(
        {
            "product": pa.array([1, 1, 2], pa.int64()),
            "since": pa.array([1, 10, 1], pa.int64()),
            "price": [5.0, 6.0, 7.0],
        }
    )
    sales = pa.record_batch(
        {"product": pa.array([1, 1, 2, 3], pa.int64()), "day": pa.array([3, 12, 0, 5], pa.int64())}
    )
    master = ss.open_master(prices, key="product")
    out = ss.join_batches(
        [sales], master, on="product", how="left", condition=ss.Compare("day", ">=", "since"),
        ordered=True, columns=["price"],
    )  # fmt: skip
    rows = [row for batch in out for row in batch.to_pylist()]
    assert sorted(rows, key=by_values) == sorted(
        [
            {"product": 1, "day": 3, "price": 5.0},
            {"product": 1, "day": 12, "price": 5.0},
            {"product": 1, "day": 12, "price": 6.0},
            {"product": 2, "day": 0, "price": None},
            {"product": 3, "day": 5, "price": None},
        ],
        key=by_values,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "on= .*condition="),
        ({"condition": ss.Compare("n", "<", "nope")}, "'nope' of the condition does not exist"),
        ({"condition": ss.Compare("text", "<", "x")}, "cannot be compared"),
        ({"condition": ss.Compare("n", "<", "x"), "algorithm": "sweepjoin"}, "equal keys only"),
        ({"condition": ss.Compare("n", "<", "x"), "algorithm": "cmeshjoin"}, "equal keys only"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: dict[str, Any], words: str) -> None:
    stream, table = data(random.Random(4))
    with pytest.raises(ss.SpecError, match=words):
        ss.SemiStreamJoin(ss.open_master(table, key="id"), stream_schema=stream.schema, **arguments)


def test_an_operator_must_exist() -> None:
    with pytest.raises(ss.SpecError, match="'~' does not exist"):
        ss.Compare("a", "~", "b")


def test_a_predicate_must_answer_for_every_pair() -> None:
    master = ss.open_master(pa.table({"id": [1, 2], "name": ["a", "b"]}), key="id")
    one = ss.Predicate(lambda stream, found: [True], ["text"], ["name"])
    with pytest.raises(ss.SpecError, match="one boolean for each"):
        list(ss.join_batches([pa.record_batch({"text": ["a"]})], master, condition=one))


def test_release_at_the_match_needs_an_equality() -> None:
    _, table = data(random.Random(2))
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(ss.SpecError, match="release='match' needs an equality"):
        ss.SemiStreamJoin(
            ss.open_master(table, key="id"),
            condition=ss.Compare("n", "<", "x"),
            params=ss.Params(release="match"),
            stream_schema=schema,
        )


def test_a_predicate_is_never_asked_about_nothing() -> None:
    """It may rely on a first row."""
    asked: list[int] = []

    def first(stream: pa.RecordBatch, found: pa.RecordBatch) -> list[bool]:
        asked.append(stream.column(0)[0].as_py())
        return [True] * len(stream)

    master = ss.open_master(pa.table({"id": [1, 2]}), key="id")
    out = ss.join_batches(
        [pa.record_batch({"n": [5, 6]})], master, condition=ss.Predicate(first, ["n"], ["id"])
    )
    assert sum(len(batch) for batch in out) == 4
    assert asked
