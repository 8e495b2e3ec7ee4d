"""What runs inside Spark's Python workers. Imports nothing of pyspark."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from ..join import SemiStreamJoin
from ..master import from_locator

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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        join: SemiStreamJoin | None = None
        try:
            for batch in batches:
                if join is None:
                    join = self._warm_join(batch.schema)
                for out in join.push(batch):
                    yield self._cast(out)
            if join is not None:
                for out in join.drain():
                    yield self._cast(out)
        finally:
            if join is not None:
                _write_stats(join)
                join.reset()  # an abandoned task must leave no rows behind for the next one

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Columns of types that Spark lacks, in the type that carries them."""
        if not self.casts:
            return batch
        columns = [
            column.cast(self.casts[name]) if name in self.casts else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _warm_join(self, schema: pa.Schema) -> SemiStreamJoin:
        """The join that this worker has for the same question, or a new one."""
        identity = self._identity(schema)
        join = _WARM.pop(identity, None)
        if join is None:
            self._make_room()
            join = SemiStreamJoin(
                from_locator(self.locator),
                dict(self.on),
                self.how,
                self.columns,
                self.algorithm,
                self.memory,
                suffix=self.suffix,
            )
        _WARM[identity] = join
        return join

    def _identity(self, schema: pa.Schema) -> str:
        """Everything that a join's content depends on: master and version, projection, question."""
        place = {k: v for k, v in self.locator.items() if k != "table"}
        place["table"] = hash(self.locator.get("table", b""))
        question = [self.on, self.how, self.columns, self.suffix, self.memory, self.algorithm]
        return json.dumps([place, question, str(schema)], default=repr)  # of no password

    def _make_room(self) -> None:
        """Joins of other queries in this process share the task's memory: the oldest go."""
        while _WARM and sum(j.budget for j in _WARM.values()) + self.memory > self.memory:
            _, old = _WARM.popitem(last=False)
            old.close()
            old.master.close()


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
