"""Joins that shed, watched at every call."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master import Master
from tests.helpers.sample_data import build, products, sales

SHEDS = ("chybridjoin", "sweepjoin")
TABLE = products([*(k for k in range(400) for _ in range(1 + k % 3)), None])
STREAM_KEYS = [*range(0, 430, 2), *[7] * 50, None]
MEMORY = {"map": 110_000, "pread": 110_000, "parquet": 620_000}


@pytest.fixture(scope="module")
def masters(tmp_path_factory) -> dict[str, Master]:
    return {k: build(k, TABLE, "id", tmp_path_factory.mktemp(k)) for k in MEMORY}


@pytest.fixture(scope="module")
def pread(masters) -> Master:
    return masters["pread"]


class Run:
    """A join, everything it gave, and what must hold after every call."""

    def __init__(self, master: Master, shed: ss.Shedding, how: str = "left", **more) -> None:
        more = {"algorithm": "chybridjoin", "memory": MEMORY["pread"], **more}
        self.join = ss.SemiStreamJoin(master, "id", how, shed=shed, **more)
        self.out: list[pa.RecordBatch] = []

    def read(self, result) -> None:
        for batch in result:
            batch.validate(full=True)
            assert self.join.stats.bytes_held <= self.join.budget
            self.out.append(batch)
        self.check()

    def check(self) -> None:
        s = self.join.stats
        answered = s.rows_matched + s.rows_unmatched
        assert s.rows_in == answered + s.waiting + s.buffered + s.shed_out, s
        assert s.shed == s.reloaded + s.shed_out, s
        assert max(s.bytes_held, s.peak_bytes) <= s.budget_bytes
        assert s.rows_out == sum(len(batch) for batch in self.out), s

    def push(self, table: pa.Table, rng: random.Random, sizes=(1, 60, 900)) -> None:
        at = 0
        while at < len(table):
            some = table.slice(at, rng.choice(sizes))
            at += len(some)
            batches = some.combine_chunks().to_batches()
            self.read(self.join.push(batches[0]))
            if rng.random() < 0.2:
                self.read(self.join.step())

    def finish(self, by_steps: bool = False) -> None:
        s = self.join.stats
        while by_steps and s.waiting + s.buffered + s.shed_out:
            self.read(self.join.step())
            s = self.join.stats
        self.read(self.join.drain())
        s = self.join.stats
        assert (s.waiting, s.buffered, s.shed_out) == (0, 0, 0)


def overloaded(
    master: Master, target: Path | str | ss.Shedding, rows: int = 1_500, seed: int = 1, **more
):
    """A run with rows out, and the stream it has seen."""
    stream = sales(random.Random(seed), rows, STREAM_KEYS)
    run = Run(master, target if isinstance(target, ss.Shedding) else ss.Shedding(target), **more)
    for batch in stream.combine_chunks().to_batches(max_chunksize=500):
        run.read(run.join.push(batch))
    assert run.join.stats.shed_out > 0
    return run, stream
