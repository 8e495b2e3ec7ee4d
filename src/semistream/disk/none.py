"""No disk phase: the front stage has every row of the master, and nobody ever waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa

from .base import DiskPhase, Parts


class NoDisk(DiskPhase, word="none"):
    keeps = False

    def __init__(self, parts: Parts | None = None) -> None:
        """It needs nothing to work with."""

    @property
    def waiting(self) -> int:
        return 0

    @property
    def slots(self) -> int:
        return 0

    def room(self) -> int:
        return sys.maxsize

    def reset(self) -> None:
        return

    def step(self) -> Iterator[pa.RecordBatch]:
        return iter(())
