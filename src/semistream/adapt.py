"""When to divide memory anew: a hill climb on measured seconds per row. Numbers in, numbers out.

    period ──> warm? ──> repeated ──> better than home by more than the noise? ──> new home
                                             │ no: try the other way, the next knob, smaller steps
                                             └── nothing is better: rest at home and watch

A knob is a size that may change: the cache's share of memory, the read buffer. Steps are factors:
of a size, of the odds of a share. Once at rest it moves again when hits fall or the
cost changes for good, and else tries a single step now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from .errors import SpecError

NEAR = 1.15  # a smaller factor is no other place
RISE = 0.01  # of the share of hits from period to period: the cache still fills
FALL = 0.05  # of the share of hits: the hot keys have moved
BETTER = 0.05  # of the cost from period to period: something still gets better
OTHER = 0.2  # of the cost: the rate has changed
HOPELESS = 1.3  # times the cost at home where nothing gets better, else twice that
MOST_FACTOR = 4.0
MOST_NOISE = 0.1


@dataclass(frozen=True)
class Pace:
    """How patient it is. None of this changes results."""

    rows: int = 20_000  # that are answered in a period, at least
    turnovers: float = 3.0  # how often, in a period, as many rows leave as can wait
    repeats: int = 2  # periods that are measured at each place
    warm: int = 8  # periods that a cache gets to fill, at most
    step: float = 2.25  # factor of the first steps
    least_step: float = 1.5  # and of the last ones
    gain: float = 0.02  # a place must be better by so much, or by twice the noise
    rest: int = 100  # periods between single steps, once at rest

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

    @property
    def size(self) -> float:
        """What factors apply to."""
        return self.value / (1 - self.value) if self.share else self.value

    def near(self, other: Knob) -> bool:
        return max(self.size, other.size) <= NEAR * min(self.size, other.size)


Try = tuple[int, bool]  # which knob, and whether up
Place = tuple[Knob, ...]


class Climber:
    """`see` a period, get the knobs' new values or None. `place` are the values now."""

    def __init__(self, knobs: Sequence[Knob], pace: Pace) -> None:
        self._pace, self.place = pace, tuple(knobs)
        self._home: Place = self.place  # the best place so far
        self._noise = 0.0
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
        self._todo = self._every_way()
        self._trial: Try | None = None
        self._home_cost = 0.0
        self._tried: list[Place] = [self._home]
        self._arrive()

    def _every_way(self) -> list[Try]:
        return [(knob, up) for knob in range(len(self._home)) for up in (True, False)]

    def _arrive(self) -> None:
        """What was measured elsewhere says nothing about this place."""
        self._costs: list[float] = []
        self._periods = 0  # since the arrival
        self._most_hits, self._least_cost = 0.0, inf
        self._off = 0  # periods in a row with another cost than at home

    # --- a period ------------------------------------------------------------------------------

    def see(self, period: Period) -> tuple[float, ...] | None:
        """The knobs' new values, or None where they stay."""
        self._periods += 1
        if self._resting:
            return self._watch(period)
        better = self._better(period)
        if self._periods == 1:
            return None
        hope = HOPELESS * (2 if better else 1) * self._home_cost
        if self._trial is not None and period.cost > hope:
            return self._next()
        if better and not self._costs:
            return None
        self._costs.append(period.cost)
        if len(self._costs) < self._pace.repeats:
            return None
        return self._judge(sum(self._costs) / len(self._costs))

    def _better(self, now: Period) -> bool:
        """Whether the cache still fills, or the cost still falls. The first period at a place does
        not count in any case: it has rows that waited before."""
        fills = now.hit_share > self._most_hits + RISE
        falls = now.cost < self._least_cost * (1 - BETTER)
        self._most_hits = max(self._most_hits, now.hit_share)
        self._least_cost = min(self._least_cost, now.cost)
        return self._periods <= self._pace.warm and (fills or falls)

    def _judge(self, cost: float) -> tuple[float, ...] | None:
        if len(self._costs) > 1 and cost > 0:
            spread = (max(self._costs) - min(self._costs)) / cost
            self._noise = min(MOST_NOISE, 0.7 * self._noise + 0.3 * spread)
        if self._trial is None:
            self._home_cost = cost
        elif cost < self._home_cost * (1 - max(self._pace.gain, 2 * self._noise)):
            self._home, self._home_cost = self.place, cost
            self._improved = True
            knob, up = self._trial
            others = [way for way in self._every_way() if way[0] != knob]
            self._todo = [(knob, up), *([] if self._looks else others)]
            self._factor = min(MOST_FACTOR, self._factor * (1.0 if self._looks else 1.25))
        return self._next()

    # --- where to go ---------------------------------------------------------------------------

    def _next(self) -> tuple[float, ...] | None:
        """The next place to try; where there is none, home."""
        while True:
            while self._todo:
                which, up = self._todo.pop(0)
                knob = self._home[which].moved(up, self._factor)
                place = (*self._home[:which], knob, *self._home[which + 1 :])
                if not any(all(map(Knob.near, place, known)) for known in self._tried):
                    self._trial = which, up
                    self._tried.append(place)
                    return self._go(place)
            if self._looks or (not self._improved and self._factor <= self._pace.least_step):
                break
            self._factor = max(self._pace.least_step, self._factor / self._pace.least_step)
            self._todo, self._improved = self._every_way(), False
        self._trial, self._resting = None, True
        return self._go(self._home)

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
        off = abs(now.cost - self._home_cost) > OTHER * self._home_cost
        self._off = self._off + 1 if off or now.hit_share < self._usual - FALL else 0
        self._usual = max(now.hit_share, 0.9 * self._usual + 0.1 * now.hit_share)
        if self._off > 2:
            self._rest = self._pace.rest
            self._start()
            return None
        if not self._off:
            self._home_cost += 0.1 * (now.cost - self._home_cost)
        if self._periods < self._rest:
            return None
        self._rest = min(8 * self._pace.rest, 2 * self._rest)
        ways = self._every_way()
        self._turn += 1
        self._resting, self._looks, self._factor = False, True, self._pace.least_step
        self._todo, self._tried = [ways[self._turn % len(ways)]], [self._home]
        return self._next()
