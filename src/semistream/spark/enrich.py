"""enrich: join a DataFrame, streaming or not, with a master table in one narrow stage.

One `mapInArrow`: no shuffle, no state, no foreachBatch. So any sink works, and Spark's own
checkpoint gives exactly-once. Inside each Python worker the join stays warm from one
micro-batch to the next:
what it has cached changes speed only, so a task that is retried gives the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from ..errors import SpecError
from ..join import SemiStreamJoin
from ..keys import pair_names
from ..master import Source, open_master
from ..memory import parse_bytes
from .schema import spark_schema, stream_schema
from .worker import EnrichTask

MOST_TABLE_BYTES = 64 << 20


def enrich(
    df: DataFrame,
    master: Source,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    memory_per_task: int | str = "256MB",
    algorithm: str = "auto",
) -> DataFrame:
    """Join every row of `df` with the master table.

    `master` is the path of a store, a Parquet file or folder, a small Arrow table, the address of a
    database with ?table=, or any open master; a path must be readable on the driver and on every
    executor. `memory_per_task` is what each running task may hold, so an executor with four cores
    needs four times as much beside its heap: set spark.executor.memoryOverhead accordingly. What
    can be wrong is found here, on the driver, before any task runs.
    """
    if not hasattr(df, "mapInArrow"):
        raise SpecError(f"df must be a Spark DataFrame, not {type(df).__name__}")
    opened = open_master(master, [m for _, m in pair_names(on)])
    info = opened.describe()
    memory = parse_bytes(memory_per_task, info.bytes)
    incoming = stream_schema(df)
    # A join that is never fed: it checks names, types and the budget as the workers' own will.
    rehearsal = SemiStreamJoin(opened, on, how, columns, algorithm, memory, suffix=suffix)
    joined = rehearsal.check(incoming)
    _check_case(df, joined.names, len(incoming))
    out, arrow = spark_schema(joined, len(incoming))
    locator = opened.locator()
    if len(locator.get("table", b"")) > MOST_TABLE_BYTES:
        raise SpecError(
            f"an Arrow table of {info.bytes} bytes is too large to send to every task; build a "
            "store from it with Store.create and pass its path"
        )
    task = EnrichTask(
        locator=locator,
        on=pair_names(on),
        how=rehearsal.spec.how,
        columns=list(columns) if columns is not None else None,
        suffix=suffix,
        memory=memory,
        algorithm=rehearsal.algorithm.name,
        casts={f.name: f.type for f, g in zip(arrow, joined, strict=True) if f.type != g.type},
    )
    return df.mapInArrow(task, out)


def _check_case(df: DataFrame, names: list[str], stream: int) -> None:
    """Spark does not tell "ID" from "id" unless it is told to."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true":
        return
    taken = {name.lower(): name for name in names[:stream]}
    for name in names[stream:]:
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise SpecError(
                f"columns {other!r} and {name!r} differ in case only, which Spark cannot tell "
                "apart; leave one out with columns=[...] or rename it"
            )
