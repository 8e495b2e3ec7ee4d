"""CONTRIBUTING's recipe for a new master, followed literally: one class with the least methods."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream import master as masters
from semistream.errors import MasterError
from semistream.master import Master, Pages
from semistream.testing import check_join, check_master
from tests.helpers.recipe import blocks, new_file
from tests.helpers.sample_data import HOWS, products, sales

(FILE,) = blocks("Add a master")
KEYS = {
    "dense": range(300),
    "duplicates": [k // 7 for k in range(300)],
    "one key": [5] * 40,
    "one row": [3],
    "empty": [],
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[pa.Table], Master]]:
    with new_file(masters, "batches", FILE, tmp_path) as module:

        def opened(table: pa.Table) -> Master:
            empty = pa.RecordBatch.from_pylist([], schema=table.schema)
            rows = table.sort_by("id").combine_chunks()
            return module.BatchesMaster([empty, *rows.to_batches(max_chunksize=32)], "id")

        yield opened


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_it_is_a_master(make, keys) -> None:
    table = products(list(keys))
    for seed in range(3):
        check_master(make(table), table, "id", rng=seed)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", [*ss.ALGORITHMS, "auto"])
def test_every_algorithm_joins_with_it(make, algorithm, how) -> None:
    table = products([k // 2 for k in range(300)])
    stream = sales(random.Random(3), 400, [*range(0, 200, 3), *[77] * 20, None])
    for seed, memory in enumerate((600_000, 8_000_000)):
        asked = {"on": "id", "how": how, "algorithm": algorithm, "memory": memory, "rng": seed}
        check_join(make(table), stream, table=table, **asked)


class Scanned(Master):
    """The least that a master may be: all of its rows, in some order."""

    def __init__(self, other: Master) -> None:
        self._other, self.traffic = other, other.traffic

    def describe(self) -> masters.MasterInfo:
        return replace(self._other.describe(), indexed=False)

    def scan(self, start: int, max_bytes: int, columns: list[str]) -> Pages:
        return self._other.scan(start, max_bytes, columns)


def test_without_an_index_two_methods_are_enough(make) -> None:
    table = products([k // 2 for k in range(300)])
    stream = sales(random.Random(3), 400, [*range(0, 200, 3), None])
    master = Scanned(make(table))
    check_master(master, table, "id")
    for algorithm in ("meshjoin", "rmeshjoin", "cmeshjoin", "memory", "auto"):
        check_join(master, stream, on="id", algorithm=algorithm, memory=8_000_000, table=table)
    with pytest.raises(MasterError, match="sweepjoin needs an index"):
        ss.SemiStreamJoin(master, "id", algorithm="sweepjoin")
