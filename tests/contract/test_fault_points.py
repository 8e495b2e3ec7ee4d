"""Every point where a join can fail fails once, and no row is lost or repeated.

The ledger refuses memory, a page cannot be read, a temporary file meets a full disk, a key cannot
be cast. `check_faults` goes through all of them; here are the joins it is let loose on.
"""

from __future__ import annotations

import errno
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.join.engine import Engine
from semistream.output import answers
from semistream.safety.sealed import Checked
from semistream.testing import check_faults, oracle, rows_of
from tests.helpers.sample_data import DISK, build, least_memory, products, sales

KEYS = [k for k in range(9) for _ in range((1, 2, 30)[k % 3])]
TABLE = products(KEYS)
STREAM = sales(random.Random(1), 40, [*range(-1, 11), None])
PARAMS = ss.Params(read_bytes=1, threshold=1)
MASTER = [(1, 1), (2, 3), (2, 5), (5, 9)]
HOWS = ["left", "inner", "semi", "anti"]


def _joins(kind: str, path: Path, how: str, algorithm: str, **options: object) -> Callable:
    master = build(kind, TABLE, "id", path)
    most = int(1.3 * least_memory(master, algorithm, STREAM, on="id"))
    asked = (master, "id", how, None, algorithm, most, PARAMS)
    return lambda: ss.SemiStreamJoin(*asked, **options)


@pytest.mark.parametrize("algorithm", [*DISK, "memory"])
@pytest.mark.parametrize("kind", ["pread", "map"])
def test_every_point_fails_once(kind, algorithm, tmp_path) -> None:
    how = HOWS[(len(algorithm) + len(kind)) % 4]
    make = _joins(kind, tmp_path, how, algorithm)
    met = check_faults(make, STREAM, oracle(STREAM, TABLE, "id", how), most=30)
    assert met > 5


@pytest.mark.parametrize("algorithm", ["sweepjoin", "cmeshjoin", "chybridjoin", "cinlj"])
def test_answers_that_are_held_in_order_survive_too(algorithm, tmp_path) -> None:
    make = _joins("pread", tmp_path, "left", algorithm, ordered=True)
    met = check_faults(make, STREAM, oracle(STREAM, TABLE, "id", "left"), most=30)
    assert met > 100  # files are written


@pytest.mark.parametrize("equal", [True, False])
def test_with_a_condition(equal, tmp_path) -> None:
    """A predicate that fails now and then is one more point."""
    stream = pa.table({"id": [1, 2, 5, 8, 2, None], "ts": [1, 4, 4, 9, 7, 1]})
    table = pa.table({"id": [m for m, _ in MASTER], "valid": [v for _, v in MASTER]})
    master = build("pread", table, "id", tmp_path)
    calls = [0]

    def newer(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.Array:
        calls[0] += 1
        if calls[0] in (1, 2):
            raise ZeroDivisionError("of the user's own")
        return pc.greater_equal(left.column(0), right.column(0))

    on = "id" if equal else None
    join = ss.SemiStreamJoin(
        master, on, "left", ["valid"], "rmeshjoin", condition=ss.Predicate(newer, ["ts"], ["valid"])
    )
    out = list(join.push(stream.combine_chunks().to_batches()[0]))
    for _ in range(2):
        with pytest.raises(ss.SpecError, match="newer failed with ZeroDivisionError"):
            join.drain()
    found = rows_of([*out, *join.drain()])
    rows = list(zip(*stream.to_pydict().values(), strict=True))
    pairs = [(s, t, v) for s, t in rows for m, v in MASTER if t >= v and (s == m or not equal)]
    alone = [(s, t, None) for s, t in rows if not any((s, t) == pair[:2] for pair in pairs)]
    assert sorted(map(repr, found)) == sorted(map(repr, pairs + alone))


@pytest.mark.parametrize("where", ["output", "input"])
def test_the_check_finds_what_it_looks_for(where, tmp_path, monkeypatch) -> None:
    """Joins that lose rows at a fault do not pass: exceptions that end an answer in its middle,
    rows that leave the input before nothing can fail any more."""
    if where == "output":

        def no_attempt(action):
            return action()
            yield

        monkeypatch.setattr(answers, "attempt", no_attempt)
    else:
        take = Engine._take

        def careless(engine, batch, arrived):
            arrived()
            yield from take(engine, batch, lambda: None)

        monkeypatch.setattr(Engine, "_take", careless)
    make = _joins("pread", tmp_path, "left", "sweepjoin")
    with pytest.raises(AssertionError):
        check_faults(make, STREAM, oracle(STREAM, TABLE, "id", "left"))


def test_a_full_disk_says_where_and_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "m").mkdir()
    join = _joins("pread", tmp_path / "m", "semi", "hybridjoin", ordered=True)()
    write, full = Checked.write, [True]

    def maybe(file, data):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(Checked, "write", maybe)
    out, pushed, refused = [], 0, 0
    for _ in range(20):
        keys = [i % 9 for i in range(pushed, pushed + 40)]
        batch = pa.record_batch({"id": keys, "n": range(pushed, pushed + 40)})
        pushed += 40
        try:
            out += join.push(batch)
        except ss.SpillError as error:
            assert f"{tmp_path}: No space left" in str(error)  # noqa: PT017 - rows are inside
            refused += 1
    assert refused > 3
    with pytest.raises(ss.SpillError, match=r"call drain\(\), or set TMPDIR"):
        join.drain()
    full[0] = False
    out += join.drain()
    assert pa.Table.from_batches(out)["n"].to_pylist() == list(range(pushed))
    assert list(tmp_path.glob("semistream-*")) == []
