"""Disk phases: how waiting rows meet the master."""

from __future__ import annotations

from .base import DiskPhase, Parts
from .condition import Nested, Residual
from .lookup import Lookup
from .scan import Scan
from .seek import Seek
from .ssij import PagePlan
from .sweep import Sweep
from .teach import shows_groups

PHASES: dict[str, type[DiskPhase]] = {
    "sweep": Sweep,
    "scan": Scan,
    "lookup": Lookup,
    "seek": Seek,
    "plan": PagePlan,
    "residual": Residual,
    "nested": Nested,
}
__all__ = ["PHASES", "DiskPhase", "Parts", "shows_groups"]
