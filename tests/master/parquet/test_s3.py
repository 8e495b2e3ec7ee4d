"""Parquet and Delta tables in an object store, and secrets that are never shown."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream as ss
from semistream.master import Master, from_locator
from semistream.master.parquet import master as parquet
from semistream.master.storage import files
from semistream.spark.task.enrich import Step
from semistream.testing import assert_same_rows, check_join, check_master
from tests.helpers.error_text import everything
from tests.helpers.s3_server import KEY, SECRET, Bucket
from tests.helpers.sample_data import products


def put(table: pa.Table, bucket: Bucket, path: str, **options) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    bucket.files().pipe_file(f"{bucket.name}/{path}", sink.getvalue().to_pybytes())


def check(master: Master, table: pa.Table) -> ss.MasterInfo:
    info = check_master(master, table, "id")
    rng = random.Random(1)
    stream = pa.table({"id": pa.array([rng.randrange(100) for _ in range(50)]), "n": range(50)})
    check_join(master, stream, on="id", how="left", algorithm="meshjoin", table=table)
    assert from_locator(pickle.loads(pickle.dumps(master.locator()))).describe() == info
    return info


def test_a_folder_of_parquet(bucket) -> None:
    table = products(range(60))
    for i in range(3):
        put(table.slice(20 * i, 20), bucket, f"a/b/p={i}/part-{i}.parquet")
    put(table, bucket, "a/b/_temporary/part.parquet")
    bucket.files().pipe_file(f"{bucket.name}/a/b/_SUCCESS", b"")
    master = ss.open_master(f"{bucket.url}/a/b/", "id", storage_options=bucket.options)
    parts = pa.array([i // 20 for i in range(60)], pa.int32())
    assert check(master, table.append_column("p", parts)).indexed
    one = f"{bucket.url}/a/b/p=1/part-1.parquet"
    check(ss.open_master(one, "id", storage_options=bucket.options), table.slice(20, 20))


def test_following_and_replaced_objects(bucket) -> None:
    put(products(range(20)), bucket, "t/a.parquet", row_group_size=5)
    first = ss.open_master(f"{bucket.url}/t", "id", storage_options=bucket.options)
    assert first.newest() is first
    put(products(range(20, 30)), bucket, "t/b.parquet")
    second = first.newest()
    both = pa.concat_tables([products(range(20)), products(range(20, 30))])
    assert_same_rows(list(second.batches()), both, "with the new file")
    assert second.newest() is second
    list(second.batches())  # the files are open now
    put(products(range(100, 120)), bucket, "t/a.parquet", row_group_size=5)
    said = r"s3://.*a\.parquet was replaced"
    for master in (first, second):
        with pytest.raises(ss.MasterError, match=said):
            list(master.batches())
    with pytest.raises(ss.MasterError, match=r"a\.parquet is not the file with which"):
        from_locator(second.locator())
    bucket.files().rm_file(f"{bucket.name}/t/b.parquet")
    with pytest.raises(ss.MasterError, match=r"b\.parquet does not exist"):
        second.scan(second.describe().pages - 1, 1, ["id"])


def test_an_object_replaced_while_it_is_read(bucket, monkeypatch) -> None:
    """Large objects are read part by part, each part on the condition that nothing has changed."""
    monkeypatch.setattr(files.RemoteFiles, "buffer_bytes", 1_000)
    monkeypatch.setattr(parquet, "PAGE_BYTES", 4_000)
    numbers = pa.array([(i * 7919) % 100_003 for i in range(20_000)])
    table = pa.table({"id": range(20_000), "n": numbers})
    layout = {"use_dictionary": False, "compression": "none", "data_page_size": 2_000}
    put(table, bucket, "m.parquet", **layout)
    master = ss.open_master(f"{bucket.url}/m.parquet", "id", storage_options=bucket.options)
    pages = [master.table(master.scan(i, 1, ["id", "n"])) for i in range(3)]
    assert pa.concat_tables(pages).equals(table.slice(0, sum(len(p) for p in pages)))
    put(table.slice(1), bucket, "m.parquet", **layout)
    rest = (master.scan(i, 1, ["id", "n"]) for i in range(3, master.describe().pages))
    with pytest.raises(ss.MasterError, match=r"m\.parquet was replaced"):
        list(rest)


def test_a_delta_table(bucket) -> None:
    url = f"{bucket.url}/delta/t"
    table = products(range(40))
    for at in (0, 20):
        options = bucket.delta_options
        write_deltalake(url, table.slice(at, 20), mode="append", storage_options=options)
    master = ss.open_master(url, "id", storage_options=bucket.options)
    assert check(master, table).version == 1
    old = ss.open_master(url, "id", version=0, storage_options=bucket.options)
    assert_same_rows(list(old.batches()), table.slice(0, 20), "version 0")
    DeltaTable(url, storage_options=bucket.delta_options).delete("id >= 30")
    newer = master.newest()
    assert_same_rows(list(newer.batches()), table.slice(0, 30), "version 2")
    assert len(newer.changed_since(master)) == 20
    with pytest.raises(ss.MasterError, match="version 7 of the Delta table s3://"):
        ss.open_master(url, "id", version=7, storage_options=bucket.options)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_secrets_are_never_shown(kind, bucket) -> None:
    url = f"{bucket.url}/t"
    if kind == "delta":
        write_deltalake(url, products(range(9)), storage_options=bucket.delta_options)
    else:
        put(products(range(9)), bucket, "t/a.parquet")
    master = ss.open_master(url, "id", storage_options=bucket.options)
    locator = master.locator()
    task = Step(locator, [("id", "id")], "inner", None, None, 1, "auto", pa.schema([]))
    shown = [repr(master), repr(locator), str(locator), f"{locator['options']}", repr(task)]
    shown += [repr(master.describe()), repr(locator["options"])]
    objects = bucket.files()
    for path in objects.find(f"{bucket.name}/t"):
        objects.rm_file(path)
    for call in (lambda: list(master.batches()), lambda: from_locator(locator), master.newest):
        with pytest.raises(ss.MasterError) as caught:
            call()
        shown += everything(caught.value)
    text = "\n".join(shown)
    assert "options" in text
    assert KEY not in text
    assert SECRET not in text


def test_errors_of_libraries_are_cleaned() -> None:
    options = files.StorageOptions(
        key=KEY, secret=SECRET, client_kwargs={"token": "long-token"}, n=1, s="s3"
    )
    said = options.hide(f"no {SECRET} and {KEY}, long-token of s3")
    assert said == "no *** and ***, *** of s3"


def test_what_is_not_there(bucket) -> None:
    for url in (f"{bucket.url}/nothing", "s3://no-such-bucket-at-all/t"):
        with pytest.raises(ss.MasterError, match="s3://"):
            ss.open_master(url, "id", storage_options=bucket.options)
    with pytest.raises(ss.SpecError, match="storage_options"):
        ss.open_master("/some/where", "id", storage_options=bucket.options)


@pytest.mark.parametrize(
    ("package", "source", "extra"),
    [("s3fs", "s3://b/t", "s3"), ("fsspec", "s3://b/t", "s3"), ("deltalake", "t", "delta")],
)
def test_missing_packages_are_named(package, source, extra, tmp_path) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    code = f"""
import sys
sys.modules[{package!r}] = None
import semistream as ss
try:
    ss.open_master({source!r}, "id")
except ss.MasterError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(ss.__file__).parent.parent)},
    )  # fmt: skip
    assert f"semistream[{extra}]" in done.stdout, done.stderr
