"""Another division of memory for a join that runs: more for cached rows and less for waiting ones,
or the other way round, or another read buffer. The budget stays, and so do results.

Waiting rows are carried over as they are: identity, order of arrival, matches so far, the page to
go on from, and for scans how many pages they have met. The front stage keeps the groups asked for
most. A division that leaves less room than waiting rows take is put off: no new rows come in until
enough have left.
"""

from __future__ import annotations

from ...budget import COLLECT, Division
from ...disk import Sweep
from ...front import KeyGroups
from ..build import master_row
from ..engine import Engine


class Divider:
    """Divides the memory of one engine anew. Call `settle` only between pieces and steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: Division | None = None
        self.moves = 0

    # --- what can move -------------------------------------------------------------------------

    @property
    def moves_cache(self) -> bool:
        """Whether cached rows or pages and waiting rows can take memory from each other."""
        engine = self._engine
        if not engine.phase.keeps or self._lent():
            return False
        pages = engine.split.pool and not engine.question.master.mapped
        groups = engine.question.algorithm.front_facts.learns
        return bool(pages or (groups and engine.question.caches))

    @property
    def moves_read(self) -> bool:
        """Whether the size of a read matters and costs memory: a scan's, or hybridjoin's block."""
        engine = self._engine
        reads = engine.question.algorithm.disk_facts.one_size
        return reads and not engine.question.master.mapped

    def _lent(self) -> bool:
        """The front stage sleeps, and waiting rows have its memory already."""
        phase = self._engine.phase
        return isinstance(phase, Sweep) and phase.borrows and self._engine.front.asleep

    def least_share(self) -> float:
        """With less a front stage is not worth having."""
        engine = self._engine
        if engine.split.pool:
            return 0.0
        whole = engine.divided(Division(1.0, engine.split.read)).front
        least = KeyGroups.least(master_row(engine.question.master))
        return least * COLLECT / (COLLECT - 1) * 1.2 / max(1, whole)

    @property
    def division(self) -> Division:
        """As it is now."""
        engine = self._engine
        whole = engine.divided(Division(1.0, engine.split.read)).cache
        share = min(1.0, engine.split.cache / max(1, whole))
        return engine.division or Division(share, engine.split.read)

    # --- moving --------------------------------------------------------------------------------

    def ask(self, division: Division) -> None:
        """Divide in this way as soon as waiting rows allow it."""
        self._wanted = division
        limit = self._engine.divided(division).backlog
        self._engine.phase.backlog.shrink_towards(limit)

    @property
    def pending(self) -> bool:
        return self._wanted is not None

    def settle(self) -> bool:
        """Divide anew if that is possible now. True: nothing is put off."""
        if self._wanted is None:
            return True
        if self._lent():
            return False
        wanted, self._wanted = self._wanted, None  # one that fails is not tried again and again
        if not self._engine.divide(wanted):
            self._wanted = wanted
            return False
        self.moves += 1
        return True


def divide_anew(engine: Engine, division: Division) -> bool:
    """Divide an engine's memory now. False: more rows wait than there would be room for."""
    if not engine.phase.keeps:
        return False
    divider = Divider(engine)
    divider.ask(division)
    done = divider.settle()
    if not done:
        engine.phase.backlog.shrink_towards(None)
    return done
