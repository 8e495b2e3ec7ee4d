"""The documents: Python runs, commands work, links lead somewhere, tables say what the code says.

Blocks of one document run in order, in one namespace and one fresh folder, which stands for /data;
private servers stand for the databases.
A `text` block right after a Python block is what that block prints. `<!-- setup ... -->` is Python
that the reader need not see. In `console` blocks the lines with `$ semistream` go through the
command line.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream import errors
from semistream.cli import main
from tests.helpers import database_servers
from tests.helpers.paths import ROOT, TESTS

EVERY = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
RUN = [path for path in EVERY if path.parent.name == "docs" or path == ROOT / "README.md"]
PACKAGE = Path(ss.__file__).parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$|^<!-- (setup)\n(.*?)^-->$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
SALES, UNKNOWN = 500, 10
# Databases that documents speak of, and the fixture of a private server that stands for each.
PLACES = {
    "postgresql://reader:secret@db.example:5432/shop": "postgresql",
    "mysql://reader:secret@db.example:3306/shop": "mariadb",
}


# --- reading a document -------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int  # in the document, of the block's first line
    output: str | None = None  # what it must print, if the document says so


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        kind, body = match[1] or match[3] or "", match[2] or match[4] or ""
        follows = not text[end : match.start()].strip()
        if kind == "text" and follows and found and found[-1].kind == "python":
            found[-1] = Block("python", found[-1].text, found[-1].line, body)
        else:
            found.append(Block(kind, body, text.count("\n", 0, match.start()) + 2))
        end = match.end()
    return found


def commands(block: Block) -> Iterator[list[str]]:
    """The words of every `semistream` command in a console block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True) if line[:2] == "$ " else []
        if words[:1] == ["semistream"]:
            yield words[1:]


def run(text: str, name: str, folder: Path) -> int:
    """Execute a document; returns how many blocks and commands ran."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done = 0
    for block in blocks(text.replace("/data", str(folder))):
        if block.kind in ("python", "setup"):
            printed = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, name, "exec")  # true line numbers
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            if block.output is not None:
                assert printed.getvalue() == block.output, f"output of {name}, line {block.line}"
            done += 1
        elif block.kind == "console":
            for words in commands(block):
                assert main(words) == 0, f"{name}, line {block.line}: {shlex.join(words)}"
                done += 1
    return done


# --- running them -------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the documents take for granted: 1000 products and some sales, a few of other things."""
    monkeypatch.chdir(tmp_path)
    ids = pa.array(range(1000), pa.int64())
    names = pa.array([f"product {i}" for i in range(1000)])
    prices = pa.array([i / 4 for i in range(1000)])
    products = pa.table({"product_id": ids, "name": names, "price": prices})
    pq.write_table(products, tmp_path / "products.parquet")
    (tmp_path / "sales").mkdir()
    sold = [*(7 * i % 1000 for i in range(SALES - UNKNOWN)), *range(1000, 1000 + UNKNOWN)]
    for part in range(2):
        some = pa.array(sold[part::2], pa.int64())
        quantity = pa.array([1 + i % 5 for i in range(len(some))], pa.int32())
        sales = pa.table({"product_id": some, "quantity": quantity})
        pq.write_table(sales, tmp_path / "sales" / f"part-{part}.parquet")
    return tmp_path


def on_private_servers(text: str, data: Path, request: pytest.FixtureRequest) -> str:
    """The text with the addresses of private servers that have the products."""
    for place, fixture in PLACES.items():
        if place in text:
            server = request.getfixturevalue(fixture)
            products = pq.read_table(data / "products.parquet")
            database_servers.load(server, products, ["product_id"], "primary", "products")
            kind = "timestamp" if fixture == "postgresql" else "datetime(6)"
            database_servers.execute(server, f"ALTER TABLE products ADD changed_at {kind}")
            text = text.replace(place, server.url())
    return text


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_blocks_run(
    path: Path, data: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = on_private_servers(path.read_text(), data, request)
    if "SparkSession" in text:
        request.getfixturevalue("spark")  # what getOrCreate() in the document will find
    if "s3://bucket" in text:
        bucket = request.getfixturevalue("bucket")
        text = text.replace("s3://bucket", bucket.url)
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
    without = ("api.md", "measurement.md", "reproduction.md")  # which have no blocks to run
    assert run(text, str(path), data) or path.name in without
    if path.name == "README.md":
        warehouse = pq.read_table(data / "warehouse")
        assert warehouse.column_names == ["product_id", "quantity", "name", "price"]
        assert warehouse.num_rows == SALES - UNKNOWN
        assert pq.read_table(data / "enriched.parquet").num_rows == SALES


def _modules_with_examples() -> list[str]:
    found = [p for p in PACKAGE.rglob("*.py") if ">>> " in p.read_text()]
    return sorted(".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in found)


@pytest.mark.parametrize("name", _modules_with_examples())
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert result.attempted
    assert not result.failed


def test_the_main_class_has_an_example() -> None:
    assert "semistream.join.join" in _modules_with_examples()


# --- links and words ----------------------------------------------------------------------------


def broken_links(text: str, folder: Path) -> list[str]:
    """Links to files that are not there and to headings that do not exist."""
    missing = []
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for target in LINK.findall(prose):
        place, _, heading = target.partition("#")
        if re.match(r"[a-z]+:", place):
            continue
        path = folder / place
        there = not place or path.exists()
        if there and heading:
            there = heading in headings(path.read_text() if place else text)
        if not there:
            missing.append(target)
    return missing


def headings(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path.read_text(), path.parent) == []


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_nothing_is_left_to_fill_in(path: Path) -> None:
    assert "PLACEHOLDER" not in path.read_text()


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_names_exist(path: Path) -> None:
    """`ss.something`, `make something`, files of the project and tests that are named."""
    text = path.read_text()
    assert {n for n in re.findall(r"\bss\.([A-Za-z]\w*)", text) if not hasattr(ss, n)} == set()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.M)) <= targets
    named = re.findall(r"`((?:src|tests|benchmarks|scripts)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    tests = "".join(p.read_text() for p in TESTS.rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    assert [name for name in named if f"def {name}(" not in tests] == []


# --- what the code says, the documents say ------------------------------------------------------


def test_the_reference_is_what_the_docstrings_say() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "write_api.py"))["write"]()
    assert (ROOT / "docs" / "api.md").read_text() == written, "run scripts/write_api.py"


def _readme_rows() -> list[list[str]]:
    lines = (ROOT / "README.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def test_every_algorithm_is_in_the_readme() -> None:
    shown = [row for row in _readme_rows() if row[0].strip("`") in ss.ALGORITHMS]
    assert shown == [[f"`{a.name}`", a.help, a.needs] for a in ss.ALGORITHMS.values()]


def test_every_algorithm_and_knob_is_explained() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    names = [*ss.ALGORITHMS, *(field.name for field in fields(ss.Params))]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_error_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    classes = inspect.getmembers(errors, inspect.isclass)
    own = [name for name, c in classes if c.__module__ == errors.__name__]
    assert [name for name in own if f"`{name}`" not in text] == []


def test_limitations_come_before_installation() -> None:
    text = (ROOT / "README.md").read_text()
    assert 0 < text.index("## Limitations") < text.index("## Installation")


# --- and these tests can fail -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nraise LookupError('here')\n```\n", LookupError),
        ("<!-- setup\nx = 1\n-->\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```python\nprint('a')\n```\n\n```text\nb\n```\n", AssertionError),
        ("```console\n$ semistream verify /data/nothing\n```\n", AssertionError),
        ("```console\n$ semistream no-such-command\n```\n", AssertionError),
    ],
)
def test_a_wrong_document_fails(text: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        run(text, "wrong.md", tmp_path)


def test_a_failure_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("# title\n\n```python\nx = 0\n1 / x\n```\n", "wrong.md", tmp_path)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == ("wrong.md", 5)


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, or two\n")
    text = "[a](there.md) [b](there.md#a-heading-or-two) [c](gone.md) [d](there.md#gone) [e](#gone)"
    assert broken_links(text, tmp_path) == ["gone.md", "there.md#gone", "#gone"]
