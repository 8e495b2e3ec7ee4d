"""A writer dies at any step, or the machine loses its power: the store is what it was, or what it
was to become, and the next writer removes what was left. See tests/helpers/crash_child.py."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.helpers.crash_child import OPERATIONS
from tests.helpers.paths import ROOT, program


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[dict, str]:
    """One process for all: it takes longer to start it than to kill a writer."""
    folder = tmp_path_factory.mktemp("crash")
    command = [*program("crash_child"), "|".join(OPERATIONS), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(f["operation"], f["power"]): f for f in found}, done.stderr


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_old_or_new_and_then_clean(operation, power, results) -> None:
    found, errors = results
    assert (operation, power) in found, errors
    seen = found[operation, power]
    assert seen["old"] + seen["new"] == seen["steps"] + 1
    assert seen["steps"] >= (8 if operation == "expire" else 15)
    assert seen["new"] >= 1 or operation == "expire"
