"""What runs inside Spark's Python workers. Imports nothing of pyspark."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from ..errors import MasterError
from ..join import SemiStreamJoin
from ..master import Master, from_locator
from .pins import Batch, Folder, Pins

# Where each worker leaves its counters after every task, if anyone wants to look at them.
STATS_DIR = "SEMISTREAM_STATS_DIR"

# Joins that live in this worker process, least recently used first. A worker runs one task at a
# time, so no join is ever used twice at once.
_WARM: OrderedDict[str, SemiStreamJoin] = OrderedDict()


@dataclass(frozen=True)
class EnrichTask:
    """One task of `enrich`: plain data, so that it travels; called with an iterator of batches."""

    locator: dict[str, Any]
    on: list[tuple[str, str]]
    how: str
    columns: list[str] | None
    suffix: str | None
    memory: int
    algorithm: str
    casts: dict[str, pa.DataType] = field(default_factory=dict)
    added: pa.Schema | None = None  # the columns that the driver told Spark we add
    pins: Folder | None = None  # None: the version of the locator, always
    version_column: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        join: SemiStreamJoin | None = None
        try:
            for batch in batches:
                if join is None:
                    join = self._warm_join(batch.schema)
                for out in join.push(batch):
                    yield self._finish(out, join)
            if join is not None:
                for out in join.drain():
                    yield self._finish(out, join)
        finally:
            if join is not None:
                _write_stats(join)
                join.reset()  # an abandoned task must leave no rows behind for the next one

    def _finish(self, batch: pa.RecordBatch, join: SemiStreamJoin) -> pa.RecordBatch:
        """Columns of types that Spark lacks, in the type that carries them; the version."""
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

    # --- the join and its version --------------------------------------------------------------

    def _warm_join(self, schema: pa.Schema) -> SemiStreamJoin:
        """The join that this worker has for the same question, or a new one."""
        identity = self._identity(schema)
        join = _WARM.pop(identity, None)
        if join is None:
            self._make_room()
            join = SemiStreamJoin(
                self._master(None),
                dict(self.on),
                self.how,
                self.columns,
                self.algorithm,
                self.memory,
                suffix=self.suffix,
            )
            self._check(join, schema)
        else:
            self._move(join, schema)
        _WARM[identity] = join
        return join

    def _master(self, have: Master | None) -> Master:
        """The master at the version that this task is to use: `have` where that is the one."""
        batch = None if self.pins is None else Batch.running()
        if self.pins is not None and batch is not None:
            return Pins(self.pins, batch).master(self.locator, have)
        if have is not None and have.describe().version == self.locator.get("version"):
            return have
        return from_locator(self.locator)

    def _check(self, join: SemiStreamJoin, schema: pa.Schema) -> None:
        """Another version may have other columns; what Spark was told cannot change."""
        found = pa.schema(list(join.check(schema))[len(schema) :])
        if self.added is not None and not found.equals(self.added):
            name = join.master.describe().name
            raise MasterError(
                f"the columns of {name} are others now: {_words(found)} instead of "
                f"{_words(self.added)}; start the query again"
            )

    def _move(self, join: SemiStreamJoin, schema: pa.Schema) -> None:
        """A warm join goes on with another version. No row waits between tasks, so there is no
        output; what it has cached and did not change stays."""
        old = join.master
        try:
            master = self._master(old)
            if master is not old:
                try:
                    for _ in join.refresh(master):
                        pass
                    self._check(join, schema)
                except BaseException:
                    master.close()
                    raise
                old.close()
        except BaseException:
            join.close()
            old.close()
            raise

    def _identity(self, schema: pa.Schema) -> str:
        """Everything that a join's content depends on, but for the version: it can move there."""
        place = {k: v for k, v in self.locator.items() if k not in ("table", "version")}
        place["table"] = hash(self.locator.get("table", b""))
        question = [self.on, self.how, self.columns, self.suffix, self.memory, self.algorithm]
        return json.dumps([place, question, str(schema)], default=repr)  # of no password

    def _make_room(self) -> None:
        """Joins of other queries in this process share the task's memory: the oldest go."""
        while _WARM and sum(j.budget for j in _WARM.values()) + self.memory > self.memory:
            _, old = _WARM.popitem(last=False)
            old.close()
            old.master.close()


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"


def _write_stats(join: SemiStreamJoin) -> None:
    folder = os.environ.get(STATS_DIR)
    if not folder:
        return
    target = os.path.join(folder, f"{os.getpid()}.json")
    try:
        with open(f"{target}.tmp", "w") as file:
            json.dump(asdict(join.stats), file)
        os.replace(f"{target}.tmp", target)
    except OSError:
        pass  # counters are a courtesy: the answer must not depend on them
