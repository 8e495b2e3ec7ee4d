"""Disk phases: how waiting rows meet the master."""

from __future__ import annotations

from .base import DiskPhase, Parts
from .lookup import Lookup
from .scan import Scan
from .sweep import Sweep

PHASES: dict[str, type[DiskPhase]] = {"sweep": Sweep, "scan": Scan, "lookup": Lookup}
__all__ = ["PHASES", "DiskPhase", "Parts"]
