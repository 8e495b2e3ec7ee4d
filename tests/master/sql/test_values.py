"""Values, collations, names and widths that real databases have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.sql import master as sql
from semistream.testing import check_join, check_master
from tests.helpers.database_servers import execute, load, quote


@pytest.fixture(autouse=True)
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(sql, "PAGE_BYTES", 600)


def opened(server, name, key, **more):
    return ss.open_master(server.url(), key, table=name, **more)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("postgresql", "char(8)"),
        ("postgresql", "citext"),
        ("postgresql", 'text COLLATE "und-ci"'),
        ("mariadb", "varchar(20) character set utf8mb4 collate utf8mb4_general_ci"),
        ("mariadb", "char(8) character set latin1 collate latin1_swedish_ci"),
        ("mariadb", "varchar(20) character set utf8mb4 collate utf8mb4_unicode_nopad_ci"),
    ],
)
def test_collations_never_match_other_keys(kind, column, request) -> None:
    """The database takes 'a', 'A' and 'a ' for equal; the join does not, and loses none."""
    server = request.getfixturevalue(kind)
    if column == "citext":
        execute(server, "CREATE EXTENSION IF NOT EXISTS citext")
    if "und-ci" in column:
        execute(
            server,
            'CREATE COLLATION IF NOT EXISTS "und-ci" (provider = icu, '
            "locale = 'und-u-ks-level2', deterministic = false)",
        )
    name = f"collated_{abs(hash(column))}"
    execute(server, f"CREATE TABLE {name} (k {column}, v int)", f"CREATE INDEX ON {name} (k, v)"
            if kind == "postgresql" else f"CREATE INDEX ki ON {name} (k, v)")  # fmt: skip
    stored = ["a", "A", "ab", "Ab", "ä", "AB", "b"]
    execute(
        server, f"INSERT INTO {name} VALUES (%s, %s)", values=[(w, i) for i, w in enumerate(stored)]
    )
    table = pa.table({"k": stored, "v": pa.array(range(7), pa.int32())})
    stream = pa.table({"k": ["a", "A", "ab", "aB", "ä", "a ", "Ä", "b", "c", "ж", "?"]})
    master = opened(server, name, "k")
    for algorithm, how in (("sweepjoin", "left"), ("inlj", "inner"), ("inlj", "anti")):
        check_join(master, stream, on="k", how=how, algorithm=algorithm, table=table)
    both = opened(server, name, ["k", "v"])  # found by the same index, compared twice
    stream = stream.append_column("v", pa.array([0, 1, 2, 2, 4, 0, 4, 6, 6, 6, 6], pa.int64()))
    if both.describe().indexed:
        check_join(both, stream, on=["k", "v"], algorithm="sweepjoin", table=table)


def test_values_of_every_type(server) -> None:
    """Columns that are no keys, with the odd values that each type has."""
    if server.kind == "postgresql":
        columns = {
            "id": "bigint primary key", "u": "uuid", "j": "jsonb", "e": "mood", "c": "char(5)",
            "f": "real", "n": "numeric(40,2)", "b": "bytea", "z": "timestamptz", "t": "time",
        }  # fmt: skip
        execute(server, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
        row = "(1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{\"a\": 1}', 'ok', 'ab', 'NaN', -1.5, "
        row += "'\\x0001ff', '2024-02-29 12:00:00+02', '23:59:59.999999')"
        want = {
            "id": 1, "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "j": '{"a": 1}', "e": "ok",
            "c": "ab", "n": Decimal("-1.50"), "b": b"\0\1\xff",
            "z": dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC), "t": dt.time(23, 59, 59, 999999),
        }  # fmt: skip
    else:
        columns = {
            "id": "bigint primary key", "u": "uuid", "j": "json", "e": "enum('sad', 'ok')",
            "c": "char(5)", "f": "float", "n": "decimal(40,2)", "b": "blob", "z": "timestamp(6)",
            "t": "time(6)", "y": "year", "s": "set('a','b')",
        }  # fmt: skip
        row = "(1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{\"a\": 1}', 'ok', 'ab', 2.5, -1.5, "
        row += "x'0001ff', '2024-02-29 10:00:00.5', '-100:00:00.25', 2024, 'a,b')"
        want = {
            "id": 1, "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "j": '{"a": 1}', "e": "ok",
            "c": "ab", "f": 2.5, "n": Decimal("-1.50"), "b": b"\0\1\xff",
            "z": dt.datetime(2024, 2, 29, 10, 0, 0, 500_000, tzinfo=dt.UTC),
            "t": -dt.timedelta(hours=100, microseconds=250_000), "y": 2024, "s": "a,b",
        }  # fmt: skip
    made = ", ".join(f"{n} {t}" for n, t in columns.items())
    nothing = ", ".join(["NULL"] * (len(columns) - 1))
    execute(
        server, f"CREATE TABLE kinds ({made})", f"INSERT INTO kinds VALUES {row}, (2, {nothing})"
    )
    found = opened(server, "kinds", "id").lookup(pa.record_batch({"id": [1, 2]})).sort_by("id")
    first, second = found.to_pylist()
    assert {k: v for k, v in first.items() if k in want} == want
    assert [v for k, v in second.items() if k != "id"] == [None] * (len(columns) - 1)


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("postgresql", "integer[]", r"'x' is integer\[\].*columns="),
        ("postgresql", "numeric", r"'x' is numeric without limits.*columns="),
        ("postgresql", "interval", r"'x' is interval.*columns="),
        ("postgresql", "point", r"'x' is point.*columns="),
        ("mariadb", "bit(3)", r"'x' is bit\(3\).*columns="),
        ("mariadb", "point", r"'x' is point.*columns="),
    ],
)
def test_types_that_cannot_be_read_are_named(kind, column, said, request) -> None:
    server = request.getfixturevalue(kind)
    name = f"odd_{abs(hash(column))}"
    execute(server, f"CREATE TABLE {name} (id int primary key, v int, x {column})")
    with pytest.raises(ss.MasterError, match=said):
        opened(server, name, "id")
    assert opened(server, name, "id", columns=["v"]).describe().rows == 0


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("postgresql", "timestamp", "'infinity'"),
        ("postgresql", "date", "'-infinity'"),
        ("postgresql", "numeric(8,2)", "'NaN'"),
        ("mariadb", "date", "'0000-00-00'"),
        ("mariadb", "datetime", "'2024-00-00 00:00:00'"),
    ],
)
def test_values_that_arrow_lacks_are_errors_not_nulls(kind, column, value, request) -> None:
    server = request.getfixturevalue(kind)
    name = f"lacks_{abs(hash(column + value))}"
    create = f"CREATE TABLE {name} (id int primary key, x {column})"
    mode = [] if kind == "postgresql" else ["SET sql_mode = ''"]
    execute(server, create, *mode, f"INSERT INTO {name} VALUES (1, {value}), (2, NULL)")
    with pytest.raises(ss.MasterError, match=r"'x'.*where="):
        opened(server, name, "id").lookup(pa.record_batch({"id": [1]}))
    found = opened(server, name, "id", where="id > 1").lookup(pa.record_batch({"id": [2]}))
    assert found["x"].to_pylist() == [None]


# --- names -------------------------------------------------------------------------------------

ODD = ['x"; DROP TABLE kept; --', "x`; DROP TABLE kept; --", "a.b", "ä b", "%s", "?", "'"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_names(server, name) -> None:
    table = pa.table({name: [3, 1, 2, 1], "v" + name: ["a", "b", "c", "d"]})
    load(server, table, [name], "pk", "t" + name)
    schema = "public" if server.kind == "postgresql" else server.database
    master = ss.open_master(
        server.url(), name, table=(schema, "t" + name), columns=table.column_names
    )
    check_master(master, table, name)
    execute(server, f"DROP TABLE {quote(server, 't' + name)}")


@pytest.mark.parametrize(
    "name", ["kept; DROP TABLE kept", 'kept" --', "KEPT'", "' OR 1=1 --", "\\"]
)
def test_names_that_are_not_there_do_nothing(server, name) -> None:
    execute(server, "CREATE TABLE IF NOT EXISTS kept (id int primary key)")
    with pytest.raises(ss.MasterError, match="no table"):
        ss.open_master(server.url(), "id", table=[name])
    for arguments in ({"key": name}, {"key": "id", "columns": [name]}):
        with pytest.raises(ss.SpecError, match="does not exist"):
            ss.open_master(server.url(), table="kept", **arguments)
    with pytest.raises(ss.SpecError, match="updated_at"):
        ss.open_master(server.url(), "id", table="kept", updated_at=name)
    assert opened(server, "kept", "id").describe().rows == 0


# --- memory ------------------------------------------------------------------------------------


def test_a_wide_value(server) -> None:
    """10 MB in one row: fetched alone, within the budget; refused where it cannot fit."""
    kind = "text" if server.kind == "postgresql" else "longtext"
    execute(server, f"CREATE TABLE wide (id int primary key, v {kind})")
    rows = [(i, "x" * (10_000_000 if i == 7 else 10)) for i in range(50)]
    execute(server, "INSERT INTO wide VALUES (%s, %s)", values=rows)
    stream = pa.record_batch({"id": pa.array(range(60), pa.int32())})
    master = opened(server, "wide", "id")
    out = list(ss.join_batches([stream], master, "id", algorithm="sweepjoin", memory="200MB"))
    sizes = {
        i: len(v) for b in out for i, v in zip(*(c.to_pylist() for c in b.columns), strict=True)
    }
    assert sizes == {i: len(v) for i, v in rows}
    join = ss.SemiStreamJoin(master, "id", algorithm="sweepjoin", memory="20MB")
    before = list(join.push(stream))
    with pytest.raises(ss.BudgetError, match="rows of one key"):
        list(join.drain())
    assert not before
    assert join.stats.rows_in == 60


def test_fetches_are_divided_to_fit(server) -> None:
    """Rows much wider than the first ones showed: fewer keys are asked for, nothing is lost."""
    kind = "text" if server.kind == "postgresql" else "longtext"
    execute(server, f"CREATE TABLE uneven (id int primary key, v {kind})")
    rows = [(i, "x" * (20 if i < 300 else 20_000)) for i in range(600)]
    execute(server, "INSERT INTO uneven VALUES (%s, %s)", values=rows)
    table = pa.table({"id": pa.array(range(600), pa.int32()), "v": [v for _, v in rows]})
    stream = pa.table({"id": pa.array(np.arange(650), pa.int32())})
    check_join(
        opened(server, "uneven", "id"), stream, on="id", how="left", algorithm="sweepjoin",
        memory="3MB", table=table,
    )  # fmt: skip
