"""A front stage that forgets: for masters whose rows change while the join runs.

    ttl         a group goes so long after it was brought, however often it was used since
    changes     the master names codes whose rows have changed; their groups go at once

What is remembered as absent goes in the same way. When each code came is kept in a log, the oldest
first, within a share of the front stage's memory; where it runs full, the oldest go before their
time, which costs speed only.
"""

from __future__ import annotations

import time
from collections import deque

import pyarrow as pa

from ..budget import Ledger
from ..kernels.arrays import I64
from ..master import Master
from ..rows.chunks import Chunks
from .cache import KeyGroups
from .table import Groups

SHARE = 8  # one part in so many of the front stage is for the log
ENTRY = 160  # bytes of an entry besides its codes


class ExpiringGroups(KeyGroups):
    def __init__(
        self,
        schema: pa.Schema,
        limit: int,
        row_bytes: int,
        threshold: int,
        ledger: Ledger,
        master: Master,
    ) -> None:
        self._master, self._clock = master, getattr(master, "clock", time.monotonic)
        self._log: deque[tuple[float, I64]] = deque()
        self._logged = 0
        self._log_limit = limit // SHARE if master.ttl is not None else 0
        super().__init__(schema, limit - self._log_limit, row_bytes, threshold, ledger)

    def resize(self, limit: int) -> None:
        self._log_limit = limit // SHARE if self._master.ttl is not None else 0
        while self._logged > self._log_limit:
            self._forget_oldest()
        super().resize(limit - self._log_limit)

    def follow(self, master: Master) -> None:
        self._master = master

    def renew(self) -> None:
        """Changes first: if the master cannot be asked, nothing was forgotten in vain."""
        changed = self._master.changes()
        if changed is None:
            self.clear()
        else:
            self.forget(changed)
        if self._master.ttl is not None:
            oldest = self._clock() - self._master.ttl
            while self._log and self._log[0][0] <= oldest:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, codes = self._log.popleft()
        self._logged -= codes.nbytes + ENTRY
        self.forget(codes)

    def _note(self, codes: I64) -> None:
        if self._master.ttl is None or self.asleep or len(codes) == 0:
            return
        self._log.append((self._clock(), codes.copy()))
        self._logged += codes.nbytes + ENTRY
        while self._logged > self._log_limit:
            self._forget_oldest()

    def offer(self, groups: Groups, pages: Chunks) -> None:
        super().offer(groups, pages)
        self._note(groups.codes)

    def absent(self, codes: I64) -> None:
        super().absent(codes)
        self._note(codes)

    def clear(self) -> None:
        super().clear()
        self._log.clear()
        self._logged = 0

    def hot(self, most: int | None = None) -> tuple[I64, I64] | None:
        return None  # rows that must be asked for again are not worth remembering

    def _bytes(self) -> int:
        return super()._bytes() + self._log_limit
