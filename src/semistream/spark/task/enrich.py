"""What runs inside Spark's Python workers. Imports nothing of pyspark."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from ...budget import parse_bytes
from ...errors import BudgetError, MasterError, SpecError
from ...join import SemiStreamJoin
from ...master import Master
from ...master.storage import StorageOptions
from ...spec import Params
from .counters import Counting, TaskTally, Verb
from .joins import POOL, JoinRequest
from .open import check_there, open_in_task
from .versions import PinFolder, Pins

ASKED = re.compile(r"(?:give )?\bmemory=\d+")  # how a join says what it needs


@dataclass(frozen=True)
class Step:
    """The join with one master: plain data, so that it travels."""

    locator: dict[str, Any]
    on: list[tuple[str, str]]
    how: str
    columns: list[str] | None
    suffix: str | None
    memory: int
    algorithm: str
    added: pa.Schema  # the columns that the driver told Spark we add, as the join makes them
    casts: dict[str, pa.DataType] = field(default_factory=dict)  # of types that Spark lacks
    pins: PinFolder | None = None  # None: the version of the locator, always
    version_column: str | None = None
    matched_column: str | None = None
    validate: str | None = None
    auto: bool = False  # the algorithm may be another where the budget is too small for this one
    name: str = ""  # of the master, for counters and messages
    params: Params | None = None  # knobs that the driver's plan has chosen
    why: str = ""  # that plan, in words
    share: Share | None = None  # `memory` as the call of enrich said it; None: as all of it

    def schema(self, stream: pa.Schema) -> pa.Schema:
        """The columns that leave, for a stream with these columns."""
        added = [f.with_type(self.casts.get(f.name, f.type)) for f in self.added]
        if self.version_column is not None:
            added.append(pa.field(self.version_column, pa.int64(), nullable=False))
        return pa.schema([*stream, *added])

    def finish(self, batch: pa.RecordBatch, join: SemiStreamJoin) -> pa.RecordBatch:
        """A batch as it leaves: columns in the types that carry them, the version."""
        columns, names = batch.columns, batch.schema.names
        if self.casts:
            columns = [
                column.cast(self.casts[name]) if name in self.casts else column
                for name, column in zip(names, columns, strict=True)
            ]
        if self.version_column is not None:
            version = pa.scalar(join.master.describe().version, pa.int64())
            columns, names = (
                [*columns, pa.repeat(version, len(batch))],
                [*names, self.version_column],
            )
        return pa.RecordBatch.from_arrays(columns, names=names)

    @contextmanager
    def in_terms_of_the_call(self, granted: int) -> Iterator[None]:
        """A join asks for memory=, which whoever called `enrich` has said in other words."""
        try:
            yield
        except BudgetError as error:
            share = self.share or Share(self.memory, self.memory, None)
            raise share.too_small(error, granted) from None

    # --- the join and its version --------------------------------------------------------------

    def wanted(self, stream: pa.Schema) -> JoinRequest:
        """What to ask the broker for."""
        make, move = partial(self._make, stream), partial(self._move, stream)
        return JoinRequest(self._identity(stream), self.memory, make, move)

    def _make(self, stream: pa.Schema, memory: int) -> SemiStreamJoin:
        master = self._master(None)
        try:
            with self.in_terms_of_the_call(memory):
                join = self._fitting(master, stream, memory)
            self._check(join, stream)
            return join
        except BaseException:
            master.close()
            raise

    def _fitting(self, master: Master, stream: pa.Schema, memory: int) -> SemiStreamJoin:
        try:
            return self._join(master, stream, self.algorithm, memory)
        except BudgetError:  # the master has grown, or others share the memory
            if not self.auto:
                raise
            return self._join(master, stream, "auto", memory)

    def _join(
        self, master: Master, stream: pa.Schema, algorithm: str, memory: int
    ) -> SemiStreamJoin:
        return SemiStreamJoin(
            master,
            dict(self.on),
            self.how,
            self.columns,
            algorithm,
            memory,
            self.params if algorithm == self.algorithm else None,
            suffix=self.suffix,
            matched_column=self.matched_column,
            validate=self.validate,
            stream_schema=stream,
        )

    def _move(self, stream: pa.Schema, join: SemiStreamJoin) -> None:
        """A warm join goes on with another version. No row waits between tasks, so there is no
        output; what it has cached and did not change stays."""
        old = join.master
        master = self._master(old)
        if master is old:
            return
        try:
            for _ in join.refresh(master):
                pass
            self._check(join, stream)
        except BaseException:
            (old if join.master is master else master).close()  # the broker closes the join's
            raise
        old.close()

    def _master(self, have: Master | None) -> Master:
        """The master at the version that this task is to use: `have` where that is the one."""
        if have is not None:
            check_there(have, self.locator)
        batch = None if self.pins is None else self.pins.batch()
        if self.pins is not None and batch is not None:
            return Pins(self.pins, batch).master(self.locator, have)
        if have is not None and have.describe().version == self.locator.get("version"):
            return have
        return open_in_task(self.locator)

    def _check(self, join: SemiStreamJoin, stream: pa.Schema) -> None:
        """Another version may have other columns; what Spark was told cannot change."""
        found = pa.schema(list(join.check(stream))[len(stream) :])
        if not found.equals(self.added):
            name = join.master.describe().name
            raise MasterError(
                f"the columns of {name} are others now: {in_words(found)} instead of "
                f"{in_words(self.added)}; start the query again"
            )

    def _identity(self, stream: pa.Schema) -> str:
        """Everything that a join's content depends on, but for the version: it can move there. And
        not the memory, which only decides how much of the content there is."""
        place = {k: v for k, v in self.locator.items() if k not in ("table", "version")}
        table = self.locator.get("table")
        place["table"] = hashlib.sha256(table).hexdigest() if isinstance(table, bytes) else table
        options = place.get("options")
        place["options"] = options.mark() if isinstance(options, StorageOptions) else options
        question = [self.on, self.how, self.columns, self.suffix, self.algorithm]
        question += [self.matched_column, self.validate]
        return json.dumps([place, question, str(stream)], default=repr)  # of no password


@dataclass(frozen=True)
class EnrichTask:
    """One task of `enrich`: a chain of joins, called with an iterator of batches."""

    steps: Sequence[Step]
    counting: Counting | None = None  # None: nobody wants counters
    declared: pa.Schema | None = None  # the stream's columns, where the caller named them
    names: tuple[str, ...] | None = None  # its columns' own, where Spark has other ones

    def schema(self, stream: pa.Schema) -> pa.Schema:
        for step in self.steps:
            stream = step.schema(stream)
        return stream

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = TaskTally(self.counting)
        return tally.around(self._joined(tally.input(batches), tally))

    def _joined(
        self, batches: Iterator[pa.RecordBatch], tally: TaskTally
    ) -> Iterator[pa.RecordBatch]:
        joins: list[SemiStreamJoin] = []
        try:
            for batch in self._by_own_names(batches):
                joins = joins or tally.open(partial(POOL.take, self._wanted(batch.schema)))
                yield from self._on(joins, 0, joins[0].push, batch, tally=tally)
            for i, join in enumerate(joins):
                yield from self._on(joins, i, join.drain, tally=tally)
        except GeneratorExit:  # nobody wants the rest
            raise
        except BaseException:
            POOL.drop(joins)  # whatever happened to them, a new one is right
            joins = []
            raise
        finally:
            POOL.give_back(joins)

    def _by_own_names(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.names is None:
            return batches
        return (batch.rename_columns(list(self.names)) for batch in batches)

    def _by_position(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As it goes back: Spark knows the names, and Arrow's Java side wants them to differ."""
        if self.names is None:
            return batch
        return batch.rename_columns([f"c{i}" for i in range(batch.num_columns)])

    def _wanted(self, stream: pa.Schema) -> list[JoinRequest]:
        if self.declared is not None:
            check_columns(stream, self.declared)
        wanted = []
        for step in self.steps:
            wanted.append(step.wanted(stream))
            stream = step.schema(stream)
        return wanted

    def _on(
        self, joins: list[SemiStreamJoin], at: int, verb: Verb, *args: Any, tally: TaskTally
    ) -> Iterator[pa.RecordBatch]:
        """What leaves the join at `at` goes through those after it."""
        for out in self._work(at, joins[at].budget, tally.work(at, verb, *args)):
            done = self.steps[at].finish(out, joins[at])
            if at + 1 == len(joins):
                yield self._by_position(done)
            else:
                yield from self._on(joins, at + 1, joins[at + 1].push, done, tally=tally)

    def _work(
        self, at: int, granted: int, outs: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Rows may turn out to be wider than any plan could know of."""
        with self.steps[at].in_terms_of_the_call(granted):
            yield from outs


# --- columns that the caller has named, compared with those that come --------------------------


def check_columns(found: pa.Schema, declared: pa.Schema) -> None:
    """Spark was told that these columns leave again, and would take others for them."""
    same = found.names == declared.names and all(
        _same(f.type, d.type) for f, d in zip(found, declared, strict=True)
    )
    if not same:
        raise SpecError(
            f"the stream has the columns {in_words(found)}, but stream_schema= says "
            f"{in_words(declared)}; say it as it is, or cast the columns before"
        )


def _same(found: pa.DataType, declared: pa.DataType) -> bool:
    """But for the zone, which is only a way to print, and the width of offsets."""
    if pa.types.is_nested(found) and pa.types.is_nested(declared):
        parts = range(found.num_fields)
        return (
            found.id == declared.id
            and found.num_fields == declared.num_fields
            and all(_same(found.field(i).type, declared.field(i).type) for i in parts)
        )
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(declared):
        return bool((found.tz is None) == (declared.tz is None))
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(narrow.get(found, found) == narrow.get(declared, declared))


def in_words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"


# --- too little memory for one master, said in terms of the call of `enrich` -------------------


def task_bytes(memory_per_task: int | float | str, whole: int) -> int:
    """As `parse_bytes`, for what the call of `enrich` names otherwise."""
    try:
        return parse_bytes(memory_per_task, whole)
    except SpecError as error:
        raise SpecError(str(error).replace("memory=", "memory_per_task=", 1)) from None


@dataclass(frozen=True)
class Share:
    """What the join with one master gets of a task's memory, in bytes."""

    memory: int
    task: int  # of all masters together: memory_per_task
    master: str | None  # its name; None: it is the only one, and gets all

    def too_small(self, error: BudgetError, granted: int) -> BudgetError:
        """What to change in the call, where the join had `granted`: less than its share while it
        had to divide it with joins of other calls, and so it would be with a larger one."""
        least = max(error.least, -(-error.least * self.memory // granted))
        more = self.task - self.memory + least
        remedy = f"give memory_per_task={more}"
        if self.master is not None:
            remedy = (
                f"give Dimension({self.master!r}, ..., memory={least}), and memory_per_task={more}"
            )
        message, found = ASKED.subn(lambda _: remedy, str(error))
        return type(error)(message if found else f"{message}; {remedy}", more)
