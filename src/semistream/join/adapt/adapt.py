"""A join that adapts: what it counts goes to the hill climb (climb.py), and what comes of it to the
divider (divide.py), always between two pieces or steps. The cost model says where to look first.

    sample of the stream, or hits of the cache ──> Workload ──tune──> Division

A join with too little memory for a sample, or with too much of it in the cache, still counts hits:
the skew is the one at which the model's cache, of so many keys, has as many.
"""

from __future__ import annotations

from dataclasses import replace

from ...budget import Division
from ...errors import SemiStreamError
from ...master import facts
from ...planning import KNOWS, Case, Machine, this_machine, tune, workload_of
from ...planning.laws import zipf
from ...spec import Workload
from ..calls import Stopwatch
from ..engine import Engine
from .climb import Climber, Knob, Pace, Period
from .divide import Divider

MOST_SHARE = 0.95
FEW = 16  # cached keys that say too little
MOST_SKEW = 2.0
CHANCE = 3  # times as many turnovers where it is chance how many rows a step answers
MOST_ROWS = 16  # times the rows of a period: then it ends, also where no step was needed


class Adapting:
    """Watches one engine and divides its memory anew."""

    def __init__(self, engine: Engine, pace: Pace, watch: Stopwatch) -> None:
        self._engine, self._pace, self._watch = engine, pace, watch
        self.divider = Divider(engine)
        self._climber: Climber | None = None
        self._knobs = (False, False)
        self._last = self._now()
        self._steps = self._position = 0  # at the last look
        engine.between_steps(self.look)

    def _now(self) -> Period:
        """Counters since the beginning."""
        counters, master = self._engine.counters, self._engine.question.master
        answered = counters.rows_matched + counters.rows_unmatched
        return Period(
            answered,
            self._watch.seconds,
            counters.front_hits,
            master.traffic.pages,
            self._engine.steps,
        )

    @property
    def resting(self) -> bool:
        """Whether it has found what it looked for, or there is nothing to look for."""
        return self._climber is None or self._climber.resting

    def look(self) -> None:
        """Nothing is under way. Mostly it is too early to do anything."""
        complete = self._complete()
        if self.divider.pending:
            if not self.divider.settle():
                return
            self._last = self._now()
        if not self._over(complete):
            return
        now, last = self._now(), self._last
        self._last = now
        parts = zip(vars(now).values(), vars(last).values(), strict=True)
        self._decide(Period(*(a - b for a, b in parts)))

    def _complete(self) -> bool:
        """Whether a step has just ended, of a scan or of a sweep in parts the last one of a round.
        Elsewhere a period would have hits without the misses that came with them, or one seek more
        than others."""
        steps, before = self._engine.steps, self._position
        stepped, self._steps = steps > self._steps, steps
        self._position = self._engine.phase.position
        return stepped and self._position <= before

    def _over(self, complete: bool) -> bool:
        """Whether the period is: enough rows, and nothing begun."""
        engine, last = self._engine, self._last
        counters = engine.counters
        rows = counters.rows_matched + counters.rows_unmatched - last.rows
        if rows < self._pace.rows or not engine.phase.keeps:
            return False
        turnover = self._pace.turnovers * engine.slots
        turnover *= CHANCE if engine.question.algorithm.disk_facts.blocks else 1
        if rows > MOST_ROWS * (self._pace.rows + turnover):
            return True
        missed = rows - (counters.front_hits - last.hits)
        return complete and missed >= turnover

    def _decide(self, period: Period) -> None:
        divider = self.divider
        knobs = (divider.moves_cache, divider.moves_read)
        if self._climber is None or knobs != self._knobs:  # the front stage fell asleep or woke up
            self._knobs = knobs
            self._climber = self._new_climber() if any(knobs) else None
        if self._climber is None:
            return
        if self._climber.see(period) is not None:
            values = list(self._climber.values)
            share = values.pop(0) if knobs[0] else divider.division.share
            read = int(values.pop(0)) if knobs[1] else divider.division.read
            divider.ask(Division(share, read))
            divider.settle()

    def _propose(self, period: Period) -> list[float] | None:
        """The knobs' values as the model has them."""
        machine = self._pace.machine or this_machine()
        wanted = proposal(self._engine, machine, period.hit_share)
        if wanted is None:
            return None
        moves = zip(self._knobs, (wanted.share, float(wanted.read)), strict=True)
        return [value for knob, value in moves if knob]

    def _new_climber(self) -> Climber:
        divider, knobs = self.divider, []
        at = divider.division
        if self._knobs[0]:
            least = min(0.5, divider.least_share())
            share = min(MOST_SHARE, max(least, at.share))
            knobs.append(Knob(share, least, MOST_SHARE, share=True))
        if self._knobs[1]:
            info = self._engine.question.master.describe()
            page = info.max_page_bytes + 1024
            most = self._engine.divided(Division(0.0, 1 << 62)).read
            knobs.append(Knob(min(most, max(page, at.read)), page, most))
        return Climber(knobs, self._pace, self._propose)


# --- what the model would do in the place of a join that runs ----------------------------------


def proposal(engine: Engine, machine: Machine, hit_share: float) -> Division | None:
    """The division that the tuner would choose, whatever the user has set: a bad one is to be
    mended. `hit_share` is of the rows that came of late. None: the model does not know the join."""
    question = engine.question
    if question.spec.condition is not None or question.shed:
        return None
    known = facts(question.master)
    free = replace(question.params, front_share=None, read_bytes=None, page_pool=0.0)
    case = Case(
        question.algorithm,
        known,
        stream_now(engine, hit_share),
        question.budget,
        free,
        len(engine.design.shape.master),
        question.spec.ordered,
    )
    try:
        split = tune(case, machine).split
    except SemiStreamError:  # such as a machine whose file lacks a cost: no reason to stop
        return None
    whole = engine.divided(Division(1.0, split.read)).cache
    return Division(min(1.0, split.cache / max(1, whole)), split.read)


def stream_now(engine: Engine, hit_share: float) -> Workload:
    """What the stream is like: as its sample says, else as the hits say, else as is usual."""
    known = workload_of(engine.seen())
    if known.skew_error is not None:
        return known
    if engine.front.asleep:  # keys hardly ever repeat
        return replace(known, skew=0.0)
    cached = engine.front.cached
    if cached < FEW:
        return known
    rows = engine.question.master.describe().rows
    return replace(known, skew=skew_of(hit_share / max(1e-9, 1 - known.orphans), cached, rows))


def skew_of(hit_share: float, cached: int, rows: int) -> float:
    """The Zipf exponent at which a cache of so many of the master's keys has such a share of hits,
    by the model's law of what a cache knows."""
    if cached >= rows:
        return Workload().skew  # it has them all: hits say nothing
    low, high = 0.0, MOST_SKEW
    for _ in range(24):
        middle = (low + high) / 2
        less = zipf.share(KNOWS * cached, rows, middle) < hit_share
        low, high = (middle, high) if less else (low, middle)
    return high
