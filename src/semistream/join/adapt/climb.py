"""When to divide memory anew: a hill climb on measured seconds per row. Numbers in, numbers out.

    period ──> warm? ──> repeated ──> better than home by more than the noise? ──> new home
                                             │ no: what a model proposes, the other way,
                                             │     the next knob, smaller steps
                                             └── nothing is better: rest at home and watch

A knob is a size that may change: the cache's share of memory, the read buffer. Steps are factors:
of a size, of the odds of a share. A proposal is a place like any other, but the first to be tried;
after a good one only small steps are. Once at rest it moves again when the cost has changed and
does not come back by itself, and else tries a single step now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from ...errors import SpecError
from ...planning import Machine

__all__ = ["Climber", "Knob", "Pace", "Period"]

RISE = 0.01  # of the share of hits from period to period: the cache still fills
FALL = 0.05  # of the share of hits: the hot keys have moved
BETTER = 0.05  # of the cost from period to period: something still gets better
OTHER = 0.2  # of the cost: the rate has changed
HOPELESS = 1.3  # times the cost at home where nothing gets better, else twice that
MOST_FACTOR = 4.0
MOST_NOISE = 0.2
LITTLE_NOISE = 0.025  # that two periods are enough for
MOST_REPEATS = 4  # times the usual ones, where there is more
ASKS = 2  # proposals in a search: at another place a model may know more
NEAR = 1.15  # a smaller factor is no other place


@dataclass(frozen=True)
class Pace:
    """How patient it is. None of this changes results."""

    rows: int = 20_000  # that are answered in a period, at least
    turnovers: float = 0.8  # how often, in a period, as many rows leave as can wait
    repeats: int = 2  # periods that are measured at each place, more where they differ much
    warm: int = 8  # periods that a cache gets to fill, at most
    step: float = 2.25  # factor of the first steps
    least_step: float = 1.5  # and of the last ones
    gain: float = 0.02  # a place must be better by so much, and by more than the noise
    rest: int = 100  # periods between single steps, once at rest
    machine: Machine | None = None  # that proposals are made for; None: this one

    def __post_init__(self) -> None:
        for name in ("rows", "repeats", "warm", "rest", "turnovers"):
            if getattr(self, name) <= 0:
                raise SpecError(f"{name}={getattr(self, name)!r} must be more than 0")
        if not 1 < self.least_step <= self.step:
            raise SpecError(
                f"least_step={self.least_step!r} and step={self.step!r} are factors; give them so "
                "that 1 < least_step <= step"
            )


@dataclass(frozen=True)
class Period:
    """What happened since the last look."""

    rows: int  # answered
    seconds: float
    hits: int = 0  # rows that the cache answered
    pages: int = 0
    steps: int = 0  # of the disk phase

    @property
    def cost(self) -> float:
        return self.seconds / max(1, self.rows)

    @property
    def hit_share(self) -> float:
        return self.hits / max(1, self.rows)


@dataclass(frozen=True)
class Knob:
    """Something that may be larger or smaller, within bounds."""

    value: float
    least: float
    most: float
    share: bool = False  # of a whole, less than 1

    def moved(self, up: bool, factor: float) -> Knob:
        """By a factor. Of a share it is the odds that change by it: the smaller of both sides
        changes about so much."""
        size = self.size * factor if up else self.size / factor
        value = size / (1 + size) if self.share else size
        return replace(self, value=min(self.most, max(self.least, value)))

    def at(self, value: float) -> Knob:
        """As near to a value as bounds allow, or nothing at all in the place of very little."""
        if self.share and value < self.least / 2:
            return replace(self, value=0.0)
        return replace(self, value=min(self.most, max(self.least, value)))

    @property
    def size(self) -> float:
        """What factors apply to."""
        return self.value / (1 - self.value) if self.share else self.value

    def near(self, other: Knob) -> bool:
        return max(self.size, other.size) <= NEAR * min(self.size, other.size)


Try = tuple[int, bool]  # which knob, and whether up
Place = tuple[Knob, ...]
Propose = Callable[[Period], Sequence[float] | None]  # after a period: the knobs' best values


def _no_idea(_: Period) -> None:
    return None


class Climber:
    """`see` a period, get the knobs' new values or None. `place` are the values now."""

    def __init__(self, knobs: Sequence[Knob], pace: Pace, propose: Propose = _no_idea) -> None:
        self._pace, self._propose, self.place = pace, propose, tuple(knobs)
        self._home: Place = self.place  # the best place so far
        self._noise: float | None = None  # between one period and the next, relative
        self._rest, self._turn = pace.rest, 0
        self._start()

    @property
    def resting(self) -> bool:
        return self._resting

    @property
    def home(self) -> tuple[float, ...]:
        """The values of the best place so far."""
        return tuple(knob.value for knob in self._home)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(knob.value for knob in self.place)

    def _start(self) -> None:
        """Measure where it is, then try everything."""
        self._resting, self._looks = False, False
        self._factor, self._improved = self._pace.step, False
        self._asks, self._near = ASKS, False
        self._todo = self._every_way()
        self._trial: Try | None = None
        self._away = False  # from home, to try a place
        self._home_cost = 0.0
        self._tried: list[Place] = [self._home]
        self._arrive()

    def _every_way(self) -> list[Try]:
        return [(knob, up) for knob in range(len(self._home)) for up in (True, False)]

    def _arrive(self) -> None:
        """What was measured elsewhere says nothing about this place."""
        self._seen: list[Period] = []  # those that count
        self._periods = 0  # since the arrival
        self._off = 0  # periods in a row with another cost than at home
        self._shaken = False  # the hot keys have moved since
        self._expect()

    def _expect(self) -> None:
        """The cache fills from now on."""
        self._filling = 0  # periods
        self._most_hits, self._least_cost = 0.0, inf

    # --- a period ------------------------------------------------------------------------------

    def see(self, period: Period) -> tuple[float, ...] | None:
        """The knobs' new values, or None where they stay."""
        self._periods += 1
        if self._resting:
            return self._watch(period)
        if self._moved(period):
            self._seen, self._shaken = [], True
            self._expect()
        better = self._better(period)
        if self._periods == 1:
            return None
        hope = HOPELESS * (2 if better else 1) * self._home_cost
        if self._away and not self._shaken and period.cost > hope:
            return self._next(period)
        if better and not self._seen:
            return None
        self._hear(period)
        cost = sum(p.seconds for p in self._seen) / max(1, sum(p.rows for p in self._seen))
        if len(self._seen) < self._needed() and not self._worse(cost):
            return None
        return self._judge(cost, period)

    def _moved(self, now: Period) -> bool:
        """Whether the hot keys have, while a place is measured: then it is measured anew, and what
        was measured elsewhere still holds for when the cache has recovered."""
        fell = now.hit_share < self._most_hits - FALL
        return fell and self._periods > 2 and not self._shaken

    def _better(self, now: Period) -> bool:
        """Whether the cache still fills, or the cost still falls. The first period at a place does
        not count in any case: it has rows that waited before."""
        self._filling += 1
        fills = now.hit_share > self._most_hits + RISE
        falls = now.cost < self._least_cost * (1 - BETTER)
        self._most_hits = max(self._most_hits, now.hit_share)
        self._least_cost = min(self._least_cost, now.cost)
        return self._filling <= self._pace.warm and (fills or falls)

    def _hear(self, now: Period) -> None:
        """A period that counts; how much it differs from the one before is noise."""
        if self._seen and now.cost > 0:
            before = self._seen[-1].cost
            noise = min(MOST_NOISE, abs(now.cost - before) / max(now.cost, before))
            self._noise = noise if self._noise is None else 0.7 * self._noise + 0.3 * noise
        self._seen.append(now)

    def _needed(self) -> int:
        """Periods that tell the cost of a place; a proposal is tried before it is known well."""
        more = 1.0 if self._asks == ASKS else (self._noise or 0.0) / (2 * LITTLE_NOISE)
        return round(self._pace.repeats * min(MOST_REPEATS, max(1.0, more)))

    def _margin(self) -> float:
        """What is better or worse by less may be noise. A period that was too cheap is mostly made
        up for by the next, so the noise of several goes with their number."""
        return max(self._pace.gain, 2 * (self._noise or 0.0) / len(self._seen))

    def _worse(self, cost: float) -> bool:
        """Whether a place that is tried is worse anyway: then it is not measured any longer."""
        return self._away and cost > self._home_cost * (1 + self._margin())

    def _judge(self, cost: float, now: Period) -> tuple[float, ...] | None:
        if not self._away:
            self._home_cost = cost
        elif cost < self._home_cost * (1 - self._margin()):
            self._home, self._home_cost = self.place, cost
            self._improved = True
            self._onwards()
        return self._next(now)

    def _onwards(self) -> None:
        """What to try after a place that was better."""
        if self._trial is None:
            self._stay_near()
            return
        knob, up = self._trial
        others = [way for way in self._every_way() if way[0] != knob]
        self._todo = [(knob, up), *([] if self._looks or self._near else others)]
        self._factor = min(MOST_FACTOR, self._factor * (1.0 if self._looks else 1.25))

    def _stay_near(self) -> None:
        """A proposal was good: the best is not far."""
        self._near, self._factor = True, self._pace.least_step
        self._todo = self._every_way()

    # --- where to go ---------------------------------------------------------------------------

    def _next(self, now: Period) -> tuple[float, ...] | None:
        """The next place to try; where there is none, home."""
        while self._asks > 0:
            self._asks -= 1
            proposed = self._proposed(now)
            if proposed is not None:
                return self._try(proposed, None)
        while True:
            while self._todo:
                which, up = self._todo.pop(0)
                knob = self._home[which].moved(up, self._factor)
                place = (*self._home[:which], knob, *self._home[which + 1 :])
                if not self._known(place):
                    return self._try(place, (which, up))
            if self._looks or (not self._improved and self._factor <= self._pace.least_step):
                break
            smaller = 1.0 if self._near else self._factor / self._pace.least_step
            self._factor = max(self._pace.least_step, smaller)
            self._todo, self._improved = self._every_way(), False
        self._away, self._resting = False, True
        return self._go(self._home)

    def _proposed(self, now: Period) -> Place | None:
        """A place that was not tried yet. Where it is home itself, only small steps are worth
        trying."""
        values = self._propose(now)
        if values is None:
            return None
        place = tuple(map(Knob.at, self._home, values))
        if all(map(Knob.near, place, self._home)):
            self._stay_near()
        return None if self._known(place) else place

    def _known(self, place: Place) -> bool:
        return any(all(map(Knob.near, place, known)) for known in self._tried)

    def _try(self, place: Place, how: Try | None) -> tuple[float, ...] | None:
        self._trial, self._away = how, True
        self._tried.append(place)
        return self._go(place)

    def _go(self, place: Place) -> tuple[float, ...] | None:
        moves = place != self.place
        self.place = place
        self._arrive()
        return self.values if moves else None

    # --- at rest -------------------------------------------------------------------------------

    def _watch(self, now: Period) -> tuple[float, ...] | None:
        """Begin again when something has changed; look around once in a while."""
        if self._periods == 1:
            self._usual = now.hit_share
            return None
        if self._changed(now):
            self._rest = self._pace.rest
            self._start()
            return None
        if self._periods < self._rest or self._off:
            return None
        self._rest = min(8 * self._pace.rest, 2 * self._rest)
        ways = self._every_way()
        self._turn += 1
        self._resting, self._looks, self._factor = False, True, self._pace.least_step
        self._todo, self._tried = [ways[self._turn % len(ways)]], [self._home]
        return self._next(now)

    def _changed(self, now: Period) -> bool:
        """Whether the cost is another one for good. Where the hot keys have moved, the division is
        mostly still right, and all that the cache needs is time."""
        other = abs(now.cost - self._home_cost) > OTHER * self._home_cost
        fell = now.hit_share < self._usual - FALL
        self._usual = max(now.hit_share, 0.9 * self._usual + 0.1 * now.hit_share)
        if now.cost < self._home_cost or not (other or fell):
            self._home_cost += 0.1 * (now.cost - self._home_cost)
        if not (other or fell):
            self._off = 0
            return False
        if self._off == 0:
            self._expect()
        if not self._better(now) or self._off == 0:
            self._off += 1
        return self._off > 3
