"""Every command from its words to its files, in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from semistream import Store, cli

PRODUCTS = pa.table(
    {
        "product_id": np.arange(2_000),
        "name": [f"product {i}" for i in range(2_000)],
        "price": np.arange(2_000) / 4,
    }
)
_RNG = np.random.default_rng(3)
SALES = pa.table(
    {
        "sale_id": np.arange(5_000),
        "product_id": _RNG.integers(0, 2_100, 5_000),  # some are not in the master
        "quantity": _RNG.integers(1, 9, 5_000, dtype=np.int32),
    }
)
ORPHANS = int(np.count_nonzero(SALES["product_id"].to_numpy() >= 2_000))

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """semistream WORDS in a folder with a few tables -> exit code, standard output, error."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(PRODUCTS, "products.parquet")
    pq.write_table(SALES, "sales.parquet", row_group_size=700)

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main(list(words))
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def store(run: Run) -> str:
    assert run("build", "products.parquet", "products", "--key", "product_id")[0] == 0
    return "products"


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


def expected(sql: str) -> list[str]:
    with duckdb.connect() as db:
        db.register("sales", SALES)
        db.register("products", PRODUCTS)
        return rows_of(db.sql(sql).to_arrow_table())


INNER = "select * from sales join products using (product_id)"


# --- build, inspect, verify ---------------------------------------------------------------------


def test_build_says_what_it_made(run: Run) -> None:
    code, out, err = run("build", "products.parquet", "p", "--key", "product_id")
    assert (code, err) == (0, "")
    assert "2,000" in out
    assert rows_of(pa.Table.from_batches(Store.open("p").batches())) == rows_of(PRODUCTS)


def test_build_as_json(run: Run) -> None:
    code, out, _ = run("build", "products.parquet", "p", "--key", "product_id", "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["rows"], data["key"], data["unique"]) == (2_000, ["product_id"], True)
    assert Path(data["store"]) == Path("p")


def test_build_obeys_page_bytes_and_memory(run: Run) -> None:
    words = ("--key", "name,product_id", "--page-bytes", "4KiB", "--memory", "20kB", "--json")
    code, out, _ = run("build", "products.parquet", "p", *words)
    data = json.loads(out)
    assert code == 0
    assert data["pages"] > 10
    assert data["max_page_bytes"] < 3 * 4096
    assert run("verify", "p")[0] == 0


def _arrow_stream(table: pa.Table, path: str) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)


def _folder(table: pa.Table, path: str) -> None:
    Path(path, "_spark_metadata").mkdir(parents=True)
    Path(path, "_spark_metadata", "0.parquet").write_text("not a table")
    for i in range(3):
        pq.write_table(table.slice(i * 700, 700), Path(path, f"part-{i}.parquet"))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.csv", pacsv.write_csv),
        ("t.feather", feather.write_feather),
        ("t.arrows", _arrow_stream),
        ("folder", _folder),
    ],
)
def test_build_reads_other_formats(
    run: Run, name: str, write: Callable[[pa.Table, str], None]
) -> None:
    write(PRODUCTS, name)
    assert run("build", name, "p", "--key", "product_id")[0] == 0
    assert rows_of(pa.Table.from_batches(Store.open("p").batches())) == rows_of(PRODUCTS)


def test_build_keeps_an_existing_store(run: Run, store: str) -> None:
    code, out, err = run("build", "products.parquet", store, "--key", "product_id")
    assert (code, out) == (1, "")
    assert err.startswith("semistream: error: products is a store already")
    assert run("verify", store)[0] == 0


def test_inspect(run: Run, store: str) -> None:
    code, out, _ = run("inspect", store)
    assert code == 0
    assert re.search(r"price +double", out)
    data = json.loads(run("inspect", store, "--json")[1])
    assert data["columns"] == {"product_id": "int64", "name": "string", "price": "double"}


def test_verify_finds_damage(run: Run, store: str) -> None:
    assert "is sound" in run("verify", store)[1]
    assert json.loads(run("verify", store, "--json")[1])["ok"] is True
    shard = next(Path(store).rglob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    code, out, err = run("verify", store)
    assert (code, out) == (1, "")
    assert err.startswith(f"semistream: error: {shard} is damaged")
    code, out, err = run("verify", store, "--json")
    assert (code, err) == (1, "")
    assert "damaged" in json.loads(out)["error"]


# --- enrich -------------------------------------------------------------------------------------


def test_enrich_gives_what_the_oracle_gives(run: Run, store: str) -> None:
    code, out, err = run(
        "enrich", "sales.parquet", "out.parquet", "--master", store, "--on", "product_id"
    )
    assert (code, err) == (0, "")
    assert f"{ORPHANS:,} rows had no match and were left out" in out
    assert rows_of(pq.read_table("out.parquet")) == expected(INNER)


def test_enrich_as_json(run: Run, store: str) -> None:
    words = ("--master", store, "--on", "product_id", "--memory", "500kB", "--json")
    code, out, _ = run("enrich", "sales.parquet", "out.parquet", *words)
    data = json.loads(out)
    assert code == 0
    assert (data["rows_in"], data["rows_out"]) == (5_000, 5_000 - ORPHANS)
    assert data["rows_unmatched"] == ORPHANS
    assert 0 < data["peak_bytes"] <= data["budget_bytes"] == 500_000
    assert data["output_bytes"] == Path("out.parquet").stat().st_size
    assert data["seconds"] >= 0


@pytest.mark.parametrize(
    ("words", "sql"),
    [
        ("--how left", "select * from sales left join products using (product_id)"),
        ("--how left_semi", "select * from sales semi join products using (product_id)"),
        ("--how anti", "select * from sales anti join products using (product_id)"),
        ("--columns price", "select sales.*, price from sales join products using (product_id)"),
        ("--algorithm meshjoin --memory 300kB", INNER),
        ("--algorithm inlj", INNER),
    ],
)
def test_enrich_options(run: Run, store: str, words: str, sql: str) -> None:
    code, _, err = run(
        "enrich", "sales.parquet", "out.arrow", "--master", store, "--on", "product_id",
        *words.split(),
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert rows_of(pa.ipc.open_file("out.arrow").read_all()) == expected(sql)


def test_enrich_with_other_names_and_a_suffix(run: Run, store: str) -> None:
    renamed = SALES.rename_columns(["name", "bought", "quantity"])
    pq.write_table(renamed, "renamed.parquet")
    words = ("--master", store, "--on", "bought=product_id", "--suffix", "_of_product")
    assert run("enrich", "renamed.parquet", "out.parquet", *words)[0] == 0
    found = pq.read_table("out.parquet")
    assert found.column_names == ["name", "bought", "quantity", "name_of_product", "price"]
    assert found.num_rows == 5_000 - ORPHANS


def test_enrich_with_several_keys_and_a_parquet_master(run: Run) -> None:
    left = SALES.append_column("shop", pa.array(np.arange(5_000) % 3))
    right = PRODUCTS.append_column("at", pa.array(np.arange(2_000) % 3))
    pq.write_table(left, "left.parquet")
    pq.write_table(right, "right.parquet")
    words = ("--master", "right.parquet", "--on", "product_id", "--on", "shop=at")
    code, _, err = run("enrich", "left.parquet", "out.parquet", *words)
    assert (code, err) == (0, "")
    known = left.filter(pa.array(left["product_id"].to_numpy() < 2_000))
    same = np.asarray(known["product_id"]) % 3 == np.asarray(known["shop"])
    assert pq.read_table("out.parquet").num_rows == int(same.sum())


def test_enrich_of_no_rows_has_all_columns(run: Run, store: str) -> None:
    pq.write_table(SALES.slice(0, 0), "none.parquet")
    words = ("--master", store, "--on", "product_id")
    assert run("enrich", "none.parquet", "out.parquet", *words)[0] == 0
    found = pq.read_table("out.parquet")
    assert found.num_rows == 0
    assert found.column_names == ["sale_id", "product_id", "quantity", "name", "price"]


def test_enrich_overwrites_only_when_told(run: Run, store: str) -> None:
    words = ["enrich", "sales.parquet", "out.parquet", "--master", store, "--on", "product_id"]
    Path("out.parquet").write_text("precious")
    code, _, err = run(*words)
    assert code == 1
    assert "out.parquet exists" in err
    assert Path("out.parquet").read_text() == "precious"
    assert run(*words, "--overwrite")[0] == 0
    assert pq.read_table("out.parquet").num_rows == 5_000 - ORPHANS
