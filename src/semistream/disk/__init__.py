"""Rows that wait, and how they meet the master: each is answered once, within one pass over it.

Every module of this folder is imported, and a class in it that has a word can be named by a row of
`semistream.spec.ALGORITHMS`: a new disk phase is a new file, and nothing else changes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .backlog import Backlog
from .base import DiskPhase, Parts, phase_named
from .groups import shows_groups
from .none import NoDisk
from .sweep import Sweep

for _module in iter_modules(__path__):  # in a folder or in a zip file
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Backlog", "DiskPhase", "NoDisk", "Parts", "Sweep", "phase_named", "shows_groups"]
