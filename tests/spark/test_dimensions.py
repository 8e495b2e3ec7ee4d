"""Several masters in one pass, and what becomes of rows without a match."""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import semistream as ss
from semistream.budget.split import divide
from semistream.master import open_master
from semistream.master.facts import facts
from semistream.spark import Dimension, dimensions, enrich
from semistream.spec import MasterFacts
from semistream.testing import assert_same_rows, oracle
from tests.helpers.spark_data import frame, no_job, plan_of, stream_of, write_files

PRODUCTS = pa.table(
    {
        "id": pa.array([*range(2_000), *range(0, 2_000, 50)], pa.int64()),
        "product": [f"product {i}" for i in range(2_040)],
        "maker": pa.array([i % 40 for i in range(2_040)], pa.int32()),
    }
)
MAKERS = pa.table(
    {"maker": pa.array(range(35), pa.int32()), "land": [f"L{i % 7}" for i in range(35)]}
)
CUSTOMERS = pa.table({"cust": [f"c{i:04}" for i in range(900)], "city": ["x", None, "z"] * 300})
rng = random.Random(3)
SALES = pa.table(
    {
        "nr": range(3_000),
        "id": pa.array([rng.choice([*range(2_200), None]) for _ in range(3_000)], pa.int64()),
        "who": [f"c{rng.randrange(1_000):04}" for _ in range(3_000)],
    }
)
ON_WHO = {"who": "cust"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("masters")
    for name, table, key in (("p", PRODUCTS, "id"), ("c", CUSTOMERS, "cust")):
        ss.Store.create(root / name, table, key=key, page_bytes=2048).close()
    return {name: str(root / name) for name in ("p", "c")}


def chained(hows: tuple[str, str, str]) -> list[Any]:
    """One oracle after the other; columns in the order of the masters."""
    table, rows = SALES, []
    for master, on, how in zip(
        (PRODUCTS, CUSTOMERS, MAKERS), ("id", ON_WHO, "maker"), hows, strict=True
    ):
        if on == "maker" and "maker" not in table.column_names:
            continue
        key = on if isinstance(on, str) else "cust"
        more = [] if how in ("semi", "anti") else [f for f in master.schema if f.name != key]
        schema = pa.schema([*table.schema, *more])
        rows = oracle(table, master, on, how)
        table = pa.Table.from_pylist(
            [dict(zip(schema.names, r, strict=True)) for r in rows], schema
        )
    return rows


@pytest.mark.parametrize(
    "hows",
    [("left", "left", "left"), ("inner", "left", "inner"), ("left", "anti", "left"),
     ("semi", "inner", "left"), ("anti", "semi", "left"), ("inner", "semi", "anti")],
)  # fmt: skip
def test_as_if_one_after_the_other(spark, paths, hows) -> None:
    """The third is joined on a column that the first one brings."""
    masters = [Dimension(paths["p"], "id", hows[0]), Dimension(paths["c"], ON_WHO, hows[1])]
    if hows[0] not in ("semi", "anti"):
        masters.append(Dimension(MAKERS, "maker", hows[2], memory="1MB"))
    ours = enrich(frame(spark, SALES), masters, memory_per_task="2MB")
    assert plan_of(ours).count("MapInArrow") == 1
    assert "Exchange" not in plan_of(ours)
    assert_same_rows(ours.toArrow(), chained(hows))


def test_a_stream_with_versions_of_each(spark, paths, tmp_path) -> None:
    own = tmp_path / "own"
    ss.Store.create(own, CUSTOMERS, key="cust").upsert(
        pa.table({"cust": ["c0001"], "city": ["new"]})
    ).close()
    stream = stream_of(spark, write_files(SALES, tmp_path / "sales", 3))
    ours = enrich(
        stream,
        [
            Dimension(paths["p"], "id", "left", ["product"], version_column="products_as_of"),
            Dimension(str(own), ON_WHO, unmatched="split", version_column="customers_as_of"),
        ],
        memory_per_task="1MB",
        pins=tmp_path / "pins",
    )
    assert ours.columns[3:] == [
        "product", "products_as_of", "city", "matched", "customers_as_of",
    ]  # fmt: skip
    writer = ours.writeStream.trigger(availableNow=True).partitionBy("matched")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.format("parquet").start(str(tmp_path / "out")).awaitTermination(90)
    assert len(list((tmp_path / "pins").glob("*/*.pin"))) == 6, "a pin for each master and batch"
    out = spark.read.parquet(str(tmp_path / "out")).withColumn(
        "matched",
        F.col("matched").cast("boolean"),  # Spark reads names of folders as text
    )
    rows = out.select(*ours.columns).toArrow()
    known = {f"c{i:04}" for i in range(900)}
    first = oracle(SALES, PRODUCTS, "id", "left", ["product"])
    city = dict(zip(*CUSTOMERS.to_pydict().values(), strict=True)) | {"c0001": "new"}
    expected = [(*row, 1, city.get(row[2]), row[2] in known, 2) for row in first]
    assert_same_rows(rows, expected)
    # The sink has divided them: each part can be read without the other.
    alone = spark.read.parquet(str(tmp_path / "out" / "matched=false"))
    assert {row.who for row in alone.select("who").collect()}.isdisjoint(known)


# --- rows without a match -------------------------------------------------------------------------


def test_unmatched_rows_are_dropped_kept_or_told_apart(spark, paths) -> None:
    df = frame(spark, SALES)
    for unmatched, how in (("drop", "inner"), ("keep", "left")):
        ours = enrich(df, paths["p"], on="id", unmatched=unmatched)
        assert_same_rows(ours.toArrow(), oracle(SALES, PRODUCTS, "id", how))
    known = set(range(2_000))
    expected = [(*r, r[1] in known) for r in oracle(SALES, PRODUCTS, "id", "left", ["product"])]
    for more in ({"unmatched": "split"}, {"how": "left", "matched_column": "matched"}):
        ours = enrich(df, paths["p"], on="id", columns=["product"], **more)
        assert ours.columns[-1] == "matched"
        assert_same_rows(ours.toArrow(), expected)
    found = enrich(df, paths["p"], "id", columns=[], unmatched="split", matched_column="known")
    counts = Counter(row.known for row in found.collect())
    assert counts == Counter(r[-1] for r in expected)
    assert found.where(~F.col("known")).count() == counts[False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"unmatched": "lose"}, 'unmatched=\'lose\': choose one of "keep", "drop", "split"'),
        ({"unmatched": "keep", "how": "anti"}, 'unmatched="keep" means how="left"'),
        ({"unmatched": "drop", "how": "left"}, "leave one of them out"),
        ({"unmatched": "drop", "matched_column": "m"}, 'use how="left", or leave it out'),
        ({"unmatched": "split", "matched_column": "WHO"}, "differ in case only"),
        ({"on": None}, "give on="),
    ],
)
def test_what_is_wrong_is_said_at_once(spark, paths, arguments, words) -> None:
    with no_job(spark, "nothing runs"), pytest.raises(ss.SpecError) as refused:
        enrich(frame(spark, SALES), paths["p"], **({"on": "id"} | arguments))
    assert words in str(refused.value)


def test_wrong_lists(spark, paths) -> None:
    df = frame(spark, SALES)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "an empty list"),
        ([paths["p"]], {}, "a list of masters has Dimension"),
        ([Dimension(paths["p"], "id")], {"how": "left"}, "how= belongs into each Dimension"),
        ([Dimension(paths["p"], "id")], {"on": "id"}, "on= belongs into each Dimension"),
        ([Dimension(paths["p"], "id"), Dimension(paths["c"], "city")], {}, "has key"),
        (
            [Dimension(paths["p"], "id"), Dimension(paths["p"], "id")],
            {},
            "in the stream and in the master",
        ),
        (
            [Dimension(paths["p"], "id", memory="3MB")],
            {"memory_per_task": "2MB"},
            "add up to 3.0 MB",
        ),
    ]
    for masters, more, words in cases:
        with pytest.raises(ss.SpecError) as refused:
            enrich(df, masters, **more)
        assert words in str(refused.value)
    for masters in (
        [Dimension(paths["p"], "id")],
        [Dimension(paths["p"], "id"), Dimension(CUSTOMERS, ON_WHO)],
    ):
        with pytest.raises(ss.BudgetError, match="give memory_per_task=") as short:
            enrich(df, masters, memory_per_task="1kB")
        assert enrich(df, masters, memory_per_task=short.value.least).count()


def test_too_little_for_one_of_several(spark, paths) -> None:
    """What to change is said in terms of the call, and works."""
    df, c = frame(spark, SALES), Dimension(paths["c"], ON_WHO)
    with pytest.raises(ss.BudgetError, match=r"memory=\d+\), and memory_per_task=") as short:
        enrich(df, [Dimension(paths["p"], "id", memory="1kB"), c], memory_per_task="2MB")
    needs = short.value.least - 2_000_000 + 1_000
    more = Dimension(paths["p"], "id", memory=needs)
    assert enrich(df, [more, c], memory_per_task=short.value.least).columns


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_divided_by_size() -> None:
    def master(rows: int) -> MasterFacts:
        return replace(facts(open_master(PRODUCTS.slice(0, rows), "id")), mapped=True)

    small, middle, large = master(20), master(100), master(2_000)
    budget = 1_000_000
    shares = divide([large, small, middle], budget)
    assert sum(shares) <= budget
    assert shares[0] > shares[2] > shares[1] > 0
    assert 0.9 * budget < sum(shares), "nothing is left over"
    assert sum(divide([small, middle], 10**9)) > 0.9 * 10**9
    assert divide([], 5) == []
    blob = pa.table({"id": [1], "blob": ["x" * 2_000_000]})
    wide = replace(facts(open_master(blob, "id")), mapped=False)
    works = [sum(divide([large, wide], m)) <= m for m in range(100_000, 20_000_000, 100_000)]
    assert works == sorted(works), "more memory is never worse"
    assert any(works)
    tiny = divide([large, large], 10)
    assert tiny[0] == tiny[1] > 10, "never less than works: the join will say what is missing"


def test_the_log_says_what_overhead_must_be(caplog) -> None:
    def said(**conf: str) -> tuple[str, int]:
        caplog.clear()
        dimensions._SAID.clear()
        settings = {f"spark.{k.replace('_', '.')}": v for k, v in conf.items()}
        df: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=settings))
        with caplog.at_level(logging.INFO, "semistream.spark"):
            for _ in range(2):  # it is said once
                dimensions.say_overhead(df, 64_000_000)
        (record,) = caplog.records
        return record.getMessage(), record.levelno

    cluster = {"master": "spark://host:7077", "executor_cores": "4"}
    words, level = said(**cluster)
    assert "memoryOverhead is 402.7 MB; Python workers need 856.0 MB" in words
    assert level == logging.WARNING
    words, level = said(**cluster, executor_memoryOverhead="1g")
    assert "is 1.1 GB" in words
    assert level == logging.INFO
    assert said(**cluster, executor_memoryOverhead="1024")[1] == logging.INFO
    assert said(**cluster, executor_memory="20g")[1] == logging.INFO
    assert said(**cluster, task_cpus="4")[1] == logging.INFO
    assert "each running task needs 214.0 MB" in said(master="local[2,4]")[0]
