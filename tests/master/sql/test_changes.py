"""Tables that change while a join runs: what is cached is forgotten in time."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget.ledger import Ledger
from semistream.front import Groups
from semistream.front.cache import KeyGroups
from semistream.master.base import NOTHING
from semistream.master.sql.master import SqlMaster
from semistream.rows.chunks import Chunks
from tests.helpers.database_servers import execute

_TABLES = itertools.count()
ASKED = pa.record_batch({"id": pa.array([1, 2, 3, 99], pa.int64())})


def clocked(server, **more) -> tuple[SqlMaster, list[float], str]:
    """A small table, a master on it with a clock of its own, and the table's name."""
    stamp = "timestamp" if server.kind == "postgresql" else "datetime(6)"
    name = f"changing{next(_TABLES)}"
    execute(
        server,
        f"CREATE TABLE {name} (id bigint primary key, v int, seen {stamp})",
        f"INSERT INTO {name} VALUES (1, 1, '2024-01-01'), (2, 2, '2024-01-01'), (3, 3, NULL)",
    )
    now = [1000.0]
    spec = ss.open_master(server.url(), "id", table=name, columns=["v"], **more).spec
    return SqlMaster(spec, lambda: now[0]), now, name


def learning(master, algorithm: str = "sweepjoin") -> ss.SemiStreamJoin:
    """A join that caches what it sees once."""
    params = ss.Params(threshold=1)
    return ss.SemiStreamJoin(master, "id", "left", algorithm=algorithm, memory="4MB", params=params)


def asked(join) -> dict[int, int | None]:
    out = pa.Table.from_batches([*join.push(ASKED), *join.drain()])
    return dict(zip(out["id"].to_pylist(), out["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("algorithm", ["sweepjoin", "cinlj", "chybridjoin", "cmeshjoin"])
def test_rows_go_so_long_after_they_were_read(server, algorithm) -> None:
    """However often they were used since; and what was absent is looked for again."""
    master, now, name = clocked(server, ttl="60s")
    join = learning(master, algorithm)
    before = {1: 1, 2: 2, 3: 3, 99: None}
    for _ in range(3):
        assert asked(join) == before
    execute(server, f"UPDATE {name} SET v = 10 * v", f"INSERT INTO {name} VALUES (99, 99, NULL)")
    hits = join.stats.front_hits
    while now[0] < 1050:
        now[0] += 10
        assert asked(join) == before, "still cached"
    assert join.stats.front_hits > hits
    now[0] = 1060
    assert asked(join) == {1: 10, 2: 20, 3: 30, 99: 99}


def test_changed_rows_are_found_by_their_time(server) -> None:
    master, now, name = clocked(server, updated_at="seen")
    join = learning(master)
    for _ in range(3):
        assert asked(join) == {1: 1, 2: 2, 3: 3, 99: None}
    execute(
        server,
        f"UPDATE {name} SET v = 20, seen = '2024-02-01' WHERE id = 2",
        f"UPDATE {name} SET v = 30 WHERE id = 3",  # forgot to say when
        f"INSERT INTO {name} VALUES (99, 99, '2024-01-31 23:59:55')",
    )
    assert asked(join)[2] == 2, "not asked again so soon"
    now[0] += 2
    assert asked(join) == {1: 1, 2: 20, 3: 3, 99: 99}
    late = f"UPDATE {name} SET v = 11, seen = '2024-01-31 23:59:51' WHERE id = 1"  # committed late
    execute(server, late)
    now[0] += 2
    assert asked(join)[1] == 11


def test_a_poll_that_fails_loses_no_row(server, monkeypatch) -> None:
    master, now, _ = clocked(server, updated_at="seen")
    join = ss.SemiStreamJoin(master, "id", "left", algorithm="sweepjoin", memory="4MB")
    asked(join)
    now[0] += 2
    working = SqlMaster.changes
    monkeypatch.setattr(
        SqlMaster, "changes", lambda _: (_ for _ in ()).throw(ss.DatabaseError("no"))
    )
    with pytest.raises(ss.DatabaseError):
        list(join.push(ASKED))
    monkeypatch.setattr(SqlMaster, "changes", working)
    assert sum(len(b) for b in join.drain()) == 4


def test_newest_and_changed_since(server) -> None:
    master, _, name = clocked(server, updated_at="seen")
    execute(server, f"UPDATE {name} SET seen = '2025-01-01' WHERE id = 2")
    fresh = master.newest()
    assert fresh is not master
    assert 2 in fresh.changed_since(master)
    assert 3 not in fresh.changed_since(master)
    assert fresh.changed_since(fresh) is NOTHING
    plain, _, _ = clocked(server)
    assert plain.newest().changed_since(plain) is None


def test_what_keeps_rows_for_good_is_refused(server) -> None:
    master, _, _ = clocked(server, ttl=5)
    for algorithm in ("memory", "xhybridjoin"):
        with pytest.raises(ss.SpecError, match="for good"):
            ss.SemiStreamJoin(master, "id", algorithm=algorithm)
    assert ss.SemiStreamJoin(master, "id").algorithm.name == "sweepjoin"


def test_the_front_stage_forgets_what_it_is_told_to() -> None:
    schema = pa.schema([("v", pa.int64())])
    front = KeyGroups(schema, 100_000, 8, 1, Ledger(1 << 30))
    rows = pa.record_batch({"v": pa.array(range(500), pa.int64())})
    codes, ones = np.arange(500, dtype=np.int64), np.ones(500, np.int32)
    often = 3 * ones  # or it would fall asleep
    for _ in range(4):
        front.offer(Groups(codes, codes.copy(), ones, often), Chunks.of(rows))
    front.absent(np.array([1000, 1001]))
    front.forget(np.array([3, 4, 5, 777, 1000]))
    hits = front.probe(np.array([2, 3, 4, 5, 6, 1000, 1001]))
    assert hits is not None
    assert (hits.count > 0).tolist() == [True, False, False, False, True, False, False]
    assert hits.absent is not None
    assert hits.absent.tolist() == [False] * 6 + [True]
    front.forget(codes)
    assert front.probe(codes).count.sum() == 0
    for _ in range(40):
        front.offer(Groups(codes, codes.copy(), ones, often), Chunks.of(rows))
        front.forget(codes[::2])
    assert (front.probe(codes[1::2]).count == 1).all()


@pytest.mark.parametrize("how", [{}, {"updated_at": "seen"}, {"ttl": "1h"}], ids=str)
def test_refresh_asks_the_database_anew(server, how) -> None:
    """Whatever was cached or known to be absent, and again after the next change."""
    master, _, name = clocked(server, **how)
    join = learning(master)
    for _ in range(3):
        assert asked(join) == {1: 1, 2: 2, 3: 3, 99: None}
    execute(
        server,
        f"UPDATE {name} SET v = 10, seen = '2030-01-01' WHERE id = 1",
        f"INSERT INTO {name} VALUES (99, 99, '2030-01-01')",
    )
    master.close()
    assert list(join.refresh()) == []
    assert asked(join) == {1: 10, 2: 2, 3: 3, 99: 99}
    execute(server, f"UPDATE {name} SET v = 12, seen = '2031-01-01' WHERE id = 1")
    assert list(join.refresh()) == []
    assert asked(join)[1] == 12
