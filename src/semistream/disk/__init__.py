"""Rows that wait, and how they meet the master: each is answered once, within one pass over it."""

from __future__ import annotations

from .backlog import Backlog
from .base import DiskPhase, Parts
from .condition import Nested, Residual
from .fetch import Fetch, FetchNow
from .groups import shows_groups
from .lookup import Lookup
from .none import NoDisk
from .scan import Scan
from .seek import Seek
from .ssij import PagePlan
from .sweep import Sweep

PHASES: dict[str, type[DiskPhase]] = {
    "none": NoDisk,
    "sweep": Sweep,
    "scan": Scan,
    "lookup": Lookup,
    "seek": Seek,
    "plan": PagePlan,
    "residual": Residual,
    "nested": Nested,
    "fetch": Fetch,
    "fetch_now": FetchNow,
}
BY_KEY = {"sweep": "fetch", "lookup": "fetch_now"}  # where the master brings many keys at once
__all__ = ["BY_KEY", "PHASES", "Backlog", "DiskPhase", "NoDisk", "Parts", "Sweep", "shows_groups"]
