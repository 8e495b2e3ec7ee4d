"""What a join may ask of a front stage: hot master rows in memory, before anything touches the
disk. `KeyGroups` (cache.py) learns which rows are hot; whole.py has those loaded at once."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.arrays import I32, I64, Mask
from ..master import Master
from ..rows.chunks import Chunks
from ..rows.records import Records
from .table import Groups


@dataclass
class Hits:
    start: I64  # location of the first row of the group; -1: not here
    count: I32
    absent: Mask | None  # known not to be in the master


class Front:
    """No front stage: nothing is ever here. Also the interface of the others."""

    complete = False  # True: what is not here is nowhere
    learns = False  # True: it wants to be told what the disk phase finds
    asleep = False  # True: not to be asked now; it watches whether keys repeat
    wants_to_wake = False
    rows: Chunks | Records  # where the locations in `Hits` point

    @property
    def spare(self) -> int:
        """Bytes of its share that it does not use now."""
        return 0

    @property
    def full(self) -> bool:
        """Whether another group could only come in the place of others."""
        return True

    @property
    def cached(self) -> int:
        """Groups that it has now."""
        return 0

    def hot(self, most: int | None = None) -> tuple[I64, I64] | None:
        """The codes that it has and may be remembered, and how often each was asked for: those
        asked for most, these first."""
        return None

    def let_others_wake_it(self, others: bool) -> None:
        """Whether somebody else wakes it, who borrows its memory while it sleeps."""

    def sleep(self) -> None:
        """Give all memory back."""

    def probe(self, codes: I64) -> Hits | None:
        return None

    def watch_at_least(self, rows: int) -> None:
        """Whether keys repeat cannot be seen from fewer answered rows than these."""

    def offer(self, groups: Groups, pages: Chunks) -> None:
        """Distinct groups that the disk phase just answered, and how many rows asked for each."""

    def absent(self, codes: I64) -> None:
        """Codes that the master does not have, as a whole answer has shown."""

    def forget(self, codes: I64) -> None:
        """Drop the groups of these codes, and that some of them do not exist: the master's rows of
        these codes may have changed."""

    def follow(self, master: Master) -> None:
        """The join goes on with another version of the master."""

    def renew(self) -> None:
        """Forget what is too old or has changed. It may ask the master, and so may fail."""

    def watch_anew(self) -> None:
        """What was offered so far was not asked for by the stream: it tells nothing about it."""

    def clear(self) -> None:
        """Forget everything."""

    def resize(self, limit: int) -> None:
        """Go on with `limit` bytes, keeping what is asked for most."""
