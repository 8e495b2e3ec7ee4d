"""enrich: join a DataFrame, streaming or not, with master tables in one narrow stage.

One `mapInArrow`: no shuffle unless asked for, no state, no foreachBatch. So any sink works, and
Spark's own checkpoint gives exactly-once. Inside each Python worker the joins stay warm from one
micro-batch to the next: what they have cached changes speed only, so a task that is retried gives
the same answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ..errors import SpecError
from ..master import Source
from ..spec import Workload
from .columns import Columns
from .dimensions import Dimension, Opened, budgets, make_step, open_all, say_overhead
from .frames import check_frame, with_columns
from .progress import CallCounters
from .ship import shipped
from .shuffle import shuffled
from .task import EnrichTask, Step, task_bytes


def enrich(
    df: DataFrame,
    master: Source | Dimension | Sequence[Dimension],
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    memory_per_task: int | str = "256MB",
    algorithm: str = "auto",
    *,
    version: int | str = "latest",
    version_column: str | None = None,
    pins: str | os.PathLike[str] | None = None,
    unmatched: str | None = None,
    matched_column: str | None = None,
    shuffle: str = "none",
    partitions: int | None = None,
    stream_schema: str | StructType | None = None,
    workload: Workload | None = None,
    validate: str | None = None,
) -> DataFrame:
    """Join every row of `df` with the master table.

    `master` is the path of a store, a Parquet file or folder, a small Arrow table, the address of a
    database with ?table=, or any open master; a path must be readable on the driver and on every
    executor. What can be wrong is found here, on the driver, before any task runs.

    Several masters are joined in one pass with a list of `Dimension(source, on, ...)`, as if one
    after the other: a later one may be joined on columns that an earlier one brought. Arguments
    about one master (`on` to `suffix`, versions, unmatched rows) then belong into its `Dimension`.

    `memory_per_task` is what each running task may hold, all masters together ("10%" is of the
    masters' bytes), so an executor with four cores needs four times as much beside its heap: set
    spark.executor.memoryOverhead accordingly.

    `version` is a number or "latest": the newest there is now (whichever an open `Store` has), and
    for a stream the newest when a micro-batch begins, the same for all its rows and when it is
    replayed. `pins` is the folder where streams write these versions down; all executors must reach
    it. `version_column` names a column that tells each row's version.

    `unmatched`, instead of `how`, says what becomes of rows without a match: "drop" them, "keep"
    them with NULLs, or "split": keep them and tell them apart in a column `matched`, so that one
    sink can divide them. `matched_column` renames that column, and works with how="left", too.

    `shuffle="key"` first brings rows of one key, and of keys in neighbouring pages, together in
    `partitions` tasks (None: one per task slot), hot keys divided so that no task gets much more
    than the others; "auto" does so where pages of the master are read rather than mapped.

    `stream_schema` names the columns of `df` ("id bigint, quantity int") where Spark may not be
    asked for them: in the query functions of declarative pipelines.

    `workload` says what the stream is like (`semistream.planning.sketch_stream` finds it in a
    sample), for the plan that `explain` shows. `validate="many_to_one"`: a row that finds two rows
    of its key in the master fails the query with a DuplicateKeyError.
    """
    check_frame(df)
    if stream_schema is not None:
        df = with_columns(df, stream_schema)
    one: dict[str, Any] = {"on": on, "how": how, "columns": columns, "suffix": suffix}
    one |= {"algorithm": algorithm, "version": version, "version_column": version_column}
    one |= {"unmatched": unmatched, "matched_column": matched_column}
    one |= {"workload": workload, "validate": validate}
    opened, stream = open_all(df, _dimensions(master, one), pins), Columns(df)
    try:
        steps = plan_steps(stream, opened, memory_per_task)
        spread = shuffled(stream, opened, steps, shuffle, partitions)
    finally:
        for each in opened:
            each.close()
    return _stage(stream, spread, steps, declared=stream_schema is not None)


def explain(
    df: DataFrame,
    master: Source | Dimension | Sequence[Dimension],
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    memory_per_task: int | str = "256MB",
    **asked: Any,
) -> str:
    """What `enrich` with the same arguments would do with each master: which algorithm, how memory
    is divided, the rate of one task that the model predicts, and why the other algorithms lose.
    Arguments are those of `enrich` that a `Dimension` has, too. Nothing runs."""
    check_frame(df)
    unknown = sorted(set(asked) - set(Dimension.__dataclass_fields__))
    if unknown:
        raise SpecError(f"explain takes no {unknown[0]}=; it takes the fields of Dimension")
    one = {n: f.default for n, f in Dimension.__dataclass_fields__.items() if n != "source"}
    opened = open_all(df, _dimensions(master, {**one, "on": on, **asked}), None, True)
    try:
        return "\n\n".join(step.why for step in plan_steps(Columns(df), opened, memory_per_task))
    finally:
        for each in opened:
            each.close()


def _stage(stream: Columns, spread: DataFrame, steps: list[Step], declared: bool) -> DataFrame:
    """The stage in which tasks take the steps. `spread` has the rows of `stream.frame`, shuffled or
    not; `declared`: the caller named the columns, and tasks check that they are those."""
    say_overhead(stream.df, sum(step.memory for step in steps))
    counters = CallCounters(stream.df, [step.name for step in steps])
    incoming = stream.arrow
    names = tuple(incoming.names) if stream.renamed else None
    task = EnrichTask(steps, counters.counting, incoming if declared else None, names)
    leaving = stream.followed_by(list(task.schema(incoming))[len(incoming) :])
    joined = counters.before(spread).mapInArrow(shipped(task), leaving)
    return counters.after(joined)


def _dimensions(
    master: Source | Dimension | Sequence[Dimension], one: dict[str, Any]
) -> list[Dimension]:
    """All masters; `one` are the arguments for a single one that is given without `Dimension`."""
    several = [master] if isinstance(master, Dimension) else master
    if not isinstance(several, list | tuple):
        if one["on"] is None:
            raise SpecError('give on= (key columns): on="id" or on={"stream": "master"}')
        return [Dimension(master, **one)]
    if not several:
        raise SpecError("an empty list of masters: give at least one Dimension(source, on=...)")
    for each in several:
        if not isinstance(each, Dimension):
            raise SpecError(
                f"a list of masters has Dimension(source, on=...) in it, not {type(each).__name__}"
            )
    given = [n for n, v in one.items() if v != Dimension.__dataclass_fields__[n].default and v]
    if given:
        raise SpecError(f"{given[0]}= belongs into each Dimension(source, on=..., {given[0]}=...)")
    return list(several)


def plan_steps(stream: Columns, opened: Sequence[Opened], memory_per_task: int | str) -> list[Step]:
    """Check all masters; the columns of each join are the next one's stream."""
    whole = sum(each.master.describe().bytes for each in opened)
    memory = task_bytes(memory_per_task, whole)
    schema, steps = stream.arrow, []
    for each, share in zip(opened, budgets(opened, memory), strict=True):
        stream.check_keys(each.stream_keys, "stream")
        step = make_step(stream.df, each, schema, share, memory)
        schema = step.schema(schema)
        steps.append(step)
    return steps
