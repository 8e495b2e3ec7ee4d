"""The commands that change a store, from their words to the rows that are there afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from semistream import Store, cli
from semistream.cli import store as store_commands
from tests.cli.test_commands import PRODUCTS, Run, rows_of, run, store

__all__ = ["run", "store"]


def write_changes() -> None:
    changed = pa.table({"product_id": [3, 5_000], "name": ["three", "new"], "price": [1.5, 2.5]})
    pq.write_table(changed, "changes.parquet")
    pacsv.write_csv(pa.table({"product_id": [1, 2, 77_777], "why": ["x", "y", "z"]}), "gone.csv")


def test_upsert_delete_append_compact_expire(run: Run, store: str) -> None:
    write_changes()
    code, out, err = run("upsert", "changes.parquet", store)
    assert (code, err) == (0, "")
    assert "version 2, 2,001 rows (+1)" in out
    code, out, _ = run("delete", "gone.csv", store, "--json")
    data = json.loads(out)
    assert (code, data["version"], data["rows"], data["rows_before"]) == (0, 3, 1_999, 2_001)
    assert run("append", "changes.parquet", store)[0] == 0
    assert Store.open(store).manifest.rows == 2_001
    assert "one run of 2,001 rows" in run("compact", store)[1]
    assert "one run already" in run("compact", store)[1]
    assert run("verify", store)[0] == 0
    text = run("inspect", store)[1]
    for word in ("upsert", "delete", "append", "compact", "2,001 rows, 1 run"):
        assert word in text
    assert rows_of(pa.Table.from_batches(Store.open(store, 1).batches())) == rows_of(PRODUCTS)
    assert "no version is to go" in run("expire", store)[1]
    code, out, _ = run("expire", store, "--older-than", "0s", "--keep", "2", "--json")
    assert json.loads(out)["expired"] == [1, 2, 3]
    assert json.loads(out)["versions"] == [4, 5]
    assert run("verify", store, "--version", "4")[0] == 0


def test_unique_keys(run: Run) -> None:
    table = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    pq.write_table(table, "t.parquet")
    pq.write_table(pa.concat_tables([table, table.slice(1)]), "twice.parquet")
    code, _, err = run("build", "twice.parquet", "s", "--key", "id", "--unique")
    assert code == 1
    assert "2 keys would have more, such as id=2" in err
    code, out, _ = run("build", "t.parquet", "s", "--key", "id", "--unique")
    assert (code, "(each once)" in out) == (0, True)
    assert "such as id=1" in run("append", "t.parquet", "s")[2]
    assert run("upsert", "t.parquet", "s")[0] == 0
    assert "each at most once, in every version (unique)" in run("inspect", "s")[1]
    data = json.loads(run("inspect", "s", "--json")[1])
    assert (data["unique"], data["promises_unique"]) == (True, True)


def test_versions_that_go_by_themselves(run: Run, store: str) -> None:
    write_changes()
    assert "keeps    all versions" in run("inspect", store)[1]
    for _ in range(3):
        assert run("upsert", "changes.parquet", store)[0] == 0
    code, out, _ = run("retain", store, "--keep", "2", "--json")
    data = json.loads(out)
    assert (code, data["version"], data["expired"], data["versions"]) == (0, 5, [1, 2, 3], [4, 5])
    assert data["keep"] == {"versions": 2, "seconds": 0.0, "pins": []}
    assert run("upsert", "changes.parquet", store)[0] == 0
    assert "keeps    the last 2 versions" in run("inspect", store)[1]
    assert [v["version"] for v in json.loads(run("inspect", store, "--json")[1])["versions"]] == [
        6,
        5,
    ]
    assert "keeps all its versions from version 7 on" in run("retain", store, "--all")[1]
    assert run("build", "changes.parquet", "other", "--key", "product_id", "--keep", "1")[0] == 0
    assert Store.open("other").manifest.keep is not None
    assert run("retain", store)[0] == 2
    code, out, _ = run("retain", store, "--keep", "3", "--older-than", "2h", "--pins", ".")
    assert "less than 7200 s ago, and those that pins name in /" in run("inspect", store)[1]


def test_restore(run: Run, store: str) -> None:
    write_changes()
    assert run("upsert", "changes.parquet", store)[0] == 0
    (Path(store) / "manifests" / "00000002.json").unlink()
    code, _, err = run("inspect", store)
    assert code == 1
    assert "00000002.json is missing" in err
    code, out, _ = run("restore", store, "--version", "1")
    assert (code, "version 3 has its 2,000 rows" in out) == (0, True)
    assert rows_of(pa.Table.from_batches(Store.open(store).batches())) == rows_of(PRODUCTS)
    assert "is the newest already" in run("restore", store, "--version", "3")[1]


def test_a_csv_takes_the_types_of_the_store(run: Run) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int16()), "v": pa.array([1, 2], pa.float32())})
    pq.write_table(table, "t.parquet")
    assert run("build", "t.parquet", "s", "--key", "id")[0] == 0
    pacsv.write_csv(pa.table({"v": [7.5], "more": ["x"], "id": [2]}), "c.csv")
    assert run("upsert", "c.csv", "s")[0] == 0
    assert pa.Table.from_batches(Store.open("s").batches()).to_pylist()[1] == {"id": 2, "v": 7.5}
    pacsv.write_csv(pa.table({"v": [7.5], "id": [70_000]}), "c.csv")
    code, _, err = run("upsert", "c.csv", "s")
    assert code == 1
    assert "does not fit the store's columns" in err
    pacsv.write_csv(pa.table({"id": [2]}), "c.csv")
    assert "lacks the column 'v'" in run("append", "c.csv", "s")[2]
    assert Store.open("s").version == 2


def test_nothing_to_change_is_no_new_version(run: Run, store: str) -> None:
    pacsv.write_csv(pa.table({"product_id": [77_777]}), "gone.csv")
    code, out, _ = run("delete", "gone.csv", store)
    assert code == 0
    assert "stays at version 1" in out


def test_a_faster_writer_is_no_failure(run: Run, store: str, monkeypatch) -> None:
    """Someone publishes while the command reads its input: it begins again from there."""
    write_changes()
    read, calls = store_commands.read_rows, []

    def interrupted(path):
        calls.append(path)
        if len(calls) < 3:
            Store.open(store).upsert(PRODUCTS.slice(10 + len(calls), 1))
        return read(path)

    monkeypatch.setattr(store_commands, "read_rows", interrupted)
    code, out, _ = run("upsert", "changes.parquet", store)
    assert code == 0
    assert "version 4" in out
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("upsert", "changes.parquet", "nowhere"), "not a store"),
        (("upsert", "nowhere.parquet", "products"), "does not exist"),
        (("expire", "products", "--keep", "0"), "keep=0"),
        (("expire", "products", "--older-than", "soon"), "'soon' is not an age"),
        (("expire", "products", "--pins", "nowhere"), "does not exist"),
        (("inspect", "products", "--version", "9"), "no version 9; it has 1"),
        (("compact", "gs:///x"), "gs:///x"),
    ],
)
@pytest.mark.usefixtures("store")
def test_what_cannot_be_done_is_said(run: Run, words, said) -> None:
    write_changes()
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert said in err
    assert run(*words, "--json")[0] == 1
    assert cli.main([words[0], "--help"]) == 0
