"""Stores that someone has crafted, with checksums that fit: refused, or the rows that are there.
Never a crash, and never an error of others. See tests/helpers/crafted_child.py."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter

from tests.helpers.crafted_child import CHANGES
from tests.helpers.paths import ROOT, program

SEEDS = int(os.environ.get("CRAFTED_STORES", "150"))  # more: a minute for some thousand


def test_crafted_stores_are_refused_or_right(tmp_path) -> None:
    command = [*program("crafted_child"), str(tmp_path), "0", str(SEEDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SEEDS + 120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    tried = {line["seed"]: line for line in lines if "did" in line}
    results = {line["seed"]: line for line in lines if "result" in line}
    died = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
    assert done.returncode == 0, f"{died} after {tried.get(max(tried, default=0))}"
    assert sorted(results) == list(range(SEEDS))
    wrong = [
        (tried[seed], line["result"])
        for seed, line in results.items()
        if line["result"] not in ("refused", "not sound", "sound")
    ]
    assert wrong == []
    kinds = {line["kind"] for line in results.values()}
    assert kinds == {change.__name__ for change in CHANGES}
    said = Counter(line["result"] for line in results.values())
    assert said["refused"] > SEEDS // 2 > said["sound"] > 0
