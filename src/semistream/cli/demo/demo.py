"""The demo: a stream of sales joined with products on local Spark, by us and by Spark itself.

products (Parquet) ──build_store──> store ──────┐
sales (files) ──Structured Streaming──> enrich() ──> warehouse (Parquet)
                                 └──> Spark's join ──> warehouses to compare with
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...budget import show_bytes
from ...errors import SemiStreamError
from .data import KEY, write_products, write_sales
from .runs import (
    WARM_UP,
    Fingerprint,
    Outcome,
    fingerprint,
    read_sales,
    run_query,
    samples,
    settings,
    spark_failures,
)
from .session import check_requirements, local_spark, task_slots
from .view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARK = ".semistream-demo"  # stands in every folder that the demo may empty


@dataclass(frozen=True)
class Options:
    out: Path = Path("demo-out")
    products: int = 1_000_000
    batches: int = 10
    batch_rows: int = 100_000
    memory: str = "10%"
    skew: float = 1.0
    keep: bool = False

    def check(self) -> None:
        least = {"products": 1, "batches": WARM_UP + 1, "batch_rows": task_slots()}
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                option = name.replace("_", "-")
                raise SemiStreamError(f"--{option} {value} is too small; give at least {low}")
        if not 0 <= self.skew <= 3:
            raise SemiStreamError(f"--skew {self.skew:g} is outside 0 (uniform) to 3")


@dataclass
class Report:
    """All that the summary is made of."""

    options: Options
    rows: int = 0
    pages: int = 0
    bytes: int = 0
    build_seconds: float = 0.0
    seconds: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    prints: dict[str, Fingerprint] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def place(self, name: str) -> Path:
        return self.options.out / name

    @property
    def contenders(self) -> list[Contender]:
        """Those that ran."""
        return [c for c in CONTENDERS if c.name in self.outcomes]

    @property
    def same_rows(self) -> bool:
        return len(set(self.prints.values())) == 1


@dataclass(frozen=True)
class Contender:
    """One way to join the stream with the products."""

    name: str
    title: str
    folder: str
    join: Callable[[DataFrame, Report], DataFrame]
    settings: Mapping[str, str] = field(default_factory=dict)


def _ours(sales: DataFrame, report: Report) -> DataFrame:
    from ...spark import enrich

    store = report.place("products")
    return enrich(sales, store, on=KEY, memory_per_task=report.options.memory)


def _sparks(sales: DataFrame, report: Report) -> DataFrame:
    products = sales.sparkSession.read.parquet(str(report.place("products.parquet")))
    return sales.join(products, KEY)


# A stream from files tells Spark how small a batch is, and Spark broadcasts the batch. A stream
# from Kafka tells nothing: the first setting hides the size when the query is planned, the second
# lets adaptive execution act on what it sees later, as it does with Kafka.
_UNKNOWN_SIZE = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
}
_BROADCAST_BYTES = 10 << 20  # a smaller table Spark broadcasts, whatever the stream is
CONTENDERS = (
    Contender("semistream", "semistream", "warehouse", _ours),
    Contender("spark", "Spark's own join", "warehouse-spark", _sparks),
    Contender(
        "spark_unknown_size",
        "Spark's own join, as for a Kafka stream, whose size it cannot know",
        "warehouse-spark-unknown-size",
        _sparks,
        _UNKNOWN_SIZE,
    ),
)

_FOLDERS = ("products", "products.parquet", "sales", "work", *(c.folder for c in CONTENDERS))


def run(options: Options, view: View) -> Report:
    """The whole demo. Raises SemiStreamError where something is missing or goes wrong."""
    options.check()
    check_requirements()
    began = time.monotonic()
    report = Report(options)
    _empty_folder(options.out)
    _make_data(report, view)
    work, log = report.place("work"), report.place("spark.log")
    work.mkdir()
    with spark_failures(log), ExitStack() as stack:
        with view.step(f"2. Starting Spark on this machine, {task_slots()} tasks at a time"):
            session = local_spark(work.absolute(), log, options.batches + 10)
            spark = stack.enter_context(session)
        _build(spark, report, view)
        for contender in CONTENDERS:
            if not contender.settings or _table_bytes(report) > _BROADCAST_BYTES:
                _stream(spark, report, contender, view)
        _compare(spark, report, view)
    _tidy(report)
    report.seconds = time.monotonic() - began
    return report


def _empty_folder(out: Path) -> None:
    """A folder for this run; only what an earlier demo left there is removed."""
    strange = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if strange and not (out / _MARK).exists():
        raise SemiStreamError(
            f"{out} exists and was not made by the demo; name another folder with --out"
        )
    for name in _FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "spark.log").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).write_text("The demo empties this folder when it runs again.\n")


def _make_data(report: Report, view: View) -> None:
    options = report.options
    total = options.batches * options.batch_rows
    with view.step(f"1. Making {options.products:,} products and {total:,} sales of them"):
        write_products(report.place("products.parquet"), options.products)
        write_sales(
            report.place("sales"),
            options.batch_rows,
            options.products,
            options.skew,
            options.batches,
            task_slots(),
        )


def _build(spark: SparkSession, report: Report, view: View) -> None:
    from ...spark import build_store

    def written(count: int, seconds: float) -> None:
        view.note(f"{show_bytes(count)} written, {seconds:.0f} s")

    began = time.monotonic()
    with view.step("3. Building the store: the products sorted by key, in pages"):
        products = spark.read.parquet(str(report.place("products.parquet")))
        store = build_store(products, report.place("products"), key=KEY, progress=written)
        info = store.describe()
        report.rows, report.pages, report.bytes = info.rows, info.pages, info.bytes
        store.close()
        view.say(f"   {info.pages:,} pages, {show_bytes(info.bytes)}")
    report.build_seconds = time.monotonic() - began


def _stream(spark: SparkSession, report: Report, contender: Contender, view: View) -> None:
    work = report.place("work")
    view.say(f"\n{4 + len(report.outcomes)}. Joining the stream: {contender.title}")
    with (
        settings(spark, contender.settings),
        view.query(contender.title, report.options.batches) as watch,
    ):
        report.outcomes[contender.name] = run_query(
            contender.join(read_sales(spark, report.place("sales")), report),
            report.place(contender.folder),
            work / "checkpoints" / contender.name,
            watch,
        )


def _compare(spark: SparkSession, report: Report, view: View) -> None:
    with view.step(f"{4 + len(report.outcomes)}. Comparing the results"):
        for contender in report.contenders:
            found = fingerprint(spark, report.place(contender.folder))
            report.prints[contender.name] = found
        report.samples = samples(spark, report.place(CONTENDERS[0].folder), 2)


def _table_bytes(report: Report) -> int:
    return sum(f.stat().st_size for f in report.place("products.parquet").iterdir())


def _tidy(report: Report) -> None:
    if not report.options.keep:
        for name in ("work", *(c.folder for c in CONTENDERS[1:])):
            shutil.rmtree(report.place(name), ignore_errors=True)
