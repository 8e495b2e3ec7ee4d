"""Load shedding: no row is lost, none is made up, the budget holds, and what was shed comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from sample_data import HOWS, build, products, sales

import semistream as ss
from semistream.shed import VICTIMS
from semistream.testing import assert_same_rows, oracle, rebatch

SHEDS = ("chybridjoin", "sweepjoin")
KEYS = [*(k for k in range(400) for _ in range(1 + k % 3)), None]
TABLE = products(KEYS)
MEMORY = 110_000
ENOUGH = {"map": MEMORY, "pread": MEMORY, "parquet": 520_000}


class Run:
    """A join, everything it gave, and what must hold after every call."""

    def __init__(self, join: ss.SemiStreamJoin) -> None:
        self.join = join
        self.out: list[pa.RecordBatch] = []
        self.shed = self.buffered = 0  # the most there ever was

    def read(self, result) -> None:
        for batch in result:
            batch.validate(full=True)
            assert self.join.stats.bytes_held <= self.join.budget
            self.out.append(batch)
        self.check()

    def check(self) -> None:
        s = self.join.stats
        assert s.rows_in == (
            s.rows_matched + s.rows_unmatched + s.waiting + s.buffered + s.shed_out
        ), s
        assert s.shed == s.reloaded + s.shed_out, s
        assert s.bytes_held <= s.budget_bytes
        assert s.peak_bytes <= s.budget_bytes
        self.shed, self.buffered = max(self.shed, s.shed_out), max(self.buffered, s.buffered)

    def finish(self, by_steps: bool = False) -> ss.join.Stats:
        if by_steps:
            for _ in range(100_000):
                s = self.join.stats
                if not s.waiting + s.buffered + s.shed_out:
                    break
                self.read(self.join.step())
        self.read(self.join.drain())
        s = self.join.stats
        assert (s.waiting, s.buffered, s.shed_out) == (0, 0, 0)
        return s


def master_of(kind: str, path: Path, table: pa.Table = TABLE, key: str = "id"):
    return build(kind, table, key, path)


@pytest.fixture(scope="module")
def masters(tmp_path_factory):
    return {k: master_of(k, tmp_path_factory.mktemp(k)) for k in ("map", "pread", "parquet")}


@pytest.mark.parametrize("victims", VICTIMS)
@pytest.mark.parametrize("algorithm", SHEDS)
@pytest.mark.parametrize("how", HOWS)
def test_the_exact_join_in_the_end(how, algorithm, victims, masters, tmp_path) -> None:
    for seed, kind in enumerate(masters):
        rng = random.Random(seed)
        stream = sales(rng, 6_000, [*range(0, 430, 2), *[7] * 50, None])
        where = tmp_path / kind
        shed = ss.Shedding(where, victims=victims, seed=seed)
        run = Run(
            ss.SemiStreamJoin(
                masters[kind], "id", how, algorithm=algorithm, memory=ENOUGH[kind], shed=shed
            )
        )
        for batch in rebatch(stream, rng):
            run.read(run.join.push(batch))
            if rng.random() < 0.1:
                run.read(run.join.step())
        stats = run.finish(by_steps=seed == 1)
        assert_same_rows(run.out, oracle(stream, TABLE, "id", how))
        assert stats.rows_in == len(stream)
        assert stats.shed > 0 or kind == "parquet", "this was to be an overload"
        assert not list(where.iterdir()), "every segment is deleted"
