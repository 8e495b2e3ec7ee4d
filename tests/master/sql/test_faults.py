"""Databases that fail: never a wrong answer, never a lost row, never a password in sight."""

from __future__ import annotations

import logging
import pickle
import random
import threading
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from benchmarks.lib.servers import PASSWORD, START
from semistream.cli import main
from semistream.master.sql import session as sql_session
from semistream.master.sql.address import Secret, parse_url
from semistream.master.sql.columns import Column
from semistream.master.sql.session import Driver, FailedError, Query, Session
from semistream.testing import assert_same_rows, oracle
from tests.helpers.database_servers import KINDS, execute, load

ROWS = 3_000
STREAM = pa.table({"id": pa.array([7 * i % (ROWS + 100) for i in range(1_000)], pa.int64())})


def numbers(count: int = ROWS) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(count), pa.int64()), "v": [f"v{i}" for i in range(count)]}
    )


@pytest.fixture(params=KINDS)
def own(request):
    """A server that this test may stop."""
    with START[request.param]() as server:
        yield server


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(sql_session, "GRACE", 0.2)
    monkeypatch.setattr(sql_session, "LONGEST_PAUSE", 0.2)


def left_join(master, **join):
    return ss.SemiStreamJoin(master, "id", "left", algorithm="sweepjoin", memory="4MB", **join)


def shown(error: BaseException) -> str:
    """Everything that a log would have of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


# --- servers that go away -----------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_killed_and_restarted(own) -> None:
    """While it is down there is an error and no row is lost; when it is back the join goes on."""
    table = numbers()
    name = load(own, table, ["id"], "primary")
    master = ss.open_master(own.url(more="?deadline=300ms"), "id", table=name)
    join = left_join(master)
    out = list(join.push(STREAM.to_batches()[0]))
    own.kill()
    with pytest.raises(ss.DatabaseError) as caught:
        out += list(join.drain())
    assert PASSWORD not in shown(caught.value)
    assert join.stats.waiting + join.stats.rows_matched + join.stats.rows_unmatched == 1_000
    assert not join.stats.rows_unmatched, "a failed lookup is never a miss"
    own.start()
    out += list(join.drain())
    assert_same_rows(out, oracle(STREAM, table, "id", "left"))
    patient = ss.open_master(own.url(), "id", table=name)
    restart = threading.Thread(target=lambda: (own.stop(), own.start()))
    restart.start()  # in the midst of the queries of this join
    out = list(ss.join_batches(STREAM.to_batches(50), patient, "id", "left", algorithm="inlj"))
    restart.join()
    assert_same_rows(out, oracle(STREAM, table, "id", "left"))


def test_a_connection_cut_in_mid_result(server, proxy) -> None:
    table = numbers()
    name = load(server, table, ["id"], "primary")
    master = ss.open_master(server.url(proxy.port), "id", table=name)
    before = proxy.connections
    for after in (3_000, 10_000, 1):
        proxy.cut_after = after
        out = list(ss.join_batches(STREAM.to_batches(), master, "id", "left", algorithm="inlj"))
        assert_same_rows(out, oracle(STREAM, table, "id", "left"))
    assert proxy.connections == before + 3


@pytest.mark.usefixtures("quick")
def test_a_server_that_hangs(server, proxy) -> None:
    table = numbers()
    name = load(server, table, ["id"], "primary")
    url = server.url(proxy.port, more="?statement_timeout=1500ms&deadline=1s")
    master = ss.open_master(url + "&connect_timeout=1s", "id", table=name)
    join = left_join(master)
    out = list(join.push(STREAM.to_batches()[0]))
    proxy.flows.clear()
    with pytest.raises(ss.DatabaseError, match=r"does not answer|timed out|timeout"):
        list(join.drain())
    proxy.flows.set()
    out += list(join.drain())
    assert_same_rows(out, oracle(STREAM, table, "id", "left"))


def test_a_statement_that_takes_too_long_is_not_repeated(server, proxy) -> None:
    name = load(server, numbers(3), ["id"], "primary")
    slow = "pg_sleep(20) IS NOT NULL" if server.kind == "postgresql" else "sleep(20) = 0"
    url = server.url(proxy.port, more="?statement_timeout=200ms")
    with pytest.raises(ss.DatabaseError, match=r"statement_timeout="):
        ss.open_master(url, "id", table=name, where=slow)
    assert proxy.connections == 1


# --- what is not worth repeating ----------------------------------------------------------------


def test_refusals_come_at_once(server, proxy) -> None:
    name = load(server, numbers(3), ["id"], "primary")
    good = server.url(proxy.port)
    cases = [
        (good.replace(PASSWORD, "wrong"), {}, ss.DatabaseError, "password|[Aa]ccess denied"),
        (good.replace("/tests", "/nowhere"), {}, ss.DatabaseError, "nowhere"),
        (good, {"where": "no_such = 1"}, ss.DatabaseError, "no_such.*where="),
        (good, {"where": "1 = = 1"}, ss.DatabaseError, "where="),
        (good, {"table": "missing"}, ss.MasterError, "no table 'missing'"),
        (good, {"columns": ["nope"]}, ss.SpecError, "'nope' does not exist.*'id', 'v'"),
        (good, {"key": "nope"}, ss.SpecError, "'nope' does not exist"),
        (good, {"table": None}, ss.SpecError, "table="),
        (good, {"table": "a.b.c"}, ss.SpecError, "is no name"),
        (good, {"ttl": "soon"}, ss.SpecError, "ttl='soon'"),
        (good, {"updated_at": "v"}, ss.SpecError, "must be a timestamp"),
        (good + "?colour=red", {}, ss.SpecError, "'colour'.*password_env"),
        (good.replace("/tests", ""), {}, ss.SpecError, "no database"),
        (good.replace("127.0.0.1:", "127.0.0.1:x"), {}, ss.SpecError, "cannot be read"),
    ]
    for url, more, error, said in cases:
        before = proxy.connections
        with pytest.raises(error, match=said) as caught:
            ss.open_master(url, **{"key": "id", "table": name, **more})
        assert proxy.connections <= before + 1, said
        assert PASSWORD not in shown(caught.value)


def test_permission_denied(server) -> None:
    name = load(server, numbers(3), ["id"], "primary")
    who = "nobody_much" if server.kind == "postgresql" else "nobody_much@'%'"
    secret = f"PASSWORD '{PASSWORD}'" if server.kind == "postgresql" else f"BY '{PASSWORD}'"
    create = (
        "CREATE ROLE {} LOGIN {}" if server.kind == "postgresql" else "CREATE USER {} IDENTIFIED {}"
    )
    execute(server, create.format(who, secret))
    url = server.url().replace("tester:", "nobody_much:")
    with pytest.raises(ss.DatabaseError, match=r"denied.*(grant SELECT|rights)") as caught:
        ss.open_master(
            url, "id", table=name, columns=["v"] if server.kind == "postgresql" else None
        )
    assert PASSWORD not in shown(caught.value)


def test_sessions_only_read(server) -> None:
    name = load(server, numbers(3), ["id"], "primary")
    master = ss.open_master(server.url(), "id", table=name)
    what = "nextval('s')" if server.kind == "postgresql" else "NEXT VALUE FOR s"
    execute(server, "CREATE SEQUENCE s")
    with pytest.raises(ss.DatabaseError, match=r"(?i)read.only"):
        master.session.select(Query(f"SELECT {what} AS c0"), [Column("c0", pa.int64(), "int8")])


# --- what is repeated, and how: a driver that fails on command ------------------------------------


class Failing(Driver):
    """Fails so many times. (Deadlocks and the like cannot be had from a server on demand.)"""

    def __init__(self, problems: list[FailedError]) -> None:
        self.problems = problems

    def open(self, place, password) -> None:
        return

    def select(self, query, columns, limit, within):
        if self.problems:
            raise self.problems.pop(0)
        return [pa.array([1])]

    def close(self) -> None:
        return


def retrying(problems: list[FailedError]) -> tuple[Session, list[float]]:
    now, pauses = [0.0], []

    def sleep(length: float) -> None:
        pauses.append(length)
        now[0] += length

    place = parse_url("postgresql://u@h/d?deadline=10s")
    make = lambda: Failing(problems)  # noqa: E731
    return Session(place, make, lambda: now[0], sleep, random.Random(1)), pauses


def test_pauses_grow_and_end_at_the_deadline() -> None:
    session, pauses = retrying([FailedError("deadlock", again=True) for _ in range(5)])
    assert session.select(Query(), [Column("n", pa.int64(), "int8")]).num_rows == 1
    assert len(pauses) == 5
    assert all(0.5 * 0.05 * 2**i <= p <= 0.05 * 2**i for i, p in enumerate(pauses)), pauses
    session, pauses = retrying([FailedError("gone", again=True) for _ in range(99)])
    with pytest.raises(ss.DatabaseError, match=r"gone.*tried"):
        session.select(Query(), [])
    assert sum(pauses) <= 10
    session, pauses = retrying([FailedError("syntax")])
    with pytest.raises(ss.DatabaseError, match="syntax"):
        session.select(Query(), [])
    assert pauses == []


# --- passwords -----------------------------------------------------------------------------------


def test_a_secret_does_not_show() -> None:
    secret = Secret(PASSWORD)
    place = parse_url(f"postgresql://u:{PASSWORD}@h:1/d")
    for text in (repr(secret), str(secret), f"{secret}", f"{secret!r}", repr(place), place.shown):
        assert PASSWORD not in text
    assert pickle.loads(pickle.dumps(secret)).reveal() == PASSWORD, "it must reach the workers"
    for url in (
        f"postgresql://u:{PASSWORD}@h:port/d",
        f"mysql://u:{PASSWORD}@h",
        "mysql://h/d?x=1",
    ):
        with pytest.raises(ss.SpecError) as caught:
            parse_url(url)
        assert PASSWORD not in shown(caught.value)


def test_passwords_from_elsewhere(server, monkeypatch, tmp_path) -> None:
    name = load(server, numbers(3), ["id"], "primary")
    bare = server.url(password=None)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    monkeypatch.setenv("MASTER_PASSWORD", PASSWORD)
    for url, more in (
        (bare + "?password_env=MASTER_PASSWORD", {}),
        (bare, {"password_file": str(tmp_path / "secret")}),
        (bare + f"?password_file={tmp_path / 'secret'}&table={name}", {"table": None}),
    ):
        master = ss.open_master(url, **{"key": "id", "table": name, **more})
        assert master.describe().rows == 3
        assert PASSWORD.encode() not in pickle.dumps(master.locator()), "a reference travels"
    monkeypatch.setenv("PGPASSWORD" if server.kind == "postgresql" else "MYSQL_PWD", PASSWORD)
    assert ss.open_master(bare, "id", table=name).describe().rows == 3
    monkeypatch.delenv("MASTER_PASSWORD")
    with pytest.raises(ss.MasterError, match="MASTER_PASSWORD, which is not set"):
        ss.open_master(bare + "?password_env=MASTER_PASSWORD", "id", table=name)
    with pytest.raises(ss.MasterError, match="gone, which cannot be read"):
        ss.open_master(bare, "id", table=name, password_file="gone")


def test_nothing_that_is_logged_has_the_password(server, caplog) -> None:
    name = load(server, numbers(30), ["id"], "primary")
    caplog.set_level(logging.DEBUG)
    master = ss.open_master(server.url(), "id", table=name)
    join = left_join(master)
    list(join.push(STREAM.to_batches()[0]))
    list(join.drain())
    with pytest.raises(ss.DatabaseError):
        ss.open_master(server.url(), "id", table=name, where="nonsense(")
    told = [master, master.locator(), master.describe(), master.spec, join.stats, join.spec]
    assert PASSWORD not in caplog.text + "".join(map(repr, told)) + repr(join.snapshot())


def test_the_command_line_does_not_show_it(server, tmp_path, capsys) -> None:
    name = load(server, numbers(30), ["id"], "primary")
    pq.write_table(STREAM, tmp_path / "in.parquet")
    url = server.url(more=f"?table={name}")
    words = ["enrich", str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet"), "--on", "id"]
    assert main([*words, "--master", url]) == 0
    assert main([*words, "--master", url, "--overwrite", "--json"]) == 0
    assert main([*words, "--master", url + "_gone", "--overwrite"]) != 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 14
    printed = capsys.readouterr()
    assert name in printed.out
    assert PASSWORD not in printed.out + printed.err


def test_a_missing_driver_names_the_extra(server, monkeypatch) -> None:
    module = "psycopg" if server.kind == "postgresql" else "pymysql"
    monkeypatch.setitem(__import__("sys").modules, module, None)
    extra = "postgresql" if server.kind == "postgresql" else "mysql"
    with pytest.raises(ss.MasterError, match=rf"pip install 'semistream\[{extra}\]'"):
        ss.open_master(server.url(), "id", table="t")
