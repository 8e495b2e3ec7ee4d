"""The hill climb that adapts a join: pure decisions on numbers, on costs that are formulas here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from semistream.errors import SpecError
from semistream.join.adapt.climb import Climber, Knob, Pace, Period

Cost = Callable[..., float]
ROWS = 10_000


def single_peak(best: float) -> Cost:
    """Least at `best`, twice as much where the odds are ten times as large or small."""

    def cost(share: float, read: float = 1.0) -> float:
        odds = math.log10(share / (1 - share)) - math.log10(best / (1 - best))
        return 1e-5 * (1 + odds**2) * (1 + math.log10(read) ** 2)

    return cost


class World:
    """A join in numbers: its cost follows from the knobs, with noise; its cache fills slowly."""

    def __init__(
        self,
        cost: Cost,
        knobs: list[Knob],
        noise: float = 0.0,
        seed: int = 1,
        proposal: tuple[float, ...] | None = None,
    ) -> None:
        self.cost, self.noise, self.rng = cost, noise, random.Random(seed)
        self.asked = 0
        self.proposal = proposal
        self.climber = Climber(knobs, Pace(), self._propose)
        self.filled = 0.0  # of the cache's share
        self.hits = 0.6  # of rows, with a full cache
        self.moves = self.periods = 0
        self.spent: list[float] = []

    def _propose(self, _: Period) -> tuple[float, ...] | None:
        self.asked += 1
        return self.proposal

    def run(self, periods: int, until_rest: bool = False) -> World:
        for _ in range(periods):
            share = self.climber.values[0]
            cold = max(0.0, 1 - self.filled / share)
            self.filled = min(share, max(self.filled, 0.0) + 0.6 * (share - self.filled))
            if self.filled > 0.98 * share:
                self.filled = share
            cost = self.cost(*self.climber.values) * (1 + cold)
            cost *= 1 + self.noise * (self.rng.random() - 0.5) * 2
            self.spent.append(cost)
            hits = int(ROWS * self.hits * (1 - cold))
            self.periods += 1
            self.moves += self.climber.see(Period(ROWS, ROWS * cost, hits)) is not None
            if until_rest and self.climber.resting:
                break
        return self

    @property
    def loss(self) -> float:
        """Of the place where it is, against the best share."""
        shares = [i / 200 for i in range(2, 190)]
        rest = self.climber.values[1:]
        return 1 - min(self.cost(s, *rest) for s in shares) / self.cost(*self.climber.values)


def share_at(value: float) -> Knob:
    return Knob(value, 0.01, 0.95, share=True)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("best", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("start", [0.02, 0.5, 0.9])
def test_it_finds_the_best_share_from_anywhere(start, best, noise) -> None:
    world = World(single_peak(best), [share_at(start)], noise).run(150, until_rest=True)
    assert world.climber.resting
    assert world.loss < 0.1


@pytest.mark.parametrize("start", [(0.02, 0.05), (0.9, 0.05), (0.9, 20.0)])
def test_it_finds_the_best_of_two_knobs(start) -> None:
    share, read = start
    knobs = [share_at(share), Knob(read, 0.01, 50.0)]
    world = World(single_peak(0.3), knobs, noise=0.02).run(200, until_rest=True)
    assert world.climber.resting
    assert world.loss < 0.1
    assert 1 / 3 < world.climber.values[1] < 3


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_make_it_wander(seed) -> None:
    """Where all places are alike it stays where it is, however noisy periods are."""
    world = World(lambda share: 1e-5, [share_at(0.3)], noise=0.1, seed=seed)
    world.run(300, until_rest=True)
    assert world.climber.values[0] == pytest.approx(0.3, rel=0.8)


def test_at_rest_it_costs_little() -> None:
    """At most one period in twenty is spent away from home."""
    world = World(single_peak(0.3), [share_at(0.3)], noise=0.02).run(150, until_rest=True)
    home, away = world.climber.values, 0
    for _ in range(1_000):
        world.run(1)
        away += world.climber.values != home
    assert away <= 50
    assert world.climber.values == home


def test_it_moves_again_when_hits_fall() -> None:
    world = World(single_peak(0.1), [share_at(0.5)]).run(150, until_rest=True)
    assert world.loss < 0.1
    world.cost, world.hits, world.filled = single_peak(0.7), 0.3, 0.0
    world.run(8)
    assert not world.climber.resting
    world.run(150, until_rest=True)
    assert world.loss < 0.1


def test_it_moves_again_when_the_cost_changes_for_good() -> None:
    world = World(single_peak(0.7), [share_at(0.5)]).run(150, until_rest=True)
    usual = world.cost
    for _ in range(2):  # not at a single slow period
        world.cost = lambda share: 3 * usual(share)
        world.run(1)
        world.cost = usual
        world.run(5)
        assert world.climber.resting
    world.cost = lambda share: 3 * single_peak(0.1)(share)
    world.run(200)
    assert world.loss < 0.1


def test_a_cold_cache_is_not_judged() -> None:
    """A larger cache is worse until it is full: a climber in a hurry would go back at once."""

    def rising(share: float) -> float:
        return 1e-5 / share

    world = World(rising, [share_at(0.1)]).run(100, until_rest=True)
    assert world.climber.values[0] > 0.8


def test_a_hopeless_place_is_left_at_once() -> None:
    world = World(lambda share: 1e-5 if share <= 0.31 else 1e-3, [share_at(0.3)]).run(40)
    assert sum(cost > 1e-4 for cost in world.spent) <= 2 * 2  # two periods per factor


# --- proposals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.02, 0.9])
def test_a_good_proposal_is_tried_first(start) -> None:
    world = World(single_peak(0.3), [share_at(start)], proposal=(0.25,)).run(100, until_rest=True)
    assert world.loss < 0.02
    alone = World(single_peak(0.3), [share_at(start)]).run(150, until_rest=True)
    assert world.periods < 0.6 * alone.periods
    assert world.asked <= 2


@pytest.mark.parametrize("start", [0.2, 0.45])
def test_a_bad_proposal_is_given_up(start) -> None:
    world = World(single_peak(0.3), [share_at(start)], proposal=(0.94,)).run(100, until_rest=True)
    assert world.loss < 0.05


def test_a_proposal_that_is_home_saves_the_large_steps() -> None:
    seen: set[float] = set()

    def cost(share: float) -> float:
        seen.add(round(share, 3))
        return single_peak(0.3)(share)

    World(cost, [share_at(0.3)], proposal=(0.3,)).run(100, until_rest=True)
    assert len(seen) == 3  # home, and a small step up and down


def test_a_proposal_of_nothing() -> None:
    """Very little of a cache is worse than none."""
    assert Knob(0.3, 0.1, 0.95, share=True).at(0.02).value == 0.0
    assert Knob(0.3, 0.1, 0.95, share=True).at(0.08).value == 0.1
    assert Knob(0.0, 0.1, 0.95, share=True).moved(True, 1.5).value == 0.1


def test_hot_keys_that_move_while_at_rest_are_waited_for() -> None:
    """The cost comes back when the cache has recovered: there is nothing to look for."""
    world = World(single_peak(0.3), [share_at(0.3)], proposal=(0.3,)).run(100, until_rest=True)
    world.run(5)
    home, moves = world.climber.values, world.moves
    world.filled = 0.0
    world.run(20)
    assert max(world.spent[-20:]) > 1.3 * world.spent[-1]
    assert (world.climber.values, world.moves) == (home, moves)
    assert world.climber.resting


def test_hot_keys_that_move_while_a_place_is_tried_do_not_count_against_it() -> None:
    world = World(single_peak(0.3), [share_at(0.9)], proposal=(0.3,))
    while world.climber.values[0] != 0.3:
        world.run(1)
    world.run(3)
    world.filled = 0.0
    world.run(60, until_rest=True)
    assert world.loss < 0.05


def test_bounds_are_kept() -> None:
    seen: list[float] = []

    def cost(share: float) -> float:
        seen.append(share)
        return 1e-5 / share

    World(cost, [Knob(0.2, 0.1, 0.6, share=True)]).run(100)
    assert min(seen) >= 0.1
    assert max(seen) == 0.6


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"step": 1.2}, {"least_step": 1.0}, {"rest": -1}])
def test_a_pace_that_cannot_be(wrong) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        Pace(**wrong)
