"""The benchmarks' commands: what holds for all of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
HANDS_OVER = ("in_fresh_process", "map", "submit")  # calls: another process runs the first argument
PROGRAMS = sorted(FOLDER.glob("*/__main__.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.parent.name)
def test_other_processes_run_nothing_of_a_packages_main(program: Path) -> None:
    """A process that Python starts anew does not import a package's `__main__`."""
    assert not _handed_over(program.read_text()) & _defined(program.read_text())


def test_there_are_packages_that_hand_over_work() -> None:
    """Else the test above would look at nothing."""
    found = {path.parent.name: _handed_over(path.read_text()) for path in PROGRAMS}
    assert found["core"] == {"run"}
    assert found["prediction"] == {"run", "calibrate"}


def test_work_of_the_main_module_is_noticed() -> None:
    source = "def work(n): ...\n\nin_fresh_process(work, 1)\n"
    assert _handed_over(source) & _defined(source) == {"work"}


def _defined(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _handed_over(source: str) -> set[str]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    first = [call.args[0] for call in calls if call.args and _name(call.func) in HANDS_OVER]
    return {node.id for node in first if isinstance(node, ast.Name) and node.id != "str"}


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
