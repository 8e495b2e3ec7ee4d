"""No password is shown: not in errors and what they came from, logs, reprs, nor by commands."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.cli import main
from semistream.master.sql.address import Address, Secret, parse_url
from semistream.master.sql.master import SqlMaster
from semistream.master.storage.files import StorageOptions
from semistream.safety.redact import HIDDEN, address, check_address, check_path, scrub
from semistream.spark import Master, into_delta
from semistream.spark.pins_folder import local_path
from semistream.spark.task.enrich import EnrichTask, Step
from tests.helpers.database_servers import execute, load
from tests.helpers.error_text import everything

CANARY = "kXq7Zr"
TABLE = pa.table({"k": [1, 2], "v": [3, 4]})


# --- what may be shown ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/products", None),
        ("products", None),
        ("/data/at=10:00/mail=a@b/password=1", None),  # folders may have any name
        ("design=7/assigned: x", None),
        ("s3://bucket/products", None),
        ("s3://bucket/at=10:00/mail=a@b", None),
        ("hdfs://name:8020/products", None),
        ("abfs://container@account.dfs.core.windows.net/products", None),
        ("http://127.0.0.1:9000/products", None),
        ("postgresql://host/db", None),
        ("postgresql://u:p@host/db", "postgresql://***"),
        ("postgresql://u:1234", "postgresql://***"),
        ("POSTGRESQL://u:p@host/db", "POSTGRESQL://***"),
        ("mysql://u:1/2@host/db", "mysql://***"),
        ("https://token@host/x", "https://***"),
        ("https://u:1/2@host/x", "https://***"),
        ("s3://key:secret@bucket/x", "s3://***"),
        ("s3://key:1/2@bucket/x", "s3://***"),
        ("abfs://c@account/x?sig=p", "abfs://c@account/x?***"),
        ("s3://bucket/x?X-Amz-Security-Token=p#q", "s3://bucket/x?***"),
        ("s3://bucket/x#p", "s3://bucket/x#***"),
        ("jdbc:mysql://host/db?password=p", "jdbc:***"),
        ("jdbc:oracle:thin:scott/tiger@host:1521/x", "jdbc:***"),
        ("postgresql:u:p@host/db", "postgresql:***"),
        ("u:p@host/db", "***"),
        ("host=h user=u password=p", "***"),
        ("Server=h;Uid=u;Pwd=p", "***"),
    ],
)
def test_an_address_as_it_may_be_shown(text: str, shown: str | None) -> None:
    assert address(text) == (text if shown is None else shown)


def test_what_is_called_like_an_address_and_exists_is_a_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("at=10:00/mail=a@b", "token=7"):
        with pytest.raises(ss.SpecError, match=r"begins with \./"):
            check_path(name)
        check_path(f"./{name}")
        Path(name).mkdir(parents=True)
        check_path(name)
    with pytest.raises(ss.SpecError, match="zero byte"):
        check_path("a\0b")


def test_addresses_of_files_have_no_credentials_in_them() -> None:
    for good in ("s3://bucket/x", "abfs://container@account/x", "memory://a#b", "hdfs://n:8020/x"):
        check_address(good)
    for bad in ("s3://key:secret@bucket/x", "sftp://u@host/x", "abfs://c@account/x?sig=p"):
        with pytest.raises(ss.SpecError, match="storage_options="):
            check_address(bad)
    for bad in ("jdbc:mysql://host/db", "postgresql+psycopg://host/db", "a b://x"):
        with pytest.raises(ss.SpecError, match="postgresql://user@host"):
            check_address(bad)


def test_web_servers_are_no_masters() -> None:
    """They list no files; and an address that works must not be one with a token in it."""
    for url in ("http://127.0.0.1:1/x.parquet", "HTTPS://127.0.0.1:1/x"):
        with pytest.raises(ss.MasterError, match="web servers do not say which files there are"):
            ss.open_master(url, key="k")


def test_words_of_a_library() -> None:
    secret = "se/cr et"
    said = f"no {secret}, {quote(secret, safe='')}, {quote(secret)} or {secret!r} here"
    assert scrub(said, [secret, ""]) == f"no {HIDDEN}, {HIDDEN}, {HIDDEN} or '{HIDDEN}' here"
    said = "GET 'https://host/x?sig=p' with password=p;q {'token': 'p'} (using password: YES)"
    hidden = "GET 'https://host/x?***' with password=*** {'token': ***} (using password: YES)"
    assert scrub(said) == hidden
    for word in ("a", "password", "x://", "password='"):  # minutes, if each letter cost all others
        assert len(scrub(100_000 * word)) <= 100_000 * len(word)


def test_options_are_hidden_wherever_they_are() -> None:
    options = StorageOptions(
        secret="abc", token=b"to ken", headers={"X": ["head er"]}, n=1, region="eu",
        proxy="http://u:pass@proxy:3128", endpoint_url="http://127.0.0.1:9000",
    )  # fmt: skip
    said = "abc, to ken, head er, 1, eu, http://u:pass@proxy:3128, http://127.0.0.1:9000/b"
    assert options.hide(said) == "***, ***, ***, 1, eu, ***, http://127.0.0.1:9000/b"
    assert repr(options) == str(options) == f"StorageOptions({sorted(options)})"
    assert options.mark() != StorageOptions(options | {"secret": "abd"}).mark()


# --- addresses of every shape ---------------------------------------------------------------------

ANY = st.text(st.sampled_from("ab1?@#/%:&=+;,'\"\\ []{}<>|!€"), max_size=4)
SECRETS = st.builds("{}{}{}".format, ANY, st.just(CANARY), ANY)
DATABASES = ["postgresql", "postgres", "mysql", "mariadb", "PostgreSQL", "postgresql+psycopg"]
OTHERS = ["https", "s3", "abfs", "gs", "sftp", "mssql", "redis", "memory", "unknown"]
SCHEMES = st.sampled_from(DATABASES + OTHERS)
WHERE = st.sampled_from(["127.0.0.1:1", "127.0.0.1", "", "[::1]:1"])
NAMES = st.sampled_from(["password", "sig", "token", "X-Amz-Security-Token", "user=u&password"])
SHAPES = st.one_of(
    st.builds("{}://u:{}@{}/d".format, SCHEMES, SECRETS, WHERE),
    st.builds("{}://:{}@{}/d?table=t".format, SCHEMES, SECRETS, WHERE),
    st.builds("{}://u%3A{}@{}/d".format, SCHEMES, SECRETS, WHERE),
    # "u:1/x" is a host, a port and a database
    st.builds("{}://u:{}".format, SCHEMES, SECRETS.filter(lambda s: not re.match("[0-9]+/", s))),
    st.builds("https://{}@{}/d".format, SECRETS, WHERE),
    st.builds("{}://{}/d?{}={}".format, SCHEMES, WHERE, NAMES, SECRETS),
    st.builds("{}://u@{}/d?{}".format, SCHEMES, WHERE, SECRETS),
    st.builds("{}://127.0.0.1/d?a=b#{}".format, SCHEMES, SECRETS),
    st.builds("gs://d#{}".format, SECRETS),
    st.builds("jdbc:{}://{}/d?user=u&password={}".format, SCHEMES, WHERE, SECRETS),
    st.builds("jdbc:oracle:thin:u/{}@{}".format, SECRETS, WHERE),
    st.builds("host={} user=u password={}".format, WHERE, SECRETS),
    st.builds("Server={};Uid=u;Pwd={}".format, WHERE, SECRETS),
    st.builds("u:{}@{}/d".format, SECRETS, WHERE),
    st.builds("{}:{}u:{}@{}/d".format, SCHEMES, st.sampled_from(["", "/"]), SECRETS, WHERE),
)


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """Databases that nobody has are given up at once."""
    before = Address.__init__.__defaults__
    Address.__init__.__defaults__ = tuple(0.001 if d == 60.0 else d for d in before)
    yield
    Address.__init__.__defaults__ = before


def calls(url: str) -> list[Any]:
    batch = pa.record_batch({"k": [1]})
    return [
        lambda: ss.open_master(url, key="k"),
        lambda: ss.open_master(url, key="k", table="t"),
        lambda: ss.open_master(url, key="k", storage_options={"x": 1}),
        lambda: ss.Store.open(url),
        lambda: ss.Store.create(url, TABLE, key="k"),
        lambda: ss.SemiStreamJoin(url, "k"),
        lambda: list(ss.join_batches([batch], url, "k")),
        lambda: into_delta(url, writer="w") if local_path(url) is None else None,
    ]


def commands(url: str) -> list[list[str]]:
    return [
        ["enrich", "in.parquet", "out.parquet", "--on", "k", "--master", url],
        ["enrich", url, "out.parquet", "--on", "k", "--master", "m"],
        ["enrich", "in.parquet", f"{url}.parquet", "--on", "k", "--master", "m"],
        ["build", "in.parquet", url, "--key", "k"],
        ["inspect", url],
        ["plan", url, "--on", "k"],
        ["plan", "m", "--on", "k", f"--rate={url}"],
        ["calibrate", url, "--seconds", "1"],
        [url],
    ]


HOSTILE = [
    f"postgresql://u:{CANARY}?t@host/db",
    f"postgresql://u:12?{CANARY}=x@host/db",
    f"postgresql://u:{CANARY}",
    f"postgresql://127.0.0.1:1/d?password_env={CANARY}!&table=t",
    f"s3://{CANARY}#a@bucket/d",
    f"jdbc:mysql://h/db?user=u&password={CANARY}",
    f"abfs://c@a.dfs.core.windows.net/x?sig={CANARY}",
    f"https://u:{CANARY}@127.0.0.1:1/x.parquet",
]


def shows_nothing(url: str, caplog) -> None:
    """Whatever is tried with this address."""
    said = [repr(Master(url, on="k")), address(url)]
    for call in calls(url):
        try:
            said.append(repr(call()))
        except ss.SemiStreamError as error:  # an error of another kind fails the test
            said += everything(error)
    assert not [text for text in [*said, caplog.text] if CANARY in text]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("url", HOSTILE)
def test_no_error_shows_a_password_that_is_known_to_be_hard(url, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    shows_nothing(url, caplog)


@pytest.mark.usefixtures("impatient")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(url=SHAPES)
def test_no_error_shows_the_password(url: str, caplog, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    shows_nothing(url, caplog)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("impatient")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(url=st.one_of(st.sampled_from(HOSTILE), SHAPES))
def test_no_command_shows_the_password(url: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not Path("in.parquet").exists():
        pq.write_table(TABLE, "in.parquet")
        ss.Store.create("m", TABLE, key="k")
    for i, words in enumerate(commands(url)):
        assert main([*words, "--json"] if i % 2 else words) != 0
    said = capsys.readouterr()
    assert CANARY not in said.out + said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "m"]


@settings(max_examples=300)
@given(SECRETS, st.sampled_from(["postgresql", "mysql"]), WHERE.filter(bool))
def test_an_escaped_password_arrives_as_it_is(secret: str, scheme: str, where: str) -> None:
    place = parse_url(f"{scheme}://us%40er:{quote(secret, safe='')}@{where}/my%20db?table=t")
    assert place.secret is not None
    assert place.secret.reveal() == secret
    assert (place.user, place.database, place.table) == ("us@er", "my db", "t")
    assert CANARY not in repr(place) + place.shown
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize("part", ["a%00b:p@h/d", "u:p%00@h/d", "u:p@h/d%00"])
def test_a_zero_byte_ends_no_address(part: str) -> None:
    """For libpq all would end there, the host as well, and it would ask another server."""
    with pytest.raises(ss.SpecError, match="zero byte"):
        parse_url(f"postgresql://{part}")


@pytest.mark.parametrize("content", [b"\xff" + CANARY.encode(), CANARY.encode() + b"\0x"])
def test_a_password_file_that_holds_none(content: bytes, tmp_path) -> None:
    (tmp_path / "password").write_bytes(content)
    place = parse_url("mysql://u@h/d", str(tmp_path / "password"))
    with pytest.raises(ss.SemiStreamError, match=r"not UTF-8|zero byte") as caught:
        place.password()
    assert not [text for text in everything(caught.value) if CANARY in text]


# --- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", [f"{CANARY}'?@/#%", f"{CANARY} pä\u20acss\U0001f511"])
def test_a_real_server_and_a_wrong_password(server, password: str, caplog) -> None:
    """The right one logs in, whatever its characters. A wrong one, or one that the driver cannot
    even encode, is not repeated in the error that the driver's became."""
    caplog.set_level(logging.DEBUG)
    table, user = load(server, TABLE, ["k"], "primary"), f"canary{len(password)}"
    literal = "'" + password.replace("'", "''") + "'"
    by = "PASSWORD" if server.kind == "postgresql" else "IDENTIFIED BY"
    execute(server, f"CREATE USER {user} {by} {literal}", f"GRANT SELECT ON {table} TO {user}")
    host = f"127.0.0.1:{server.port}/{server.database}"
    url = f"{server.scheme}://{user}:{quote(password, safe='')}@{host}"
    master = ss.open_master(url, "k", table=table)
    assert master.describe().rows == 2
    said = [repr(master), repr(master.locator()), repr(master.spec)]
    for wrong in (f"{password}x", f"\ud800{CANARY}"):
        place = replace(master.spec.place, secret=Secret(wrong))
        with pytest.raises(ss.DatabaseError, match=r"authentication|denied|UnicodeEnc") as caught:
            SqlMaster(replace(master.spec, place=place))
        said += everything(caught.value)
    assert not [text for text in [*said, caplog.text] if CANARY in text]


def test_a_task_of_spark_shows_no_storage_options() -> None:
    options = StorageOptions({"key": "key id", "secret": CANARY, "client_kwargs": {"x": [CANARY]}})
    locator = {"kind": "store", "path": "s3://b/x", "options": options, "version": 1, "io": "pread"}
    added = pa.schema([("v", pa.int64())])
    step = Step(locator, [("k", "k")], "inner", None, None, 1 << 20, "inlj", added)
    wanted = step.wanted(pa.schema([("k", pa.int64())]))
    assert CANARY not in repr(EnrichTask([step])) + repr(wanted) + wanted.identity
    elsewhere = replace(
        step, locator=locator | {"options": StorageOptions(endpoint_url="http://other")}
    )
    assert elsewhere.wanted(pa.schema([("k", pa.int64())])).identity != wanted.identity


def test_an_address_of_a_receiver_shows_no_password() -> None:
    with pytest.raises(ss.SpecError, match="not an address") as caught:
        ss.SemiStreamJoin(
            pa.table({"id": [1]}),
            "id",
            algorithm="sweepjoin",
            shed=ss.Shedding("tcp://u:Secret@h:1"),
        )
    assert "Secret" not in str(caught.value)
