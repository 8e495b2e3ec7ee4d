"""check_join: what every join promises, whatever the algorithm, batching, memory or Params."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from ..budget import SWEEP_PARTS
from ..errors import StateError
from ..join import SemiStreamJoin, Stats
from ..join.adapt import Pace
from ..master import Master, open_master
from ..spec import Params, join_type
from .rows import On, assert_same_rows, name_pairs, oracle, rebatch

COUNTERS = ("rows_in", "rows_matched", "rows_unmatched", "rows_out", "waiting")


def check_join(
    master: Master | pa.Table,
    stream: pa.Table,
    *,
    on: On,
    how: str = "inner",
    algorithm: str = "auto",
    memory: int | str = "64MB",
    params: Params | None = None,
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    table: pa.Table | None = None,
    adapt: bool | Pace = False,
    rng: random.Random | int = 0,
) -> Stats:
    """Run one join, check all that every join promises, return its counters at the end.

    Random: the batches, extra steps, two points where the state is carried over into a new join by
    snapshot and restore, and whether the end is reached by `drain` or by single steps.

    Checked: the rows, against `oracle`; after every call that bytes held and their peak are within
    the budget and that rows in = matched + unmatched + waiting; schema and validity of the output,
    and that `rows_out` counts it; that unread output refuses the next call; that waiting rows are
    answered within one pass over the master; that the input is left alone.

    `table` has the master's true rows where `master` is not a table itself; without it they are
    read from the master, so give it to catch a master that misreads.
    """
    seed = rng if isinstance(rng, int) else rng.getrandbits(32)
    truth = _rows_of_master(master) if table is None else table
    keys = [m for _, m in name_pairs(on)]
    opened = master if isinstance(master, Master) else open_master(master, keys)

    def make() -> SemiStreamJoin:
        asked = (opened, on, how, columns, algorithm, memory, params)
        return SemiStreamJoin(*asked, suffix=suffix, adapt=adapt)

    try:
        check = _JoinCheck(make, stream, random.Random(seed))
        stats = check.run()
        expected = oracle(stream, truth, on, join_type(how), columns)
        assert_same_rows(check.out, expected, f"{how} join")
        matched = len(oracle(stream, truth, on, "semi"))
        assert stats.rows_matched == matched, f"rows_matched {stats.rows_matched}, not {matched}"
        return stats
    except Exception as error:
        error.add_note(
            f"replay: check_join(..., {on=}, {how=}, {algorithm=}, {memory=}, {params=}, "
            f"{columns=}, {suffix=}, {adapt=}, rng={seed}) with {truth.num_rows} master rows and "
            f"{stream.num_rows} stream rows"
        )
        raise


def _rows_of_master(master: Master | pa.Table) -> pa.Table:
    if isinstance(master, Master):
        return pa.Table.from_batches(master.batches(), master.describe().schema)
    return master


class _JoinCheck:
    """One run of a join, everything that it does looked at."""

    def __init__(
        self, make: Callable[[], SemiStreamJoin], stream: pa.Table, rng: random.Random
    ) -> None:
        self.make, self.stream, self.rng = make, stream, rng
        self.join = make()
        self.pushed = 0
        self.out: list[pa.RecordBatch] = []

    def run(self) -> Stats:
        batches = rebatch(self.stream, self.rng)
        before = [batch.serialize() for batch in batches]
        moves = {self.rng.randint(0, len(batches)) for _ in range(2)}
        for i, batch in enumerate(batches):
            if i in moves:
                self.move()
            self.pushed += len(batch)
            self.read(self.join.push(batch))
            if self.rng.random() < 0.1:
                self.read(self.join.step())
        if len(batches) in moves:
            self.move()
        self.finish()
        for batch, copy in zip(batches, before, strict=True):
            assert batch.serialize().equals(copy), "the join changed its input"
        stats = self.join.stats
        self.join.close()
        return stats

    def read(self, result: Iterator[pa.RecordBatch]) -> None:
        """Read what a call returned, batch by batch, looking at the join in between."""
        accepted = self.rng.random() < 0.3 and self.accepts(self.rng.choice(["step", "snapshot"]))
        for batch in result:
            assert not accepted, "a call was accepted while output was unread"
            batch.validate(full=True)
            assert batch.schema.equals(self.join.output_schema), f"output has {batch.schema}"
            assert len(batch), "an empty output batch"
            self.within_budget()
            self.out.append(batch)
            accepted = self.accepts("drain")
        self.invariants()

    def accepts(self, name: str) -> bool:
        """Whether the join takes a call now; if so, its output counts like any other."""
        try:
            result = getattr(self.join, name)()
        except StateError:
            return False
        self.out += [] if isinstance(result, bytes) else list(result)
        return True

    def within_budget(self) -> None:
        stats = self.join.stats
        for name in ("bytes_held", "peak_bytes"):
            held = getattr(stats, name)
            assert held <= stats.budget_bytes, f"{name} {held} > budget {stats.budget_bytes}"

    def invariants(self) -> None:
        self.within_budget()
        stats = self.join.stats
        answered = stats.rows_matched + stats.rows_unmatched
        assert stats.rows_in == self.pushed, f"{stats.rows_in=}, {self.pushed} pushed"
        assert stats.rows_in == answered + stats.waiting, f"rows lost or made up: {stats}"
        out = sum(len(batch) for batch in self.out)
        assert stats.rows_out == out, f"{stats.rows_out=}, {out} came"

    def move(self) -> None:
        """Carry the state over into a new join, which must not show."""
        fresh = self.make()
        fresh.restore(self.join.snapshot())
        for name in COUNTERS:
            old, new = getattr(self.join.stats, name), getattr(fresh.stats, name)
            assert old == new, f"{name} was {old} and is {new} after snapshot and restore"
        self.join.close()
        self.join = fresh
        self.invariants()

    def finish(self) -> None:
        """Every waiting row is answered within one pass over the master, or, where rows are looked
        up one by one, a row at least in every step."""
        most = self.join.master.describe().pages + 2
        if self.join.algorithm.disk_facts.goes_round:  # the rest of a round and another one
            most += 2 * SWEEP_PARTS
        if self.join.algorithm.disk_facts.blocks:
            most += 2 * self.join.stats.waiting
        before = self.join.stats.steps
        if self.rng.random() < 0.5:
            self.read(self.join.drain())
        while self.join.stats.waiting and self.join.stats.steps - before <= most:
            self.read(self.join.step())
        stats = self.join.stats
        assert stats.waiting == 0, f"{stats.waiting} rows still wait after {most} steps"
        assert stats.steps - before <= most, f"{stats.steps - before} steps to drain, not {most}"
        self.read(self.join.drain())
