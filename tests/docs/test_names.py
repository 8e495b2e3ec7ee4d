"""Names in the documents are names in the code.

What counts as a name, in backticks and outside of code blocks (those are run by other tests):

    path      `join/engine.py`, `docs/`        a file or folder of the project or of the package
    dotted    `front.cache`, `Segments.admit`  a module of the package, or what is in it
    word      `Split`, `MOST_KEPT`, `drain()`  with a capital, an underscore, a call or a `=`: what
                                               the code defines, or a key of its files

Of a call only what is before its brackets is looked at. Commands, expressions and plain words such
as `sweep` are not looked at.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import semistream

PACKAGE = Path(semistream.__file__).parent
ROOT = PACKAGE.parent.parent
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "DECISIONS", "README")),
    *sorted(ROOT.glob("docs/*.md")),
]
FOLDERS = ("benchmarks", "examples", "experiments", "scripts", "src", "tests")

# What the documents call an object, and its class.
OBJECTS = {
    "join": "SemiStreamJoin",
    "master": "Master",
    "seconds": "Seconds",
    "stats": "Stats",
    "store": "Store",
}
# Names that are not ours.
# fmt: off
FOREIGN = {
    # Spark, Delta, Parquet
    "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION", "LogicalRDD", "NoSuchMethodError",
    "StructType", "UTF8_LCASE", "VACUUM", "addBatch", "awaitTermination",
    "dropDuplicatesWithinWatermark", "foreachBatch", "localCheckpoint", "lower", "mapInArrow",
    "partitionBy", "persist", "write_deltalake", "__HIVE_DEFAULT_PARTITION__", "_delta_log",
    # Arrow, SQL, drivers of databases
    "Table", "large_string", "validate", "OFFSET", "array_agg", "char", "decimal", "numeric",
    "pool_mode", "statement_timeout", "tinyint", "utf8mb4_general_ci", "connect_timeout",
    "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity", "sslmode", "MYSQL_PWD",
    "PGPASSWORD",
    # Numba, fsspec, Python, the shell, examples
    "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "XDG_CACHE_HOME", "HYPOTHESIS_PROFILE", "ARGS",
    "client_kwargs", "endpoint_url", "__context__", "bench-out/", "NaN", "X", "QUERY/NAME",
}
# fmt: on
FOREIGN_DOTTED = re.compile(
    r"(DataFrame|SparkContext|df|readStream|stream|function)\."
    r"|spark\.(archives|authenticate|deploy|executor|executorEnv|network|sparkContext|sql|streams)\b"
    r"|spark\.task\.maxFailures"
)


# --- the names of the code ----------------------------------------------------------------------


@dataclass
class Class:
    bases: list[str]
    names: set[str] = field(default_factory=set)


@dataclass
class Code:
    defined: set[str] = field(default_factory=set)  # functions, classes, arguments, variables
    texts: set[str] = field(default_factory=set)  # the package's strings: keys of its files
    imported: set[str] = field(default_factory=set)  # packages of others
    modules: dict[str, set[str]] = field(default_factory=dict)  # "front.cache": names at its top
    classes: dict[str, Class] = field(default_factory=dict)

    def members(self, name: str) -> set[str]:
        found = self.classes.get(name)
        if found is None:
            return set()
        return found.names.union(*(self.members(base) for base in found.bases if base != name))


@cache
def the_code() -> Code:
    code = Code()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                code.defined.update(_defined(node))
                if isinstance(node, ast.Import):
                    code.imported.update(alias.name.split(".")[0] for alias in node.names)
            if folder == "src":
                _add_module(code, path, tree)
    return code


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _add_module(code: Code, path: Path, tree: ast.Module) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    top = code.modules.setdefault(name, set())
    for node in tree.body:
        top.update(name for inner in _outside_functions(node) for name in _defined(inner))
        if isinstance(node, ast.ImportFrom):
            top.update(alias.asname or alias.name for alias in node.names)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {ast.get_docstring(n, False) for n in ast.walk(tree) if isinstance(n, documented)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            code.texts.update({node.value} - docstrings)
        elif isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            known = code.classes.setdefault(node.name, Class([]))
            known.bases += bases
            known.names.update(
                name for inner in ast.walk(node) if inner is not node for name in _defined(inner)
            )


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        for inner in ast.iter_child_nodes(node):
            yield from _outside_functions(inner)


# --- the names of a document --------------------------------------------------------------------

SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BLOCK = re.compile(r"^ *```.*?^ *```$|^<!--.*?-->$", re.M | re.S)
PATH = re.compile(r"(?=.*/|.*\.(py|md|toml|txt)$)[A-Za-z_][\w.-]*(/[\w.-]+)*/?")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
WORD = re.compile(r"_*[A-Z]\w*|\w*_\w*")


def names_in(text: str) -> Iterator[str]:
    """Paths, dotted names and words that must be in the code."""
    for span in SPAN.findall(BLOCK.sub("", text)):
        head = re.match(r"\$?([\w./-]+)(?= ?=(?!=)|\(|: |$)", span)
        if head is None or head[1] in FOREIGN or FOREIGN_DOTTED.match(head[1]):
            continue
        name, follows = head[1], span[head.end() :].lstrip()[:1]
        if any(kind.fullmatch(name) for kind in (PATH, DOTTED, WORD)) or (
            follows in ("(", "=") and name.isidentifier()
        ):
            yield name


def is_true(name: str) -> bool:
    code = the_code()
    if PATH.fullmatch(name):
        return _is_a_path(name)
    if "." in name:
        return name in code.texts or _resolves(name.removeprefix("ss.").split("."))
    return name in code.defined | code.texts | set(dir(builtins)) | code.imported


def _is_a_path(name: str) -> bool:
    if (ROOT / name).exists() or (PACKAGE / name).exists():
        return True
    if "/" in name:
        return name.rstrip("/") in the_code().texts
    return any(next((ROOT / folder).rglob(name), None) is not None for folder in FOLDERS)


def _resolves(parts: list[str]) -> bool:
    code = the_code()
    if parts[0] == "semistream":
        parts = parts[1:]
        if not parts:
            return True
    elif parts[0] in code.imported:
        return True  # `json.dumps`: not ours
    for end in range(len(parts), -1, -1):
        prefix, rest = ".".join(parts[:end]), parts[end:]
        for module, names in code.modules.items():
            here = module == prefix or (prefix and module.endswith(f".{prefix}"))
            if here and (not rest or (rest[0] in names and _is_member(rest))):
                return True
    known = OBJECTS.get(parts[0], parts[0])
    return known in code.classes and _is_member([known, *parts[1:]])


def _is_member(parts: list[str]) -> bool:
    """`Class.name`, or one name that was found already."""
    return len(parts) == 1 or (len(parts) > 1 and parts[1] in the_code().members(parts[0]))


def stale(text: str) -> list[str]:
    return sorted({name for name in names_in(text) if not is_true(name)})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_backticks_are_in_the_code(path: Path) -> None:
    assert stale(path.read_text()) == []


def _files_in(path: Path, text: str) -> Iterator[str]:
    """Modules that the text of a module names, `segments.py` or `kernels/table.py`, and that are
    neither beside it, nor in a package around it, nor in a package of the whole."""
    for name in re.findall(r"[\w/]+\.py\b", text):
        if not any((folder / name).exists() for folder in path.parents if ROOT in folder.parents):
            yield name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.name))
def test_modules_that_modules_name_are_there(path: Path) -> None:
    assert list(_files_in(path, path.read_text())) == []


# --- the packages in ARCHITECTURE ---------------------------------------------------------------


def package_rows(text: str) -> dict[str, tuple[str, list[str]]]:
    """What the table of packages says each is for, and the names of its face."""
    rows = re.findall(r"^\| `([a-z/]+)/` \| (.*?) \| (.*) \|$", text, re.M)
    return {name: (contract, re.findall(r"`(\w+)`", face)) for name, contract, face in rows}


def test_every_package_is_in_the_table_with_its_contract() -> None:
    """The first sentence of its docstring."""
    rows = package_rows((ROOT / "ARCHITECTURE.md").read_text())
    said = {name: contract for name, (contract, _) in rows.items()}
    contracts = {}
    for package in PACKAGES:
        words = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        first = " ".join(words.split("\n\n")[0].split())
        contracts[package.relative_to(PACKAGE).as_posix()] = re.split(r"(?<=\.) ", first)[0]
    assert said == contracts


def test_what_the_table_shows_of_a_package_is_in_its_face() -> None:
    modules = the_code().modules
    for name, (_, shown) in package_rows((ROOT / "ARCHITECTURE.md").read_text()).items():
        package = name.replace("/", ".")
        inside = {one for one in shown if f"{package}.{one}" in modules}
        assert set(shown) - inside <= modules[package], name


# --- DECISIONS ----------------------------------------------------------------------------------


def too_long(text: str) -> list[str]:
    """Entries of more than eight lines."""
    entries = [one.partition("\n") for one in re.split(r"^### |^## .*\n", text, flags=re.M)[1:]]
    return [title for title, _, words in entries if len(words.strip().splitlines()) > 8]


def test_decisions_are_short() -> None:
    assert too_long((ROOT / "DECISIONS.md").read_text()) == []


# --- and these tests can fail -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "join/motor.py",
        "src/semistream/plan.py",
        "keygroups.py",
        "docs/gone.md",
        "no_such_folder/",
        "front.keygroups",
        "front.cache.NoSuchClass",
        "Segments.adopt",
        "Segments.adopt(codes)",
        "join.no_such_verb()",
        "semistream.sketch",
        "semistream.model.zipf",
        "spark.worker.EnrichTask",
        "ss.NoSuchName",
        "MOST_PIECE_ROWS_EVER",
        "NoSuchClass",
        "no_such_argument=5",
        "nosuchargument=True",
        "nosuchcall()",
        "NoSuchError: a message",
    ],
)
def test_a_stale_name_is_found(name: str) -> None:
    assert stale(f"Some words, `{name}` and more.") == [re.split(r"[(=:]", name)[0]]


@pytest.mark.parametrize(
    "name",
    [
        "join/engine.py",
        "src/semistream/front/",
        "engine.py",
        "front.cache",
        "semistream.planning.laws.zipf",
        "Segments.admit",
        "ExpiringGroups.probe",  # of its base class
        "join.stats.rows_in",
        "join.drain()",
        "ss.Params(sketch=False)",
        "MOST_PIECE_ROWS",
        "frame_crc",  # a key of a file
        "SEMISTREAM_HOT_KEYS=off",
    ],
)
def test_a_true_name_is_none(name: str) -> None:
    assert list(names_in(f"`{name}`"))
    assert stale(f"`{name}`") == []


def test_a_module_that_is_gone_is_found() -> None:
    here = PACKAGE / "front" / "cache.py"
    assert list(_files_in(here, "segments.py kernels/table.py join/engine.py")) == []
    assert list(_files_in(here, "engine.py keygroups.py")) == ["engine.py", "keygroups.py"]


def test_the_table_of_packages_is_read() -> None:
    text = (
        "| `front/` | Hot rows. | `Front`, `Hits` |\n| `join/shed/` | Load. | ours |\n| x | y | z |"
    )
    assert package_rows(text) == {
        "front": ("Hot rows.", ["Front", "Hits"]),
        "join/shed": ("Load.", []),
    }


def test_a_long_decision_is_found() -> None:
    text = "# Decisions\n\n## `front/`\n\n### Short\n" + 8 * "why\n" + "\n### Long\n" + 9 * "why\n"
    assert too_long(text) == ["Long"]


def test_code_blocks_and_plain_words_are_left_alone() -> None:
    assert list(names_in("`sweep`\n```\n`gone.py`\n```\n`raise ... from None` `x == NoSuch`")) == []


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_name_of_others_is_mentioned(name: str) -> None:
    """The list has no word that no document needs."""
    assert any(
        f"`{name}" in path.read_text() or f"${name}" in path.read_text() for path in DOCUMENTS
    )
