"""The code in CONTRIBUTING's recipes, and how it comes into the package that is imported here."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import ModuleType

from tests.helpers.paths import ROOT


def blocks(title: str) -> list[str]:
    """The Python blocks of a section."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [dedent(code) for code in re.findall(r" *```python\n(.*?)```", section, re.DOTALL)]


@contextmanager
def new_file(package: ModuleType, name: str, code: str, folder: Path) -> Iterator[ModuleType]:
    """A module of this name in the folder of a package, for as long as it is needed."""
    (folder / f"{name}.py").write_text(code)
    full = f"{package.__name__}.{name}"
    package.__path__.append(str(folder))
    try:
        yield importlib.import_module(full)
    finally:
        package.__path__.remove(str(folder))
        sys.modules.pop(full, None)
        vars(package).pop(name, None)
