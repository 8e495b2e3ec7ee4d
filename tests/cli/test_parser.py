"""What the command line understands, teaches and refuses, and its progress line."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from semistream import cli
from semistream.cli import files
from semistream.cli.commands import pairs
from semistream.cli.progress import Progress
from semistream.errors import SpecError

IDS = list(range(1_000))
PRODUCTS = pa.table({"product_id": IDS, "name": [f"product {i}" for i in IDS], "price": IDS})
SALES = pa.table({"sale_id": IDS, "product_id": IDS})

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """semistream WORDS in a folder with two tables -> exit code, standard output, error."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(PRODUCTS, "products.parquet")
    pq.write_table(SALES, "sales.parquet")

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main(list(words))
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def store(run: Run) -> str:
    assert run("build", "products.parquet", "products", "--key", "product_id")[0] == 0
    return "products"


# --- understood and taught ------------------------------------------------------------------------


def test_pairs_of_columns() -> None:
    assert pairs(["a", "cust = customer_id,b"]) == {"a": "a", "cust": "customer_id", "b": "b"}
    with pytest.raises(SpecError, match="no column"):
        pairs([","])


@pytest.mark.parametrize("words", ["", "fly", "build", "enrich a b", "demo --products many"])
def test_what_is_not_understood_is_usage(run: Run, words: str) -> None:
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("usage: semistream")


def test_version(run: Run) -> None:
    assert run("--version")[:2] == (0, "semistream 0.1.0\n")


@pytest.mark.parametrize("command", ["", "demo", "build", "enrich", "verify", "inspect", "receive"])
def test_help_teaches(run: Run, command: str) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert "examples:\n  semistream " in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_examples_in_the_help_work(run: Run) -> None:
    prices = pa.table({"country": ["de", "fr"], "product_id": [1, 1], "price": [1.0, 1.1]})
    pacsv.write_csv(prices, "prices.csv")
    some = pq.read_table("products.parquet").slice(0, 5)
    for name in ("changes", "new"):
        pq.write_table(some, f"{name}.parquet")
    pacsv.write_csv(some.select(["product_id"]), "gone.csv")
    changes = ("verify", "upsert", "append", "delete", "compact", "expire")
    for command in ("build", "enrich", *changes, "inspect"):
        text = run(command, "--help")[1].split("examples:\n")[1].replace("\\\n", " ")
        lines = [shlex.split(line)[1:] for line in text.splitlines() if line.strip()]
        assert len(lines) >= 2
        for words in lines:
            assert run(*words)[0] == 0, words


def test_progress_is_a_line_a_second_away_from_a_terminal() -> None:
    now, out = [0.0], io.StringIO()
    progress = Progress("joined", total=200, show=True, out=out, clock=lambda: now[0])
    for second in (0.5, 1.0, 1.5, 2.0):
        now[0] = second
        progress(round(100 * second))
    progress.close()
    assert (
        out.getvalue()
        == "joined: 100 rows (50%), 100 rows/s\njoined: 200 rows (100%), 100 rows/s\n"
    )


def test_progress_rewrites_its_line_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now, out = [0.0], Terminal()
    with Progress("verified", "pages", out=out, clock=lambda: now[0]) as progress:
        for second in (1.0, 2.0):
            now[0] = second
            progress(10)
    lines = out.getvalue().split("\r")
    assert lines[1:3] == ["verified: 10 pages, 10 pages/s", "verified: 10 pages, 5 pages/s "]
    assert lines[-1] == ""


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing.parquet out.parquet --on product_id", "nothing.parquet does not exist"),
        ("sales.parquet out.txt --on product_id", "must end in one of .parquet"),
        ("sales.parquet gone/out.parquet --on product_id", "the folder gone does not exist"),
        ("sales.parquet out.parquet --on sale", "'sale'"),
        ("sales.parquet out.parquet --on product_id,product_id", "'product_id' twice"),
        ("sales.parquet out.parquet --on product_id --how outer", "how='outer'"),
        ("sales.parquet out.parquet --on product_id --columns colour", "'colour'"),
        ("sales.parquet out.parquet --on product_id --memory 1kB", "is too small"),
        ("sales.parquet out.parquet --on product_id --memory lots", "memory='lots'"),
        ("sales.parquet out.parquet --on product_id --algorithm quick", "auto, sweepjoin"),
        ("text.parquet out.parquet --on product_id", "text.parquet is neither Parquet nor Arrow"),
        ("empty out.parquet --on product_id", "empty holds no Parquet files"),
        ("mixed out.parquet --on product_id", "has other columns than"),
        ("by out.parquet --on product_id", "by is partitioned"),
    ],
)
def test_enrich_errors_are_messages_and_leave_nothing(
    run: Run, store: str, words: str, message: str
) -> None:
    Path("text.parquet").write_text("not a table")
    Path("empty").mkdir()
    Path("mixed").mkdir()
    pq.write_table(SALES, "mixed/a.parquet")
    pq.write_table(PRODUCTS, "mixed/b.parquet")
    Path("by/shop=1").mkdir(parents=True)
    pq.write_table(SALES, "by/shop=1/a.parquet")
    before = sorted(Path().iterdir())
    code, out, err = run("enrich", *words.split(), "--master", store)
    assert (code, out) == (1, "")
    assert err.startswith("semistream: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_a_failure_in_the_middle_leaves_no_output(run: Run, store: str) -> None:
    shard = next(Path(store).rglob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    words = ("--master", store, "--on", "product_id")
    code, _, err = run("enrich", "sales.parquet", "out.parquet", *words)
    assert code == 1
    assert "is damaged" in err
    assert not list(Path().glob("*out.parquet*"))


def test_damaged_input_leaves_no_output(run: Run, store: str) -> None:
    feather.write_feather(SALES, "sales.feather", compression="lz4", chunksize=200)
    content = bytearray(Path("sales.feather").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    Path("sales.feather").write_bytes(content)
    words = ("--master", store, "--on", "product_id", "--json")
    code, out, err = run("enrich", "sales.feather", "out.parquet", *words)
    assert (code, err) == (1, "")
    assert "sales.feather cannot be read" in json.loads(out)["error"]
    assert not list(Path().glob("*out.parquet*"))


def test_interrupted(run: Run, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.Sink, "write", stop)
    words = ("--master", store, "--on", "product_id")
    code, out, err = run("enrich", "sales.parquet", "out.parquet", *words)
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert not list(Path().glob("*out.parquet*"))
