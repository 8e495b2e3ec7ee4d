"""enrich: join a DataFrame, streaming or not, with a master table in one narrow stage.

One `mapInArrow`: no shuffle, no state, no foreachBatch. So any sink works, and Spark's own
checkpoint gives exactly-once. Inside each Python worker the join stays warm from one
micro-batch to the next:
what it has cached changes speed only, so a task that is retried gives the same answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField

from ..errors import SpecError
from ..join import SemiStreamJoin
from ..keys import pair_names
from ..master import Master, Source, open_master
from ..memory import parse_bytes
from .pins import BATCH, QUERY, Batch, Folder, Pins
from .pins_folder import pins_folder
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
    *,
    version: int | str = "latest",
    version_column: str | None = None,
    pins: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Join every row of `df` with the master table.

    `master` is the path of a store, a Parquet file or folder, a small Arrow table, the address of a
    database with ?table=, or any open master; a path must be readable on the driver and on every
    executor. `memory_per_task` is what each running task may hold, so an executor with four cores
    needs four times as much beside its heap: set spark.executor.memoryOverhead accordingly. What
    can be wrong is found here, on the driver, before any task runs.

    `version`: a number, or "latest": the newest version there is now (whichever an open `Store`
    has), and for a stream the newest one when a micro-batch begins, the same for all its rows and
    when it is replayed. `pins` is the folder where streams write these versions down; all
    executors must reach it. `version_column` names a column that tells each row's version.
    """
    if not hasattr(df, "mapInArrow"):
        raise SpecError(f"df must be a Spark DataFrame, not {type(df).__name__}")
    opened, pinned = _open(df, master, on, version, pins)
    info = opened.describe()
    memory = parse_bytes(memory_per_task, info.bytes)
    incoming = stream_schema(df)
    # A join that is never fed: it checks names, types and the budget as the workers' own will.
    rehearsal = SemiStreamJoin(opened, on, how, columns, algorithm, memory, suffix=suffix)
    joined = rehearsal.check(incoming)
    _check_case(df, joined.names, len(incoming))
    out, arrow = spark_schema(joined, len(incoming))
    if version_column is not None:
        _check_version_column(df, opened, version_column, joined.names)
        out.add(StructField(version_column, LongType(), nullable=False))
    task = EnrichTask(
        locator=_locator(opened),
        on=pair_names(on),
        how=rehearsal.spec.how,
        # By name, since a later version may have more.
        columns=[n for n in info.schema.names if n not in info.key]
        if columns is None
        else list(columns),
        suffix=suffix,
        memory=memory,
        algorithm=rehearsal.algorithm.name,
        casts={f.name: f.type for f, g in zip(arrow, joined, strict=True) if f.type != g.type},
        added=pa.schema(list(joined)[len(incoming) :]),
        pins=pinned,
        version_column=version_column,
    )
    return df.mapInArrow(task, out)


def _open(
    df: DataFrame,
    source: Source,
    on: str | Sequence[str] | Mapping[str, str],
    version: int | str,
    pins: str | os.PathLike[str] | None,
) -> tuple[Master, Folder | None]:
    """The master, and the folder of pins where tasks are to choose the version."""
    key = [m for _, m in pair_names(on)]
    if isinstance(version, int) and not isinstance(version, bool):
        return open_master(source, key, version=version), None
    if version != "latest":
        raise SpecError(f'version={version!r}: give a number, or "latest"')
    opened = open_master(source, key)
    if opened.describe().version is None or opened.locator().get("pinned"):
        return opened, None
    opened = opened.newest()
    if df.isStreaming:
        return opened, pins_folder(df, pins)
    if pins is not None:  # a batch within foreachBatch: its replay finds the same version
        context = df.sparkSession.sparkContext
        batch = Batch.of(context.getLocalProperty(QUERY), context.getLocalProperty(BATCH))
        if batch is not None:
            opened = Pins(pins_folder(df, pins), batch).master(opened.locator(), opened)
    return opened, None


def _locator(opened: Master) -> dict[str, Any]:
    locator = opened.locator()
    if len(locator.get("table", b"")) > MOST_TABLE_BYTES:
        raise SpecError(
            f"an Arrow table of {opened.describe().bytes} bytes is too large to send to every "
            "task; build a store from it with Store.create and pass its path"
        )
    return locator


def _check_version_column(df: DataFrame, opened: Master, name: str, names: list[str]) -> None:
    info = opened.describe()
    if info.version is None:
        raise SpecError(
            f"version_column={name!r}: the master {info.name} has no versions; leave it out, or "
            "build a store from it with Store.create"
        )
    if name in names:
        raise SpecError(f"version_column={name!r}: there is such a column already; choose another")
    _check_case(df, [*names, name], len(names))


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
