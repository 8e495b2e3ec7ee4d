"""Errors: one base, and messages with the fact, the value and the remedy."""

from __future__ import annotations

import inspect
import pickle
import random

import pyarrow as pa
import pytest

import semistream as ss
from semistream import errors
from semistream.budget.ledger import Ledger, parse_bytes, show_bytes
from semistream.testing import check_join
from tests.helpers.sample_data import ALGORITHMS, build, products, sales

EVERY = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]


@pytest.mark.parametrize("error", EVERY)
def test_one_base(error) -> None:
    assert issubclass(error, ss.SemiStreamError)
    assert getattr(ss, error.__name__) is error, "public"
    assert error.__doc__


@pytest.mark.parametrize("error", EVERY)
def test_errors_cross_process_borders(error) -> None:
    """A worker's error must arrive as what it is."""
    more = (7,) if issubclass(error, ss.BudgetError) else ()
    more = ({"id": 7}, 2) if error is ss.DuplicateKeyError else more
    made = error("message", *more)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error
    assert str(again) == "message"
    assert vars(again) == vars(made)


def test_python_habits_work_too() -> None:
    """`except ValueError` catches a wrong argument, `except RuntimeError` a wrong moment."""
    with pytest.raises(ValueError, match="outer"):
        ss.SemiStreamJoin(products([1]), "id", how="outer")
    join = ss.SemiStreamJoin(products([1]), "id")
    join.close()
    with pytest.raises(RuntimeError, match="closed"):
        join.drain()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
def test_the_least_budget_named_is_one_that_works(kind, algorithm, tmp_path) -> None:
    """One refusal, one number, and with that number it runs."""
    table = products([*range(100), 7, 7])
    stream = sales(random.Random(1), 60, range(110))
    master = build(kind, table, "id", tmp_path)
    with pytest.raises(ss.BudgetError, match=r"too small.*least that works is") as caught:
        ss.SemiStreamJoin(master, "id", algorithm=algorithm, memory=1, stream_schema=stream.schema)
    least = caught.value.least
    assert str(least) in str(caught.value)
    check_join(master, stream, on="id", algorithm=algorithm, memory=least, table=table)
    with pytest.raises(ss.BudgetError):
        ss.SemiStreamJoin(
            master, "id", algorithm=algorithm, memory=least - 1, stream_schema=stream.schema
        )


def test_a_wide_stream_needs_more_and_is_told_how_much(tmp_path) -> None:
    master = build("pread", products(range(100)), "id", tmp_path)
    columns = [("id", pa.int64()), *((f"c{i}", pa.string()) for i in range(400))]
    schema = pa.schema(columns)
    with pytest.raises(ss.BudgetError) as caught:
        ss.SemiStreamJoin(master, "id", algorithm="inlj", memory=1)
    narrow = caught.value.least
    join = ss.SemiStreamJoin(master, "id", algorithm="inlj", memory=narrow)
    with pytest.raises(ss.BudgetError) as caught:
        join.push(pa.RecordBatch.from_pylist([], schema=schema))
    assert caught.value.least > narrow
    join = ss.SemiStreamJoin(master, "id", algorithm="inlj", memory=caught.value.least)
    rows = [{"id": i, **{f"c{j}": "x" * (i % 9) for j in range(400)}} for i in range(20)]
    out = list(join.push(pa.RecordBatch.from_pylist(rows, schema=schema)))
    assert sum(len(b) for b in out) == 20


MASTER = ss.open_master(products(range(5)), "id")


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: ss.SemiStreamJoin(MASTER, "nr"), ["'nr'", "['id']"]),
        (lambda: ss.SemiStreamJoin(MASTER, "id", "full"), ["'full'", "inner", "anti"]),
        (lambda: ss.SemiStreamJoin(MASTER, "id", algorithm="x"), ["'x'", "sweepjoin"]),
        (lambda: ss.SemiStreamJoin(MASTER, "id", memory="x"), ["'x'", "64MB"]),
        (lambda: ss.SemiStreamJoin(MASTER, "id", memory=9), ["9 B", "least that works"]),
        (lambda: ss.SemiStreamJoin(MASTER, "id").push(5), ["int", "RecordBatch"]),
        (lambda: ss.open_master("no/such/file", "id"), ["no/such/file", "Parquet"]),
        (lambda: ss.open_master(products([1])), ["key="]),
        (lambda: ss.Store.open("no/such/store"), ["no/such/store", "Store.create"]),
    ],
)
def test_messages_have_the_value_and_the_remedy(call, parts) -> None:
    with pytest.raises(ss.SemiStreamError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_errors_do_not_show_the_rows() -> None:
    """Keys may be personal: an error about the data names the column, not its content."""
    join = ss.SemiStreamJoin(products([1]), "id")
    with pytest.raises(ss.KeyTypeError, match="'id' is string") as caught:
        join.push(pa.record_batch({"id": ["jane@example.org"]}))
    assert "jane" not in str(caught.value)


def test_the_ledger_adds_up_and_refuses() -> None:
    ledger = Ledger(100)
    ledger.set("a", 60)
    ledger.set("b", 30)
    ledger.set("a", 10)
    assert (ledger.held, ledger.peak) == (40, 90)
    with pytest.raises(ss.BudgetError, match=r"b: 95 B.*budget of 100 B.*memory="):
        ledger.set("b", 95)


def test_sizes_as_people_write_them() -> None:
    known = {"1": 1, "64MB": 64_000_000, "1.5 GiB": 3 << 29, "256m": 256 << 20, " 7kb ": 7_000}
    assert {text: parse_bytes(text) for text in known} == known
    assert parse_bytes("10%", 1_000) == 100
    with pytest.raises(ss.SpecError, match="10%"):
        parse_bytes("10%")
    assert [show_bytes(n) for n in (5, 1_500, 2_000_000)] == ["5 B", "1.5 kB", "2.0 MB"]
