"""Load shedding: rows that there is no time for go out and come back, none is lost."""

from __future__ import annotations

from .engine import SheddingEngine
from .policy import Shedding, shed_target
from .receiver import ShedReceiver
from .state import load_shed, restore_shed, save_shed

__all__ = [
    "ShedReceiver",
    "Shedding",
    "SheddingEngine",
    "load_shed",
    "restore_shed",
    "save_shed",
    "shed_target",
]
