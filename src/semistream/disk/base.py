"""What a disk phase is: it holds waiting rows and answers some of them per step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from ..budget import Ledger
from ..errors import SpecError
from ..front import Front
from ..kernels.arrays import I32, I64
from ..master import Master, Pages
from ..output import Output
from ..spec import DISK_FACTS, DiskFacts, Params
from .backlog import Backlog


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a disk phase works with."""

    master: Master
    front: Front
    backlog: Backlog
    output: Output
    ledger: Ledger
    params: Params
    read_bytes: int
    pool_bytes: int = 0  # for cached pages
    collect_bytes: int = 0  # for key groups that are not complete yet
    pinned: Pages | None = None  # xhybridjoin: pages that are asked in every step
    pinned_pages: int = 0
    steady: bool = False  # True: the number of slots for waiting rows must not change
    in_order: bool = False  # True: answers are held until all older rows have theirs


_PHASES: dict[str, type[DiskPhase]] = {}


def phase_named(word: str) -> type[DiskPhase]:
    try:
        return _PHASES[word]
    except KeyError:
        known = ", ".join(sorted(_PHASES))
        raise SpecError(
            f"there is no disk phase {word!r}; write it into a file of semistream/disk, or choose "
            f"one of {known}"
        ) from None


class DiskPhase(ABC):
    """A class with a `word` is found by it: `class Toy(DiskPhase, word="toy")`."""

    keeps = True  # False: it has no rows that wait
    ending = False  # True: no rows come before all that wait are answered

    # What the division of memory and predictions know of it: spec.DiskFacts says what these mean.
    linked: ClassVar[bool] = False
    answers_at_once: ClassVar[bool] = False
    scans: ClassVar[bool] = False
    blocks: ClassVar[bool] = False
    ranges: ClassVar[bool] = False
    borrows: ClassVar[bool] = False
    goes_round: ClassVar[bool] = False
    fetch_word: ClassVar[str] = ""
    pool_knob: ClassVar[str] = ""
    pools_mapped: ClassVar[bool] = False

    def __init_subclass__(cls, word: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if word is not None:
            known = _PHASES.setdefault(word, cls)
            if known is not cls:
                raise TypeError(f"two disk phases have the word {word!r}: {known} and {cls}")
            DISK_FACTS.setdefault(word, cls.facts())

    @classmethod
    def facts(cls) -> DiskFacts:
        return DiskFacts(**{field.name: getattr(cls, field.name) for field in fields(DiskFacts)})

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.columns = list(parts.output.shape.master)

    @property
    def waiting(self) -> int:
        """Rows that wait now."""
        return len(self.parts.backlog)

    @property
    def slots(self) -> int:
        """Rows that may wait at most."""
        return self.parts.backlog.capacity

    @property
    def position(self) -> int:
        """How far it has come where it goes round and round, else 0."""
        return 0

    @property
    def backlog(self) -> Backlog:
        return self.parts.backlog

    def room(self) -> int:
        """Rows that may be admitted before the next step."""
        return self.parts.backlog.free_rows

    def admit(self, rows: pa.RecordBatch, codes: I64) -> I32:
        return self.parts.backlog.add(rows, codes)

    @abstractmethod
    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration. If the master cannot be read it raises, and no waiting row is lost."""

    def end(self, ending: bool) -> None:
        """Whether no more rows come before all that wait are answered."""
        self.ending = ending

    def make_room(self, rows: int, size: int) -> None:
        """Waiting rows of a snapshot are to come, `size` bytes of them."""
        return

    def online(self) -> Iterator[pa.RecordBatch]:
        """Answers that can be given right after rows were admitted."""
        return iter(())

    def _live(self, slots: I32, pages: Pages, loc: I64) -> tuple[I32, I64]:
        """Of some pairs with equal codes, those whose master row no newer run has replaced."""
        master = self.parts.master
        owner = master.owners(self.parts.backlog.codes[slots])
        if owner is None:
            return slots, loc
        run = np.searchsorted(master.runs, pages.numbers[loc >> 32], "right") - 1
        return slots[owner == run], loc[owner == run]

    def _leave(self, slots: I32) -> Iterator[pa.RecordBatch]:
        """These rows have met all rows of their key: count them, report those without a match."""
        if len(slots) == 0:
            return
        backlog, front = self.parts.backlog, self.parts.front
        matched = backlog.matched[slots]
        yield from self.parts.output.leave(backlog.chunks, backlog.loc[slots], matched)
        if front.learns and not self.parts.output.verifies and not matched.all():
            front.absent(np.unique(backlog.codes[slots[~matched]]))
        backlog.remove(slots)

    def reset(self) -> None:
        """Forget all waiting rows."""
        self.parts.backlog.clear()
        self.ending = False

    # What another division of memory needs beyond what a snapshot does.
    def trim(self, pool_bytes: int) -> None:
        """Let go of cached pages beyond so many bytes."""
        return

    def take_over(self, old: Self) -> None:
        """Go on in the place of `old`, which had another share of memory, with what it cached and
        found out. The waiting rows are here already."""
        return

    # What a snapshot needs beyond the rows themselves.
    def waited(self, slots: I32) -> I64:
        """How long these have waited, as the phase counts it."""
        return np.zeros(len(slots), np.int64)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any], slots: I32, ages: I64) -> None:
        """Waiting rows were put back; here is what `state` and `ages` said."""
        return
