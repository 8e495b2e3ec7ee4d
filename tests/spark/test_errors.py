"""What enrich refuses, on the driver and before any job, and types that Spark does not have."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as T

import semistream as ss
from semistream.spark import enrich
from semistream.testing import assert_same_rows
from tests.helpers.spark_data import frame, master_table, no_job

MASTER = master_table([*range(50)])
STREAM = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "text": ["1", "2"],
        "real": [1.0, 2.0],
        "day": [dt.date(2024, 1, 1)] * 2,
        "naive": pa.array([0, 1], pa.timestamp("us")),
    }
)


@pytest.fixture(scope="module")
def stream(spark):
    return frame(spark, STREAM)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"on": {"customer": "id"}}, ss.SpecError, ["'customer'", "does not exist", "stream"]),
        ({"on": "customer"}, ss.SpecError, ["customer"]),
        ({"on": {"id": "customer"}}, ss.SpecError, ["customer"]),
        ({"on": []}, ss.SpecError, ["no key columns"]),
        ({"columns": ["weight"]}, ss.SpecError, ["'weight'", "'price'"]),
        ({"columns": "name"}, ss.SpecError, ["'name'", "list"]),
        ({"on": {"real": "id"}}, ss.KeyTypeError, ["'real'", "double", "floating", "cast"]),
        ({"on": {"text": "id"}}, ss.KeyTypeError, ["'text'", "string", "'id'", "int64", "cast"]),
        ({"on": {"day": "id"}}, ss.KeyTypeError, ["'day'", "date32", "'id'", "int64"]),
        ({"memory_per_task": 1000}, ss.BudgetError, ["too small", "least that works"]),
        ({"memory_per_task": "1%"}, ss.BudgetError, ["too small", "least that works"]),
        ({"memory_per_task": "lots"}, ss.SpecError, ["memory_per_task='lots'", "64MB"]),
        ({"memory_per_task": -1}, ss.SpecError, ["memory_per_task=-1"]),
        ({"how": "full"}, ss.SpecError, ["'full'", "inner", "anti"]),
        ({"algorithm": "magic"}, ss.SpecError, ["'magic'", "sweepjoin"]),
        ({"master": "no/such/path"}, ss.MasterError, ["no/such/path", "does not exist"]),
        ({"master": 5}, ss.SpecError, ["int"]),
        ({"df": STREAM}, ss.SpecError, ["DataFrame", "pyarrow.lib.Table", "createDataFrame"]),
    ],
)
def test_refused_on_the_driver(spark, stream, tmp_path, arguments, error, words) -> None:
    ss.Store.create(tmp_path / "store", MASTER, key="id").close()
    every = {"df": stream, "master": tmp_path / "store", "on": "id"} | arguments
    with no_job(spark, "refused"), pytest.raises(error) as caught:
        enrich(**every)
    for word in words:
        assert word in str(caught.value)


def test_zoned_and_naive_times_are_not_mixed(spark, stream) -> None:
    master = pa.table({"at": pa.array([0, 1], pa.timestamp("us", "UTC")), "name": ["a", "b"]})
    with no_job(spark, "times"), pytest.raises(ss.KeyTypeError) as caught:
        enrich(stream, master, on={"naive": "at"})
    assert "timestamp[us]" in str(caught.value)
    assert "timestamp[us, tz=UTC]" in str(caught.value)


def test_a_float_key_of_the_master(spark, stream) -> None:
    with no_job(spark, "float"), pytest.raises(ss.KeyTypeError, match=r"'x'.*double.*floating"):
        enrich(stream, pa.table({"x": [1.0]}), on={"id": "x"})


def test_the_least_budget_named_works(spark, stream, tmp_path) -> None:
    ss.Store.create(tmp_path / "store", MASTER, key="id", page_bytes=512).close()
    with pytest.raises(ss.BudgetError) as caught:
        enrich(stream, tmp_path / "store", on="id", memory_per_task=1, algorithm="sweepjoin")
    least = caught.value.least
    ours = enrich(stream, tmp_path / "store", on="id", memory_per_task=least, columns=["price"])
    assert ours.count() == 2


def test_a_table_too_large_to_travel(spark, stream, monkeypatch) -> None:
    module = sys.modules["semistream.spark.dimensions"]
    monkeypatch.setattr(module, "MOST_TABLE_BYTES", MASTER.nbytes // 2)
    with no_job(spark, "large"), pytest.raises(ss.SpecError, match=r"too large.*Store\.create"):
        enrich(stream, MASTER, on="id")


# --- types that Spark does not have ---------------------------------------------------------------

_NOON = dt.datetime(2024, 2, 29, 12)
_FINE = {
    "uint8": (pa.array([0, 2**8 - 1], pa.uint8()), T.ShortType()),
    "uint16": (pa.array([0, 2**16 - 1], pa.uint16()), T.IntegerType()),
    "uint32": (pa.array([0, 2**32 - 1], pa.uint32()), T.LongType()),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), T.DecimalType(20, 0)),
    "half": (pa.array([1.5, None], pa.float32()).cast(pa.float16()), T.FloatType()),
    "large_string": (pa.array(["ä", None], pa.large_string()), T.StringType()),
    "large_binary": (pa.array([b"a", None], pa.large_binary()), T.BinaryType()),
    "fixed_binary": (pa.array([b"ab", None], pa.binary(2)), T.BinaryType()),
    "words": (pa.array(["a", "b"]).dictionary_encode(), T.StringType()),
    "view": (pa.array(["a", None], pa.string_view()), T.StringType()),
    "date64": (pa.array([_NOON.date(), None], pa.date64()), T.DateType()),
    "seconds": (pa.array([_NOON, None], pa.timestamp("s")), T.TimestampNTZType()),
    "millis": (pa.array([_NOON, None], pa.timestamp("ms", "Asia/Tokyo")), T.TimestampType()),
    "decimal256": (pa.array([Decimal("1.5"), None], pa.decimal256(38, 1)), T.DecimalType(38, 1)),
}


def test_types_are_widened_without_loss(spark, tmp_path) -> None:
    columns = {name: array for name, (array, _) in _FINE.items()}
    master = pa.table({"id": pa.array([1, 2], pa.uint32()), **columns})
    ss.Store.create(tmp_path / "store", master, key="id").close()
    stream = frame(spark, pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
    ours = enrich(stream, tmp_path / "store", on="id", how="left")
    assert {f.name: f.dataType for f in ours.schema.fields[1:]} == {
        name: kind for name, (_, kind) in _FINE.items()
    }
    plain = {n: a.cast(pa.float32()) if n == "half" else a for n, a in columns.items()}
    plain |= {n: a.cast(pa.string()) for n, a in plain.items() if n in ("words", "view")}
    expected = [*pa.table({"id": [1, 2], **plain}).to_batches(), (3, *[None] * len(_FINE))]
    assert_same_rows(ours.toArrow(), expected)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.timestamp("ns"), ["'x'", "nanoseconds", "timestamp[us]", "columns="]),
        (pa.timestamp("ns", "UTC"), ["'x'", "nanoseconds", "timestamp[us]", "columns="]),
        (pa.decimal256(50, 2), ["'x'", "38 digits"]),
    ],
    ids=str,
)
def test_types_that_do_not_fit_are_refused_with_a_remedy(spark, stream, kind, words) -> None:
    master = pa.table({"id": [1, 2], "x": pa.nulls(2, kind), "name": ["a", "b"]})
    with no_job(spark, "type"), pytest.raises(ss.SpecError) as caught:
        enrich(stream, master, on="id")
    for word in words:
        assert word in str(caught.value)
    without = enrich(stream.select("id"), master, on="id", columns=["name"])
    assert_same_rows(without.toArrow(), [(1, "a"), (2, "b")])


_OTHER = {
    pa.duration("s"): dt.timedelta(seconds=5),
    pa.duration("ns"): dt.timedelta(microseconds=5),
    pa.time32("s"): dt.time(12, 30),
    pa.time64("us"): dt.time(12, 30),
    pa.list_(pa.uint8()): [1, 200],
    pa.large_list(pa.int32()): [1, 2],
    pa.list_(pa.int32(), 2): [1, 2],
    pa.list_(pa.timestamp("s")): [_NOON],
    pa.list_(pa.timestamp("ns")): [_NOON],
    pa.struct([("at", pa.timestamp("ns"))]): {"at": _NOON},
    pa.map_(pa.string(), pa.large_string()): {"a": "b"},
}


def test_other_types_are_exact_or_refused_on_the_driver(spark) -> None:
    """Never accepted by the driver and then a failure in a task, or another value."""
    stream, key = frame(spark, pa.table({"id": [1]})), pa.array([1])
    accepted: dict[str, pa.Array] = {}
    for kind, value in _OTHER.items():
        array = pa.array([list(value.items()) if pa.types.is_map(kind) else value], kind)
        with contextlib.suppress(ss.SpecError):
            enrich(stream, pa.table({"id": key, str(kind): array}), on="id")
            accepted[f"c{len(accepted)}"] = array
    (row,) = enrich(stream, pa.table({"id": key, **accepted}), on="id").collect()
    got = row.asDict(recursive=True)
    for name, array in accepted.items():
        assert got[name] == _OTHER[array.type], array.type
