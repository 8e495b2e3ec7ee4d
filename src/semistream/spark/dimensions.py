"""Dimension: one of the tables that `enrich` joins, and what is checked of it on the driver."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ..budget import divide, parse_bytes, show_bytes
from ..errors import BudgetError, SpecError
from ..join import SemiStreamJoin, stream_of
from ..master import Master, Source, facts, open_master
from ..rows.keys import pair_names
from ..spec import Workload, join_type
from .checkpoint import tell_tasks
from .frames import is_connect, is_stream, micro_batch
from .pins_folder import pins_folder
from .schema import spark_schema
from .task import PinFolder, Pins, Share, Step

MOST_TABLE_BYTES = 64 << 20
UNMATCHED = ("keep", "drop", "split")
MATCHED = "matched"
BESIDES = 150_000_000  # Python, pyarrow, compiled kernels, Arrow batches on their way
LOG = logging.getLogger("semistream.spark")
_SAID: set[str] = set()  # in foreachBatch, enrich is called again and again
BATCH_ROWS = 10_000  # of a batch that Spark hands to Python, unless it is told otherwise


@dataclass(frozen=True)
class Dimension:
    """A master table and how to join with it, for `enrich` with several of them. The fields are
    the arguments of `enrich` of the same name; `memory` is its part of memory_per_task, in bytes
    or as "10%" of this master. Without it, what others leave is divided by their sizes."""

    source: Source = field(repr=False)  # an address may have a password in it
    on: str | Sequence[str] | Mapping[str, str]
    how: str = "inner"
    columns: Sequence[str] | None = None
    suffix: str | None = None
    memory: int | str | None = None
    algorithm: str = "auto"
    version: int | str = "latest"
    version_column: str | None = None
    unmatched: str | None = None
    matched_column: str | None = None
    workload: Workload | None = None
    validate: str | None = None

    def settled(self) -> Dimension:
        """With `unmatched` said as a join type and a column."""
        how = join_type(self.how)
        if self.unmatched is None:
            return replace(self, how=how)
        if self.unmatched not in UNMATCHED:
            known = ", ".join(f'"{name}"' for name in UNMATCHED)
            raise SpecError(f"unmatched={self.unmatched!r}: choose one of {known}")
        wanted = "inner" if self.unmatched == "drop" else "left"
        if how not in ("inner", wanted):
            raise SpecError(
                f'unmatched="{self.unmatched}" means how="{wanted}", but how="{self.how}" was '
                "given; leave one of them out"
            )
        column = self.matched_column
        if self.unmatched == "split" and column is None:
            column = MATCHED
        return replace(self, how=wanted, matched_column=column)


@dataclass(frozen=True)
class Opened:
    """A master at the version it is checked with."""

    asked: Dimension
    master: Master
    pins: PinFolder | None  # where tasks choose the version; None: it is this one

    @property
    def stream_keys(self) -> list[str]:
        return [name for name, _ in pair_names(self.asked.on)]

    def close(self) -> None:
        """Tasks open it by themselves; the caller's own stays open."""
        if self.master is not self.asked.source:
            self.master.close()


def open_all(
    df: DataFrame,
    masters: Sequence[Dimension],
    pins: str | os.PathLike[str] | None,
    only_look: bool = False,
) -> list[Opened]:
    """The masters; `only_look`: nothing will run, so no version is pinned."""
    opened = []
    for each in masters:
        if only_look:
            key = [m for _, m in pair_names(each.on)]
            number = each.version if isinstance(each.version, int) else None
            opened.append(
                Opened(each.settled(), open_master(each.source, key, version=number), None)
            )
            continue
        master, folder = _open(df, each, pins)
        opened.append(Opened(each.settled(), master, folder))
    return opened


def _open(
    df: DataFrame, asked: Dimension, pins: str | os.PathLike[str] | None
) -> tuple[Master, PinFolder | None]:
    """The master, and the folder of pins where tasks are to choose the version."""
    key = [m for _, m in pair_names(asked.on)]
    version = asked.version
    if isinstance(version, int) and not isinstance(version, bool):
        return open_master(asked.source, key, version=version), None
    if version != "latest":
        raise SpecError(f'version={version!r}: give a number, or "latest"')
    opened = open_master(asked.source, key)
    if opened.describe().version is None or opened.locator().get("pinned"):
        return opened, None
    newest = opened.newest()
    if newest is not opened and opened is not asked.source:
        opened.close()
    opened = newest
    streaming = is_stream(df)
    if streaming and not is_connect(df):
        tell_tasks(df)
    if streaming is not False:
        return opened, replace(pins_folder(df, pins), always=streaming is True)
    if pins is not None:  # a batch within foreachBatch: its replay finds the same version
        batch = micro_batch(df)
        if batch is not None:
            opened = Pins(pins_folder(df, pins), batch).master(_locator(opened), opened)
    return opened, None


def budgets(opened: Sequence[Opened], memory: int) -> list[int]:
    """What each master gets of a task's memory: what was asked for it, else a share of the rest."""
    known = [facts(o.master) for o in opened]
    shares = [
        None if o.asked.memory is None else parse_bytes(o.asked.memory, master.bytes)
        for o, master in zip(opened, known, strict=True)
    ]
    left = memory - sum(share or 0 for share in shares)
    free = [i for i, share in enumerate(shares) if share is None]
    if left < 0 or (free and left == 0):
        raise SpecError(
            f"the masters' own memory= add up to {show_bytes(memory - left)}, and memory_per_task "
            f"is {show_bytes(memory)}; raise it, or give less to one of them"
        )
    divided = divide([known[i] for i in free], left) if len(free) > 1 else [left] * len(free)
    if sum(divided) > left:
        least = memory - left + sum(divided)
        raise BudgetError(
            f"memory_per_task of {show_bytes(memory)} is too small for these {len(opened)} "
            f"masters; the least that works is {least} bytes: give memory_per_task={least}",
            least,
        )
    for i, share in zip(free, divided, strict=True):
        shares[i] = share
    return [share or 0 for share in shares]


def make_step(
    df: DataFrame, opened: Opened, incoming: pa.Schema, memory: int, task_memory: int
) -> Step:
    """Check names, types and the budget as the workers' own join will, with a join that is never
    fed, and write down what the workers need."""
    asked, info = opened.asked, opened.master.describe()
    alone = memory == task_memory and asked.memory is None
    share = Share(memory, task_memory, None if alone else info.name)
    try:
        planned, joined = _rehearse(opened, incoming, memory)
    except BudgetError as error:
        raise share.too_small(error, memory) from None
    _check_case(df, joined.names, len(incoming))
    if asked.version_column is not None:
        _check_version_column(df, opened.master, asked.version_column, joined.names)
    arrow = spark_schema(joined, len(incoming))
    return Step(
        locator=_locator(opened.master),
        on=pair_names(asked.on),
        how=asked.how,
        # By name, since a later version may have more.
        columns=[n for n in info.schema.names if n not in info.key]
        if asked.columns is None
        else list(asked.columns),
        suffix=asked.suffix,
        memory=memory,
        algorithm=planned.algorithm.name,
        params=planned.params,
        why=planned.explain(),
        casts={f.name: f.type for f, g in zip(arrow, joined, strict=True) if f.type != g.type},
        added=pa.schema(list(joined)[len(incoming) :]),
        pins=opened.pins,
        version_column=asked.version_column,
        matched_column=asked.matched_column,
        validate="many_to_one" if opened.master.must_be_unique else asked.validate,
        auto=asked.algorithm == "auto",
        name=info.name,
        share=share,
    )


def _rehearse(opened: Opened, incoming: pa.Schema, memory: int) -> tuple[SemiStreamJoin, pa.Schema]:
    """A join as the workers will make it, closed, and the columns that leave."""
    asked = opened.asked
    with SemiStreamJoin(
        opened.master,
        asked.on,
        asked.how,
        asked.columns,
        asked.algorithm,
        memory,
        suffix=asked.suffix,
        matched_column=asked.matched_column,
        validate=asked.validate,
        workload=asked.workload or replace(stream_of(incoming), batch_rows=BATCH_ROWS),
    ) as join:
        return join, join.check(incoming)


def _locator(opened: Master) -> dict[str, Any]:
    locator = opened.locator()
    if len(locator.get("table", b"")) > MOST_TABLE_BYTES:
        raise SpecError(
            f"an Arrow table of {opened.describe().bytes} bytes is too large to send to every "
            "task; build a store from it with Store.create and pass its path"
        )
    path = locator.get("path")
    if isinstance(path, str) and os.path.isabs(path):
        locator["real"] = os.path.realpath(path)  # here, since links may differ between machines
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


# --- what Python workers need of an executor's memory, said when a query starts ----------------


def say_overhead(df: DataFrame, memory: int) -> None:
    """Log what `spark.executor.memoryOverhead` must be; as a warning where it is less."""
    conf = df.sparkSession.conf

    def setting(name: str, default: str) -> str:
        return conf.get(name, default) or default

    need = memory + BESIDES
    master = setting("spark.master", "local")
    if master == "local" or master.startswith("local["):
        _say(logging.INFO, f"each running task needs {show_bytes(need)} beside the driver's heap")
        return
    cores, per_task = setting("spark.executor.cores", "1"), setting("spark.task.cpus", "1")
    slots = max(1, int(cores) // int(per_task))
    has = _overhead(
        setting("spark.executor.memoryOverhead", ""),
        _bytes(setting("spark.executor.memory", "1g")),
        float(setting("spark.executor.memoryOverheadFactor", "0.1")),
    )
    level = logging.INFO if has >= slots * need else logging.WARNING
    _say(
        level,
        f"spark.executor.memoryOverhead is {show_bytes(has)}; Python workers need "
        f"{show_bytes(slots * need)} of it: {slots} tasks at a time, each {show_bytes(memory)} for "
        f"memory_per_task and {show_bytes(BESIDES)} besides",
    )


def _say(level: int, words: str) -> None:
    if words not in _SAID:
        _SAID.add(words)
        LOG.log(level, words)


def _overhead(given: str, heap: int, factor: float) -> int:
    """What Spark adds to the heap: as it was told, or a share of it."""
    return _bytes(given) if given else max(384 << 20, int(factor * heap))


def _bytes(given: str) -> int:
    return int(given) << 20 if given.isdigit() else parse_bytes(given)  # plain numbers are MiB
