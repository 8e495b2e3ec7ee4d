"""What an adapting join moves, what it sees, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import SpecError
from .machine import Machine

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
