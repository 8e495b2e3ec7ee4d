"""Shuffle files are lost. Run by tests/spark/test_progress.py, as tests in a process of their own.

When Spark cannot fetch them it takes the executor that had them off its list. With master local[N]
that is the driver, which cannot be put on the list again: every heartbeat fails from then on, and
after 60 of them, ten minutes later, the JVM ends itself. So never in a session
that others use.
"""

from __future__ import annotations

from pathlib import Path

from semistream.spark import enrich, progress
from tests.helpers.spark_data import frame
from tests.spark.test_progress import MEMORY, SALES, expected, store, totals  # noqa: F401 - a fixture


def test_a_stage_that_runs_again_counts_once(spark, store) -> None:  # noqa: F811
    """Its shuffle files are lost: Spark makes them anew when the next stage looks for them."""
    ours = enrich(frame(spark, SALES), store, on="id", memory_per_task=MEMORY)
    scratch = Path(spark.conf.get("spark.local.dir"))
    before = {*scratch.rglob("shuffle_*")}
    shuffled = ours.repartition(3, "sale")._jdf.queryExecution().toRdd()
    count = expected(SALES, "inner")["rows_out"]
    assert shuffled.count() == count
    assert totals(ours) == (expected(SALES, "inner"), 2)
    first = progress(ours)[0].seconds
    lost = {*scratch.rglob("shuffle_*")} - before
    assert lost
    for path in lost:
        path.unlink()
    assert shuffled.count() == count
    assert totals(ours) == (expected(SALES, "inner"), 2)
    assert progress(ours)[0].seconds != first, "the stage did not run again"
