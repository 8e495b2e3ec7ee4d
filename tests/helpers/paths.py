"""Where things are in the repository, and how a helper runs as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
LOG_CONFIG = (TESTS / "log4j2.properties").as_uri()  # for the JVMs of Spark


def program(helper: str) -> list[str]:
    """The words that run a module of this folder. They work in ROOT only: `cwd=ROOT`."""
    return [sys.executable, "-m", f"tests.helpers.{helper}"]
