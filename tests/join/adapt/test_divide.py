"""Memory is divided anew while a join runs: rows, budget and conservation stay as they were."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget.ledger import Ledger
from semistream.budget.split import Division
from semistream.disk.backlog import Backlog
from semistream.errors import SpecError
from semistream.front import Groups
from semistream.front.expiring import ExpiringGroups
from semistream.join.adapt.adapt import Adapting
from semistream.join.adapt.climb import Pace
from semistream.kernels import multimap
from semistream.master.table import TableMaster
from semistream.rows.chunks import Chunks
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.sample_data import ALGORITHMS, HOWS, build, least_memory, products, sales

MASTERS = (
    "memory",
    "pread",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("map", "changed", "unsorted")),
)


@pytest.fixture
def restless(monkeypatch) -> random.Random:
    """Every join that adapts divides its memory at random, as often as it can."""
    rng = random.Random(5)

    def look(self: Adapting) -> None:
        divider = self.divider
        if divider.pending:
            divider.settle()
        elif divider.moves_cache or divider.moves_read:
            share = rng.choice([0.0, 0.05, rng.random(), 0.95])
            divider.ask(Division(share, rng.choice([1, 700, 5_000, 1 << 20])))
            divider.settle()

    monkeypatch.setattr(Adapting, "look", look)
    return rng


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Duplicates, a group that spans pages, NULLs."""
    rng = random.Random(1)
    return products([rng.choice([*range(150), None]) for _ in range(200)] + [7] * 30)


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return sales(random.Random(2), 800, [*range(0, 180, 3), *[7] * 9, *[8] * 20, None])


@pytest.mark.parametrize("kind", MASTERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_do_not_change(restless, table, stream, kind, algorithm, tmp_path: Path) -> None:
    master = build(kind, table, "id", tmp_path)
    member = ss.ALGORITHMS[algorithm]
    if member.needs == "index" and not master.describe().indexed:
        pytest.skip("needs an index")
    moves, least = 0, least_memory(master, algorithm, stream, on="id")
    for how in restless.sample(HOWS, 2):
        memory = int(least * restless.choice([1.1, 1.5, 3.0]))
        stats = check_join(
            master, stream, on="id", how=how, algorithm=algorithm, memory=memory, table=table,
            adapt=True, rng=restless,
        )  # fmt: skip
        moves += stats.moves
    cached = member.front == "groups" and (master.block_pages is None or member.disk == "scan")
    reads = member.disk in ("scan", "seek") and not master.mapped
    pool = (member.disk == "pages" or algorithm == "inlj") and not master.mapped
    assert (moves > 2) == (cached or reads or pool)
    master.close()


def test_waiting_rows_are_carried_over() -> None:
    """Identity, order of arrival, matches so far, the page to go on from."""
    schema, ledger = pa.schema([("n", pa.int64())]), Ledger(1 << 20)
    backlog = Backlog(schema, 60_000, 64, True, ledger)
    rows = pa.record_batch({"n": pa.array(range(200), pa.int64())})
    slots = backlog.add(rows, np.arange(200) % 7)
    backlog.remove(slots[::3])
    kept = slots[np.arange(200) % 3 != 0]
    backlog.matched[kept[:5]] = True
    backlog.resume[kept[5:9]] = 4
    before = [backlog.take(kept), backlog.ticket[kept], backlog.matched[kept]]
    for limit in (45_000, 90_000, 60_000):
        new = backlog.carry(limit)
        assert backlog.take(new).equals(before[0])
        assert (backlog.ticket[new] == before[1]).all()
        assert (backlog.matched[new] == before[2]).all()
        assert (np.flatnonzero(backlog.resume[new]) == range(5, 9)).all()
        assert ledger.held <= limit
        assert backlog.free_rows == backlog.capacity - len(new)
        assert backlog.links is not None
        out = np.empty(200, np.int32)
        links = backlog.links
        n = multimap.rows_of(3, backlog.codes, links.head, links.after, links.bits, out)
        assert (np.sort(out[:n]) == new[backlog.codes[new] == 3]).all()
    assert not backlog.fits(12_000)


@pytest.mark.parametrize("algorithm", ["cmeshjoin", "chybridjoin", "hybridjoin", "meshjoin"])
def test_rows_wait_while_memory_moves(algorithm, tmp_path) -> None:
    """Rows wait at nearly every move, and a move that they leave no room for is put off."""
    table = products([*range(2_000)])
    join = ss.SemiStreamJoin(
        build("pread", table, "id", tmp_path), "id", "left", ["price"], algorithm, "300kB",
        adapt=True,
    )  # fmt: skip
    stream = sales(random.Random(1), 6_000, range(2_100))
    out, waited, put_off = [], [], 0
    for i, batch in enumerate(stream.to_batches(max_chunksize=500)):
        out += list(join.push(batch))
        assert join._engine is not None
        assert join._adapting is not None
        divider = join._adapting.divider
        waited.append(join._engine.waiting)
        divider.ask(Division((0.9, 0.05)[i % 2], 3_000))
        put_off += not divider.settle()
    out += list(join.drain())
    assert sum(n > 0 for n in waited) > 6
    assert put_off > 0 or algorithm in ("hybridjoin", "meshjoin")  # these have no cache
    assert join.stats.moves > 4
    assert_same_rows(out, oracle(stream, table, "id", "left", ["price"]), algorithm)


@pytest.mark.parametrize("algorithm", ["sweepjoin", "cmeshjoin", "chybridjoin"])
def test_ordered_output_stays_ordered(restless, algorithm, tmp_path) -> None:
    table = products([*range(300)])
    master = build("pread", table, "id", tmp_path)
    join = ss.SemiStreamJoin(
        master, "id", "left", ["price"], algorithm, "200kB", ordered=True, adapt=True
    )
    stream = sales(random.Random(1), 3_000, range(320))
    out = []
    for batch in stream.to_batches(max_chunksize=300):
        out += list(join.push(batch))
    out += list(join.drain())
    assert pa.Table.from_batches(out)["qty"].to_pylist() == [*range(3_000)]
    assert join.stats.moves > 3


def test_a_snapshot_remembers_the_division(tmp_path) -> None:
    """More rows may wait than the planned division has room for."""
    table = products([*range(2_000)])
    master = build("pread", table, "id", tmp_path)
    asked = (master, "id", "inner", ["price"], "cmeshjoin", "300kB", ss.Params(front_share=0.8))
    join = ss.SemiStreamJoin(*asked, adapt=True)
    stream = sales(random.Random(1), 3_000, range(2_000))
    first, *rest = stream.to_batches(max_chunksize=1_500)
    out = list(join.push(first.slice(0, 10)))
    assert join._adapting is not None
    join._adapting.divider.ask(Division(0.05, 3_000))
    assert join._adapting.divider.settle()
    out += list(join.push(first.slice(10)))
    for adapt in (False, True):
        fresh = ss.SemiStreamJoin(*asked, adapt=adapt)
        fresh.restore(join.snapshot())
        assert fresh.division == join.division
        assert fresh.stats.waiting == join.stats.waiting > 0
    for batch in rest:
        out += list(fresh.push(batch))
    out += list(fresh.drain())
    assert_same_rows(out, oracle(stream, table, "id", "inner", ["price"]), "restored")


def test_a_wider_row_keeps_the_division(tmp_path) -> None:
    master = build("pread", products([*range(500)]), "id", tmp_path)
    join = ss.SemiStreamJoin(master, "id", columns=["price"], memory="400kB", adapt=True)
    list(join.push(pa.record_batch({"id": [1], "t": ["x"]})))
    assert join._adapting is not None
    join._adapting.divider.ask(Division(0.2, 3_000))
    assert join._adapting.divider.settle()
    list(join.drain())
    list(join.push(pa.record_batch({"id": [1], "t": ["x" * 5_000]})))
    division = join.division
    whole = division["front"] + division["backlog"]
    assert 0.1 < division["front"] / whole < 0.2
    assert len(pa.Table.from_batches(join.drain())) == 1


def test_groups_that_age_keep_their_log_in_another_size() -> None:
    """What is remembered with its time goes in time, whatever the size is by then."""
    now = [0.0]
    master = TableMaster(products([*range(100)]), "id")
    master.ttl, master.clock = 10.0, lambda: now[0]
    rows = pa.record_batch({"v": pa.array(range(100), pa.int64())})
    front = ExpiringGroups(rows.schema, 40_000, 16, 1, Ledger(1 << 20), master)
    codes, every = np.arange(100), np.ones(100, np.int32)
    front.offer(Groups(codes, codes, every, every * np.int32(5)), Chunks.of(rows))
    for limit in (30_000, 60_000):
        front.resize(limit)
        hits = front.probe(codes)
        assert hits is not None
        assert (hits.count > 0).sum() > 50
    now[0] = 11.0
    front.renew()
    hits = front.probe(codes)
    assert hits is not None
    assert not hits.count.any()


def test_shedding_and_adapting_exclude_each_other(tmp_path) -> None:
    master = TableMaster(products([1, 2]), "id")
    with pytest.raises(SpecError, match="leave one of adapt= and shed= out"):
        ss.SemiStreamJoin(
            master, "id", algorithm="sweepjoin", shed=ss.Shedding(tmp_path), adapt=True
        )


def test_where_nothing_can_move_adapt_is_harmless() -> None:
    master = TableMaster(products([1, 2]), "id")
    join = ss.SemiStreamJoin(master, "id", algorithm="memory", adapt=Pace(rows=1))
    out = list(join.push(pa.record_batch({"id": [1, 2, 3] * 100})))
    assert sum(map(len, out)) == 200
    assert join.stats.moves == 0
