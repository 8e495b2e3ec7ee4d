"""What may be asked, how it is written, and in which order calls may come."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.sample_data import ALGORITHMS, HOWS, WAITING, build, products, sales


def run(batches, master, **question) -> pa.Table:
    with ss.SemiStreamJoin(master, **question) as join:
        out = [b for batch in batches for b in join.push(batch)]
        out += join.drain()
        return pa.Table.from_batches(out, join.output_schema)


STREAM = pa.record_batch({"id": pa.array([1, 2, 99, None]), "qty": [5, 6, 7, 8]})


# --- columns and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "columns", [None, [], ["price"], ["tags", "name"], ["id"], ["price", "id", "active"]]
)
def test_projection(columns, algorithm, tmp_path) -> None:
    table = products([*range(60), 7, 7, None])
    master = build("pread", table, "id", tmp_path)
    stream = sales(random.Random(1), 90, range(70))
    shown = ["name", "price", "active", "tags"] if columns is None else columns
    shown = [name for name in shown if name != "id"]
    for how in HOWS:
        check_join(
            master,
            stream,
            on="id",
            how=how,
            algorithm=algorithm,
            memory="1MB",
            columns=columns,
            table=table,
        )
        join = ss.SemiStreamJoin(master, "id", how, columns, algorithm, stream_schema=stream.schema)
        names = ["id", "qty", "note", *(shown if how in ("inner", "left") else [])]
        assert join.output_schema.names == names


def test_a_clash_is_an_error_until_a_suffix_settles_it() -> None:
    master = products(range(5)).rename_columns(["id", "qty", "price", "active", "tags"])
    with pytest.raises(ss.SpecError, match=r"'qty'.*suffix=.*columns="):
        run([STREAM], master, on="id")
    out = run([STREAM], master, on="id", suffix="_m")
    assert out.column_names == ["id", "qty", "qty_m", "price", "active", "tags"]
    assert_same_rows(out, oracle(pa.table(STREAM), master, "id", "inner"))
    for how in ("semi", "anti"):  # nothing of the master is shown, so nothing clashes
        assert run([STREAM], master, on="id", how=how).column_names == ["id", "qty"]
    assert run([STREAM], master, on="id", columns=["price"]).column_names == ["id", "qty", "price"]


def test_a_suffix_that_clashes_in_turn() -> None:
    stream = pa.record_batch({"id": pa.array([1]), "qty": [5], "qty_m": [6]})
    with pytest.raises(ss.SpecError, match="'qty_m'"):
        run([stream], pa.table({"id": [1], "qty": [1]}), on="id", suffix="_m")


def test_left_makes_master_columns_nullable() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string(), False)])
    master = pa.table({"id": [1], "v": ["a"]}, schema=schema)
    assert run([STREAM], master, on="id", how="left").schema.field("v").nullable
    assert not run([STREAM], master, on="id", how="inner").schema.field("v").nullable


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("leftouter", "left"),
        ("left_outer", "left"),
        ("LEFT", "left"),
        ("leftsemi", "semi"),
        ("left_semi", "semi"),
        ("leftanti", "anti"),
        ("left_anti", "anti"),
        ("Inner", "inner"),
    ],
)
def test_sparks_names_of_join_types(name, same_as) -> None:
    master = products(range(3))
    expected = oracle(pa.table(STREAM), master, "id", same_as)
    assert_same_rows(run([STREAM], master, on="id", how=name), expected)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"on": "idd"}, r"'idd'.*\['id'"),
        ({"on": {"idd": "id"}}, r"'idd'.*stream.*\['id', 'qty'\]"),
        ({"on": []}, "on="),
        ({"on": "id", "how": "outer"}, "'outer'.*inner, left, semi or anti"),
        ({"on": "id", "how": None}, "None.*inner, left, semi or anti"),
        ({"on": "id", "algorithm": "hash"}, "'hash'.*auto, sweepjoin, meshjoin, .*memory"),
        ({"on": "id", "columns": ["prise"]}, r"'prise'.*'price'"),
        ({"on": "id", "columns": "price"}, "'price' is one string"),
        ({"on": "id", "columns": ["price", "price"]}, "twice"),
        ({"on": "name"}, "'name'"),
    ],
)
def test_bad_names_are_answered_with_the_good_ones(question, said) -> None:
    master = ss.open_master(products(range(3)), "id")
    with pytest.raises(ss.SpecError, match=said):
        run([STREAM], master, **question)


def test_the_order_of_composite_keys_does_not_matter(tmp_path) -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    store = ss.Store.create(tmp_path / "s", table, ["a", "b"])
    batch = pa.record_batch({"b": ["x", "y", "y"], "a": [2, 1, 2]})
    for master in (store, tmp_path / "s", table):
        for on in (["a", "b"], ["b", "a"]):
            out = run([batch], master, on=on)
            assert_same_rows(out, [("x", 2, 3), ("y", 1, 2)])


def test_part_of_a_key_is_not_the_key(tmp_path) -> None:
    table = pa.table({"a": [1], "b": ["x"]})
    store = ss.Store.create(tmp_path / "s", table, ["a", "b"])
    with pytest.raises(ss.SpecError, match=r"\['a', 'b'\]"):
        ss.SemiStreamJoin(store, on="a")


# --- the stream's schema -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (pa.record_batch({"id": pa.array([1]), "qty": ["5"]}), "'qty'.*int64.*string"),
        (pa.record_batch({"id": pa.array([1]), "n": [5]}), "'qty'.*'n'"),
        (pa.record_batch({"id": pa.array([1])}), "2 to 1 columns"),
    ],
)
def test_a_stream_that_changes(later, said) -> None:
    join = ss.SemiStreamJoin(products(range(3)), "id", algorithm="sweepjoin", memory="1MB")
    list(join.push(STREAM))
    with pytest.raises(ss.SpecError, match=said):
        join.push(later)
    assert sum(len(b) for b in join.drain()) == 2, "what came before is still answered"


def test_output_schema_is_known_beforehand() -> None:
    join = ss.SemiStreamJoin(products(range(3)), "id")
    with pytest.raises(ss.StateError, match="first push"):
        _ = join.output_schema
    known = ss.SemiStreamJoin(products(range(3)), "id", stream_schema=STREAM.schema).output_schema
    list(join.push(STREAM))
    assert join.output_schema.equals(known)


# --- the order of calls --------------------------------------------------------------------------


def unread_output(join: ss.SemiStreamJoin, batch: pa.RecordBatch):
    """Output of `push`, or of `drain` where rows wait first."""
    result = join.push(batch)
    if join.algorithm.name in WAITING and join.stats.waiting:
        assert list(result) == []
        result = join.drain()
    return result


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unread_output_refuses_every_call(algorithm) -> None:
    join = ss.SemiStreamJoin(products(range(50)), "id", algorithm=algorithm, memory="1MB")
    batch = pa.record_batch({"id": pa.array([1, 2, 3]), "qty": [1, 2, 3]})
    unread = unread_output(join, batch)
    for call in (join.step, join.drain, join.snapshot, lambda: join.push(batch)):
        with pytest.raises(ss.StateError, match="read"):
            call()
    assert sum(len(b) for b in unread) == 3
    assert list(join.drain()) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("way", ["close", "drop"])
def test_output_given_up_half_way_is_not_forgotten(algorithm, way) -> None:
    """`next(join.drain())` or a `break` gives up rows: going on would lose or repeat them."""
    join = ss.SemiStreamJoin(
        products(range(50)),
        "id",
        algorithm=algorithm,
        memory="1MB",
        params=ss.Params(output_bytes=1),
    )
    batch = pa.record_batch({"id": pa.array(range(40)), "qty": range(40)})
    result = unread_output(join, batch)
    next(result)
    if way == "close":
        result.close()
    else:
        del result
    with pytest.raises(ss.StateError):
        join.drain()


def test_after_close() -> None:
    join = ss.SemiStreamJoin(products(range(5)), "id", algorithm="sweepjoin", memory="1MB")
    list(join.push(STREAM))
    join.close()
    join.close()
    assert join.stats.bytes_held == 0
    for call in (join.step, join.drain, join.snapshot, lambda: join.push(STREAM)):
        with pytest.raises(ss.StateError, match="closed"):
            call()


def test_push_takes_a_record_batch_only() -> None:
    join = ss.SemiStreamJoin(products(range(5)), "id")
    for wrong in (pa.table(STREAM), {"id": [1]}, None):
        with pytest.raises(ss.SpecError, match="RecordBatch"):
            join.push(wrong)


# --- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_goes_only_into_the_same_question(tmp_path) -> None:
    table = products(range(50))
    store = ss.Store.create(tmp_path / "s", table, "id")
    question = {"on": "id", "algorithm": "sweepjoin", "memory": "1MB"}
    join = ss.SemiStreamJoin(store, **question)
    list(join.push(STREAM))
    snapshot = join.snapshot()
    for other in ({"how": "left"}, {"columns": ["name"]}, {"algorithm": "meshjoin"}):
        with pytest.raises(ss.StateError, match="snapshot"):
            ss.SemiStreamJoin(store, **{**question, **other}).restore(snapshot)
    with pytest.raises(ss.StateError, match="snapshot"):
        ss.SemiStreamJoin(table, **question).restore(snapshot)
    with pytest.raises(ss.StateError, match="new join"):
        join.restore(snapshot)
    again = ss.SemiStreamJoin(store, **question)
    again.restore(snapshot)
    assert_same_rows(list(again.drain()), oracle(pa.table(STREAM), table, "id", "inner"))
    assert_same_rows(list(join.drain()), oracle(pa.table(STREAM), table, "id", "inner"))


@pytest.mark.parametrize("what", [b"garbage", bytes(100)], ids=["garbage", "zeros"])
def test_what_is_no_snapshot(what) -> None:
    with pytest.raises(ss.SemiStreamError, match="snapshot"):
        ss.SemiStreamJoin(products(range(5)), "id").restore(what)


def test_a_snapshot_into_less_memory() -> None:
    big = ss.SemiStreamJoin(products(range(5_000)), "id", algorithm="sweepjoin", memory="16MB")
    list(big.push(pa.record_batch({"id": pa.array(range(20_000))})))
    small = ss.SemiStreamJoin(products(range(5_000)), "id", algorithm="sweepjoin", memory="500kB")
    with pytest.raises(ss.BudgetError, match="20000 waiting rows"):
        small.restore(big.snapshot())
    stats = small.stats
    assert stats.rows_in == stats.waiting == 0, "refused: nothing of it was taken in"
