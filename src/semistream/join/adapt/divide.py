"""Another division of memory for a join that runs: more for cached rows and less for waiting ones,
or the other way round, or another read buffer. The budget stays, and so do results.

Waiting rows are carried over as they are: identity, order of arrival, matches so far, the page to
go on from, and for scans how many pages they have met. The front stage keeps the groups asked for
most. A division that leaves less room than waiting rows take is put off: no new rows come in until
enough have left.
"""

from __future__ import annotations

from dataclasses import replace

from ...budget import COLLECT, Division, Split
from ...disk import Sweep
from ...front import Front, KeyGroups
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
        if engine.phase is None or self._lent():
            return False
        pages = engine.split.pool and not engine.question.master.mapped
        groups = engine.question.algorithm.front == "groups"
        return bool(pages or (groups and engine.question.caches))

    @property
    def moves_read(self) -> bool:
        """Whether the size of a read matters and costs memory: a scan's, or hybridjoin's block."""
        engine = self._engine
        reads = engine.question.algorithm.disk in ("scan", "seek")
        return reads and engine.phase is not None and not engine.question.master.mapped

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
        least = KeyGroups.least(engine.master_row())
        return least * COLLECT / (COLLECT - 1) * 1.2 / max(1, whole)

    @property
    def division(self) -> Division:
        """As it is now."""
        engine = self._engine
        cache = cache_bytes(engine.split)
        whole = cache_bytes(engine.divided(Division(1.0, engine.split.read)))
        return engine.division or Division(min(1.0, cache / max(1, whole)), engine.split.read)

    # --- moving --------------------------------------------------------------------------------

    def ask(self, division: Division) -> None:
        """Divide in this way as soon as waiting rows allow it."""
        phase = self._engine.phase
        assert phase is not None
        self._wanted = division
        limit = self._engine.divided(division).backlog
        phase.parts.backlog.towards = limit if limit < phase.parts.backlog.limit else None

    @property
    def pending(self) -> bool:
        return self._wanted is not None

    def settle(self) -> bool:
        """Divide anew if that is possible now. True: nothing is put off."""
        phase, wanted = self._engine.phase, self._wanted
        if wanted is None or phase is None:
            return True
        split = self._engine.divided(wanted)
        if self._lent() or not phase.parts.backlog.fits(split.backlog):
            return False
        self._wanted = None
        self._carry_over(split)
        self._engine.division = wanted
        self.moves += 1
        return True

    def _carry_over(self, split: Split) -> None:
        engine, phase = self._engine, self._engine.phase
        assert phase is not None
        backlog = phase.parts.backlog
        slots = backlog.oldest_first()
        state, ages = phase.state(), phase.ages(slots)
        shrinks = cache_bytes(split) < cache_bytes(engine.split)
        engine.ledger.set("collect", 0)
        engine.split = split
        if shrinks:
            self._resize_cache()
        kept = backlog.carry(split.backlog)
        if not shrinks:
            self._resize_cache()
        parts = replace(
            phase.parts,
            front=engine.front,
            read_bytes=split.read,
            pool_bytes=split.pool,
            collect_bytes=split.front // COLLECT,
        )
        engine.phase = type(phase)(parts)
        engine.phase.restore(state, kept, ages)
        engine.phase.take_over(phase)

    def _resize_cache(self) -> None:
        engine = self._engine
        assert engine.phase is not None
        engine.phase.trim(engine.split.pool)
        if engine.front.learns:
            engine.front.resize(engine.front_bytes(engine.split))
        elif type(engine.front) is Front and engine.question.algorithm.front == "groups":
            engine.front = engine.make_front()[0]  # it was not worth having


def cache_bytes(split: Split) -> int:
    return split.front + split.pool


def divide_anew(engine: Engine, division: Division) -> bool:
    """Divide an engine's memory now. False: more rows wait than there would be room for."""
    divider = Divider(engine)
    divider.ask(division)
    done = divider.settle()
    if not done and engine.phase is not None:
        engine.phase.parts.backlog.towards = None
    return done
