"""Stores in an object store: the same rows, the same versions, the same refusals."""

from __future__ import annotations

import http.client
import pickle
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.master import from_locator
from semistream.master.storage.place import place_at
from semistream.master.store import format as fmt
from semistream.master.store import writers as store_writers
from semistream.testing import assert_same_rows, check_join, check_master
from tests.helpers.error_text import everything
from tests.helpers.s3_server import KEY, SECRET, Bucket, bucket, s3_endpoint
from tests.helpers.sample_data import ALGORITHMS, products, sales

__all__ = ["bucket", "s3_endpoint"]
TABLE = products([None if k % 50 == 0 else k // 2 for k in range(400)])


def some(*keys: int) -> pa.Table:
    return products(list(keys)).cast(TABLE.schema)


def made(bucket: Bucket, table: pa.Table = TABLE) -> ss.Store:
    url = f"{bucket.url}/master/products"
    return ss.Store.create(url, table, "id", page_bytes=1024, storage_options=bucket.options)


def test_conforms(bucket) -> None:
    store = made(bucket)
    check_master(store, TABLE, "id")
    assert store.verify() == store.describe().pages
    url = f"{bucket.url}/master/products"
    again = ss.open_master(url, storage_options=bucket.options)
    check_master(again, TABLE, "id", rng=1)
    check_master(from_locator(pickle.loads(pickle.dumps(store.locator()))), TABLE, "id", rng=2)
    with pytest.raises(ss.StoreError, match="store already"):
        made(bucket)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_joins(algorithm, bucket) -> None:
    store = made(bucket).upsert(products([3, 4, 999])).delete(pa.table({"id": [7, 8]}))
    gone = [3, 4, 999, 7, 8]
    kept = [row for row in TABLE.to_pylist() if row["id"] not in gone]
    rows = pa.concat_tables(
        [pa.Table.from_pylist(kept, schema=TABLE.schema), products([3, 4, 999])]
    )
    stream = sales(random.Random(1), 60, [None, 2, 3, 7, 100, 999, 5_000])
    check_join(
        store, stream, on="id", how="left", algorithm=algorithm, memory="3MB", table=rows, rng=1
    )


def test_versions(bucket) -> None:
    first = made(bucket)
    second = first.upsert(products([1, 1, 5_000]))
    third = second.delete(pa.table({"id": [1]}))
    with pytest.raises(ss.ConflictError, match="open the store again"):
        first.append(some(2))
    fourth = third.compact()
    assert fourth.version == 4
    url = f"{bucket.url}/master/products"
    for version, rows in ((1, 400), (2, 401), (3, 399), (4, 399)):
        old = ss.Store.open(url, version, storage_options=bucket.options)
        assert old.describe().rows == rows == len(pa.Table.from_batches(old.batches()))
        old.verify()
    assert fourth.expire(0, keep=2) == [1, 2]
    with pytest.raises(ss.StoreError, match="no version 1; it has 3-4"):
        ss.Store.open(url, 1, storage_options=bucket.options)
    third.verify()
    assert fourth.expire(0) == [3]
    named = {name for run in fourth.manifest.runs for name in run.files}
    assert {file.name for file in fourth.place.list("data")} == named
    with pytest.raises(ss.DamagedError, match="missing"):
        third.lookup(pa.record_batch({"id": [5_000]}))


def test_of_two_writers_one_wins(bucket) -> None:
    """At the same time: the put demands absence, so the server decides."""
    store = made(bucket)
    start, results = threading.Barrier(4), []

    def write(key: int) -> None:
        other = ss.Store.open(store.place)
        start.wait()
        try:
            results.append((key, other.upsert(some(key))))
        except ss.ConflictError:
            results.append((key, None))

    threads = [threading.Thread(target=write, args=(10_000 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [(key, new) for key, new in results if new is not None]
    assert len(won) == 1
    latest = ss.Store.open(store.place)
    assert latest.version == 2
    keys = [10_000 + i for i in range(4)]
    found = latest.lookup(pa.record_batch({"id": keys}))["id"].to_pylist()
    assert found == [won[0][0]]
    named = {n for m in (store.manifest, latest.manifest) for r in m.runs for n in r.files}
    assert {f.name for f in store.place.list("data")} == named, "losers clean up behind themselves"


def test_a_lost_newest_manifest_is_noticed(bucket) -> None:
    store = made(bucket).upsert(some(1))
    store.place.remove("manifests/00000002.json")
    url = f"{bucket.url}/master/products"
    for call in (
        lambda: ss.Store.open(url, storage_options=bucket.options),
        lambda: ss.open_master(url, storage_options=bucket.options),
        lambda: store.upsert(some(2)),
        store.newest,
    ):
        with pytest.raises(ss.DamagedError, match=r"00000002\.json is missing"):
            call()
    again = ss.Store.open(url, 1, storage_options=bucket.options).restore()
    assert again.version == 3
    assert_same_rows(pa.Table.from_batches(ss.Store.open(again.place).batches()), TABLE)
    assert [file.name for file in store.place.list("newest")] == [f"00000003.{again.manifest.id}"]


def test_old_versions_go_by_themselves(bucket) -> None:
    store = made(bucket).retain(2)
    for key in range(4):
        store = store.upsert(some(key))
    assert fmt.versions(store.place) == [5, 6]
    named = {n for v in (5, 6) for r in fmt.read_manifest(store.place, v).runs for n in r.files}
    assert {file.name for file in store.place.list("data")} == named
    assert store.place.list("writers") == []
    taken = {file.name: file.bytes for file in store.place.list("manifests")}
    assert taken["00000001.json"] == len(fmt.EXPIRED), "its name stays taken for a day"


def test_what_dead_writers_left_goes_after_a_day(bucket, monkeypatch) -> None:
    """Also what one left that failed, and only when it is old."""
    store = made(bucket)

    def broken():
        yield some(1).to_batches()[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.upsert(broken())
    left = f"data/{'0' * 32}-00000.arrow"
    store.place.replace(left, b"x")
    assert len(store.place.list("writers")) == 1
    store = store.upsert(some(1))
    assert store.place.size(left) == 1
    monkeypatch.setattr(store_writers, "LEFTOVER_AGE", -60.0)
    store = store.upsert(some(2))
    assert store.place.size(left) is None
    assert store.place.list("writers") == []
    assert store.verify() > 1


# --- through a proxy that looks and meddles ------------------------------------------------------


class Proxy:
    def __init__(self, endpoint: str) -> None:
        self.gets: list[str] = []
        self.drop: set[str] = set()  # headers that do not get through
        proxy, target = self, endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                if self.command == "GET" and "range" in self.headers:
                    proxy.gets.append(self.headers["range"])
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length) if length else None
                kept = {k: v for k, v in self.headers.items() if k.lower() not in proxy.drop}
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                head = self.command == "HEAD" and answer.getheader("content-length")
                self.send_header("content-length", head or str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    proxy = Proxy(s3_endpoint)
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()


def test_a_server_that_ignores_the_demand_for_absence_is_refused(bucket, proxy) -> None:
    through = Bucket(bucket.name, proxy.endpoint)
    proxy.drop = {"if-none-match"}
    with pytest.raises(ss.StoreError, match=r"wrote over an object in spite of If-None-Match"):
        made(through)
    assert bucket.files().find(bucket.name) == [], "nothing is left"
    store = made(bucket)
    reader = ss.Store.open(place_at(store.place.name, through.options))
    check_master(reader, TABLE, "id")
    with pytest.raises(ss.StoreError, match="in spite"):
        reader.upsert(some(1))
    assert ss.Store.open(store.place).version == 1


def test_reads_are_merged(bucket, proxy) -> None:
    """Pages side by side in one request; what is read is what is needed."""
    store = made(bucket)
    reader = ss.Store.open(place_at(store.place.name, Bucket(bucket.name, proxy.endpoint).options))
    proxy.gets.clear()
    reader.read(np.array([0, 1, 2, 5, 6, 9], np.int64), ["id"])
    assert len(proxy.gets) == 3
    assert reader.traffic.bytes == int(reader.index.length[[0, 1, 2, 5, 6, 9]].sum())


def test_stores_that_cannot_be_published_to(tmp_path) -> None:
    with pytest.raises(ss.StoreError, match="local:// is not known to offer that"):
        ss.Store.create(f"local://{tmp_path}/x", TABLE, "id")
    with pytest.raises(ss.MasterError, match=r"needs a package|cannot be reached"):
        ss.Store.create("nothing://x", TABLE, "id")


def test_secrets_do_not_show(bucket) -> None:
    store = made(bucket)
    shown = [repr(store), str(store.place), repr(store.locator()), repr(store.describe())]
    wrong = {**bucket.options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}
    wrong["config_kwargs"] = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    for url, options in (
        (f"{bucket.url}-that-is-not-there/x", bucket.options),
        (f"{bucket.url}/x", {**wrong, "retries": 1}),
    ):
        with pytest.raises(ss.SemiStreamError) as caught:
            ss.Store.create(url, TABLE, "id", storage_options=options)
        shown += everything(caught.value)
    for text in shown:
        assert SECRET not in text
        assert KEY not in text


def test_rows_arrive_whole_or_not_at_all(bucket) -> None:
    """An upload that fails leaves the old version; what it left is named by nobody."""
    store = made(bucket)

    def broken():
        yield some(1).to_batches()[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.upsert(broken())
    assert ss.Store.open(store.place).version == 1
    assert_same_rows(pa.Table.from_batches(ss.Store.open(store.place).batches()), TABLE)
