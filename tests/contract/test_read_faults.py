"""A read fails in the middle: an error, and then, on a second try, exactly the right rows.

For every k, the k-th read of a run fails once. Whatever the caller does next (a step, a drain, the
next push), nothing is lost, nothing is repeated, and what the join remembers is still right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master import Master
from semistream.master.storage.place import StoreFile
from semistream.testing import assert_same_rows, oracle
from tests.helpers.sample_data import DISK, build, least_memory, products, sales

KEYS = [k for k in range(12) for _ in range((1, 2, 45)[k % 3])]
TABLE = products(KEYS)
STREAM = sales(random.Random(1), 70, [*range(-1, 14), None])
EVERY_PAGE_ALONE = ss.Params(read_bytes=1, threshold=1)


class Faults:
    """Fails chosen calls of a function, and counts all of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.bad: Callable[[int], bool] = lambda call: False

    def around(self, function: Callable, error: type[Exception]) -> Callable:
        def wrapped(*arguments, **named):
            self.calls += 1
            if self.bad(self.calls - 1):
                raise error("injected")
            return function(*arguments, **named)

        return wrapped


@pytest.fixture
def faults(monkeypatch) -> Faults:
    """Reads of stores opened with io="pread" may fail."""
    found = Faults()
    read_into = found.around(StoreFile.read_into, ss.StoreError)
    monkeypatch.setattr(StoreFile, "read_into", read_into)
    return found


def opened(
    faults: Faults, master: Master, how: str, columns: list[str] | None, algorithm: str, memory: int
) -> ss.SemiStreamJoin:
    """A join that has read what it reads at its start (xhybridjoin's pinned pages)."""
    schema = pa.schema({"id": pa.int64(), "n": pa.int64()}) if columns else STREAM.schema
    faults.bad = lambda call: False
    params = EVERY_PAGE_ALONE
    join = ss.SemiStreamJoin(
        master, "id", how, columns, algorithm, memory, params, stream_schema=schema
    )
    faults.calls = 0
    return join


class Run:
    """A join that is tried again after an error, and all that came out of it."""

    def __init__(self, join: ss.SemiStreamJoin, again: str) -> None:
        self.join, self.again = join, again
        self.out: list[pa.RecordBatch] = []
        self.errors = 0

    def call(self, verb: Callable[[], Iterable[pa.RecordBatch]]) -> bool:
        try:
            for batch in verb():
                self.out.append(batch)
            return True
        except ss.MasterError as error:
            if "injected" not in str(error):
                raise
            self.errors += 1
            return False

    def push(self, stream: pa.Table, rows: int) -> None:
        for batch in stream.combine_chunks().to_batches(max_chunksize=rows):
            if not self.call(lambda batch=batch: self.join.push(batch)) and self.again != "push":
                self.call(getattr(self.join, self.again))

    def finish(self) -> None:
        for _ in range(200):
            if self.call(self.join.drain) and self.join.stats.waiting == 0:
                return
        raise AssertionError("rows still wait after 200 drains")

    def check(self, stream: pa.Table, how: str) -> None:
        assert_same_rows(self.out, oracle(stream, TABLE, "id", how), f"after {self.errors} errors")
        stats = self.join.stats
        assert stats.rows_in == stream.num_rows == stats.rows_matched + stats.rows_unmatched
        assert stats.peak_bytes <= stats.budget_bytes


@pytest.mark.parametrize("how", ["left", "semi"])
@pytest.mark.parametrize("algorithm", DISK)
def test_every_read_fails_once(algorithm, how, faults, tmp_path) -> None:
    master = build("pread", TABLE, "id", tmp_path)
    twice = pa.concat_tables([STREAM, STREAM])
    least = least_memory(master, algorithm, STREAM, on="id")
    for memory, rows in ((2 * least, 50), (1_000_000, 500)):
        k = tried = 0
        while True:
            join = opened(faults, master, how, None, algorithm, memory)
            faults.bad = lambda call, k=k: call == k
            run = Run(join, ("step", "drain", "push")[tried % 3])
            run.push(STREAM, rows)
            run.finish()
            run.push(STREAM, rows)  # once more: what was learnt on the way must be right
            run.finish()
            run.check(twice, how)
            if run.errors == 0:
                break  # there are no more than k reads
            tried += 1
            k += 1 + k // 4  # all of the first reads, then fewer
        assert tried > 8


@pytest.mark.parametrize("again", ["step", "drain", "push"])
@pytest.mark.parametrize("algorithm", DISK)
def test_reads_that_fail_often(algorithm, again, faults, tmp_path) -> None:
    master = build("pread", TABLE, "id", tmp_path)
    for seed in range(8):
        rng = random.Random(seed)
        stream = sales(rng, 100, [*range(-1, 14), None])
        join = opened(faults, master, "left", None, algorithm, 300_000)
        faults.bad = lambda call, rng=rng: rng.random() < 0.2
        run = Run(join, again)
        run.push(stream, 10)
        run.finish()
        run.check(stream, "left")


@pytest.mark.parametrize("algorithm", DISK)
def test_a_key_half_answered_meets_new_rows_of_the_same_key(algorithm, faults, tmp_path) -> None:
    """Rows of one key that wait at different pages of it: each sees every page once."""
    master = build("pread", products([7] * 200), "id", tmp_path)
    stream = pa.table({"id": pa.array([7] * 6), "n": range(6)})
    for k in range(1, 12):
        join = opened(faults, master, "inner", ["price"], algorithm, 300_000)
        faults.bad = lambda call, k=k: call == k
        run = Run(join, "push")
        run.push(stream.slice(0, 2), 9)
        run.call(join.step)
        run.push(stream.slice(2, 2), 9)
        run.finish()
        run.push(stream.slice(4, 2), 9)
        run.finish()
        expected = oracle(stream, products([7] * 200), "id", "inner", ["price"])
        assert_same_rows(run.out, expected, f"read {k} failed")


@pytest.mark.parametrize("algorithm", DISK)
def test_a_snapshot_after_an_error_loses_nothing(algorithm, faults, tmp_path) -> None:
    """Also not the rows of a batch that was pushed and only partly taken in."""
    master = build("pread", TABLE, "id", tmp_path)
    memory = least_memory(master, algorithm, STREAM, on="id")
    many = pa.concat_tables([STREAM] * 6).combine_chunks()
    for k in (0, 1, 5):
        join = opened(faults, master, "left", None, algorithm, memory)
        faults.bad = lambda call, k=k: call == k
        run = Run(join, "push")
        run.push(many, 10_000)
        assert run.errors == 1
        fresh = ss.SemiStreamJoin(master, "id", "left", None, algorithm, memory, EVERY_PAGE_ALONE)
        try:
            fresh.restore(join.snapshot())
        except ss.StateError:
            fresh = join  # to refuse is as good: drain first
        run.join = fresh
        run.finish()
        run.check(many, "left")


@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
@pytest.mark.parametrize("algorithm", DISK)
def test_any_master_that_fails(kind, algorithm, tmp_path, monkeypatch) -> None:
    """The same for every master: any call that reads may raise."""
    master = build(kind, TABLE, "id", tmp_path)
    faults = Faults()
    for name in ("scan", "read", "touch"):
        monkeypatch.setattr(master, name, faults.around(getattr(master, name), ss.MasterError))
    for k in range(6):
        join = opened(faults, master, "left", None, algorithm, 4_000_000)
        faults.bad = lambda call, k=k: call == k
        run = Run(join, "drain")
        for _ in range(3):
            run.push(STREAM, 40)
            run.finish()
        run.check(pa.concat_tables([STREAM] * 3), "left")
        assert run.errors == int(k < faults.calls)


@pytest.mark.parametrize("algorithm", ["memory", "xhybridjoin"])
def test_what_is_read_at_the_start_can_be_tried_again(algorithm, faults, tmp_path) -> None:
    """All or some of the master is read by the first push: if that fails, the batch is in."""
    master = build("pread", TABLE, "id", tmp_path)
    faults.calls, faults.bad = 0, lambda call: call == 0  # a store that is made is read, too
    join = ss.SemiStreamJoin(master, "id", "left", algorithm=algorithm, memory="4MB")
    batch = STREAM.combine_chunks().to_batches()[0]
    with pytest.raises(ss.StoreError, match="injected"):
        join.push(batch)
    assert (join.stats.rows_in, join.stats.arrived) == (0, len(batch))
    assert_same_rows(list(join.drain()), oracle(STREAM, TABLE, "id", "left"))


@pytest.mark.parametrize("again", ["drain", "push"])
def test_pinned_pages_that_fail_when_the_budget_is_divided_anew(again, faults, tmp_path) -> None:
    """A row wider than planned for: the parts are made anew, and the pinned pages read again."""
    master = build("pread", TABLE, "id", tmp_path)
    wide = ["x" * (20_000 if i == 30 else 5) for i in range(60)]
    stream = pa.table({"id": pa.array([i % 14 for i in range(60)]), "text": wide})
    first, second, third = (stream.slice(at, 20).to_batches()[0] for at in (0, 20, 40))
    join = ss.SemiStreamJoin(master, "id", "left", None, "xhybridjoin", "1MB")
    run = Run(join, again)
    assert run.call(lambda: join.push(first))
    run.finish()
    faults.calls, faults.bad = 0, lambda call: call == 0
    assert not run.call(lambda: join.push(second))
    if again == "drain":
        run.finish()
    assert run.call(lambda: join.push(third))
    run.finish()
    run.check(stream, "left")
