"""The tree: what a package shows, and who may look behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import semistream
from tests.helpers.paths import TESTS

ROOT = Path(semistream.__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))
MODULES = sorted(ROOT.rglob("*.py"))
OPEN = ("rows", "kernels")  # whose modules anybody may import
BESIDE = ("benchmarks", "contract", "docs", "experiments", "helpers")  # tests of no one package


def _imports(path: Path, text: str) -> Iterator[tuple[int, Path, str]]:
    """(line, module or package as a path without suffix, name) of what it imports from us."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parent
            for _ in range(node.level - 1):
                base = base.parent
            for alias in node.names:
                yield node.lineno, base.joinpath(*(node.module or "").split(".")), alias.name


def _behind_a_face(path: Path, text: str) -> Iterator[str]:
    """Imports of modules that are neither in the own package nor in one around it."""
    for line, target, name in _imports(path, text):
        module = target / name if target.is_dir() and not _shown(target, name) else target
        if not module.with_suffix(".py").exists():
            continue
        package = module.parent
        if package in path.parents or package.relative_to(ROOT).parts[:1] in map(_only, OPEN):
            continue
        yield f"{path.relative_to(ROOT)}:{line} imports {module.relative_to(ROOT)} past its package"


def _only(name: str) -> tuple[str]:
    return (name,)


def _shown(package: Path, name: str) -> bool:
    """Whether a package's `__init__` exports it, be it a module."""
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return name in ast.literal_eval(node.value)
    return False


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_imports_below_the_face_of_a_package(path: Path) -> None:
    assert list(_behind_a_face(path, path.read_text())) == []


def test_a_look_behind_a_face_is_noticed() -> None:
    def found(line: str) -> int:
        return len(list(_behind_a_face(ROOT / "spark" / "new.py", line)))

    assert found("from ..disk.sweep import Sweep") == 1
    assert found("from ..disk import sweep") == 1
    assert found("from .task.enrich import Step") == 1
    assert found("from .. import spec\nfrom ..disk import Sweep\nfrom ..rows.keys import On") == 0
    assert found("from .frames import column\nfrom ..planning.laws import zipf") == 0


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_says_what_it_is_for(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_the_top_of_the_tree_is_short() -> None:
    shown = [p for p in ROOT.iterdir() if not p.name.startswith("_") and p.name != "py.typed"]
    assert sum(p.is_dir() for p in shown) <= 13
    assert sorted(p.name for p in shown if p.is_file()) == ["errors.py", "spec.py"]


def test_tests_have_the_folders_of_the_package() -> None:
    """Each is a package itself: files of equal names would be one module otherwise."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert [str(path) for path in folders if not (path / "__init__.py").exists()] == []
    beside = {TESTS / name for name in BESIDE}
    inside = [path.relative_to(TESTS) for path in folders if not beside & {path, *path.parents}]
    assert len(inside) > 10
    assert [str(path) for path in inside if not (ROOT / path / "__init__.py").exists()] == []


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
