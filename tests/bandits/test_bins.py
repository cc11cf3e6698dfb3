"""Algorithm 1 to the letter: blocks, bins, exploration, locking and the price of switching."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covey.bandits.bingreedy import AdaBinGreedy
from covey.bandits.bins import Bins
from covey.bandits.nightjar import Nightjar, NightjarV1
from covey.bandits.policy import Outcome, Situation


def literal(rounds: int) -> list[tuple[int, int, int, int]]:
    """Lines 3 and 19 to 25 as printed: (j, H, b, tau) at each round."""
    j, horizon, b, tau = 1, 1, 1, 1
    states = []
    for _ in range(rounds):
        states.append((j, horizon, b, tau))
        tau += 1
        if tau > math.sqrt(horizon):
            b, tau = b + 1, 1
            if b > math.sqrt(horizon):
                j += 1
                horizon, b = 2 ** (j - 1), 1
    return states


def test_bins_follow_algorithm_1() -> None:
    bins, states = Bins(), []
    for _ in range(5000):
        states.append((bins.block, bins.horizon, bins.bin, bins.counter))
        bins.advance()
    assert states == literal(5000)


class Draws:
    """A generator that explores when told, and counts what was asked."""

    def __init__(self, explore: bool, arm: int = 0) -> None:
        self.explore, self.arm, self.asked = explore, arm, 0

    def random(self) -> float:
        self.asked += 1
        return 0.0 if self.explore else 0.9999999

    def integers(self, high: int) -> int:
        assert high > self.arm
        return self.arm


def play(bandit: Nightjar, rows: int, latencies: dict[int, float], previous: int = 1, lag: int = 0) -> int:
    situation = Situation(rows, 5, previous, lag)
    depth = bandit.choose(situation)
    bandit.update(situation, depth, Outcome(latencies.get(depth, 1.0) * rows, rows))
    return depth


def test_the_arm_is_locked_for_its_bin_and_drawn_once() -> None:
    draws = Draws(explore=True)
    bandit = Nightjar(5, draws, lambda _lag, _rows: 0.0)  # type: ignore[arg-type]
    played, starts = [], []
    for at, (_, _, _, counter) in enumerate(literal(400)):
        draws.arm = at % 6
        starts.append(counter == 1)
        played.append(play(bandit, 3, {}))
    assert draws.asked == sum(starts)
    for at, start in enumerate(starts):
        assert played[at] == (at % 6 if start else played[at - 1])


def test_batch_sizes_have_bins_of_their_own() -> None:
    bandit = Nightjar(5, np.random.default_rng(0), lambda _lag, _rows: 0.0)
    for at in range(300):
        play(bandit, 1 + at % 3, {})
    expected = literal(101)[100]
    for rows in (1, 2, 3):
        bins = bandit.arms(rows).bins
        assert (bins.block, bins.horizon, bins.bin, bins.counter) == expected


def known(kind: type[Nightjar], latencies: list[float], switch: float) -> Nightjar:
    """A bandit at the start of an exploiting bin that has seen every arm at batch size 4."""
    bandit = kind(len(latencies) - 1, Draws(explore=False), lambda _lag, _rows: switch)  # type: ignore[arg-type]
    arms = bandit.arms(4)
    for depth, latency in enumerate(latencies):
        arms.record(depth, latency)
    arms.bins.bin = 2
    return bandit


@pytest.mark.parametrize("kind", [Nightjar, NightjarV1])
def test_switching_is_priced_from_0_to_positive_alone(kind: type[Nightjar]) -> None:
    latencies = [1.00, 0.95, 0.96]
    for previous, switch, best in [(0, 0.0, 1), (0, 0.06, 2), (0, 0.5, 0), (1, 0.5, 1), (2, 0.5, 1)]:
        bandit = known(kind, latencies, switch)
        assert bandit.choose(Situation(4, 2, previous, lag=9)) == best, (previous, switch)


def test_the_price_is_divided_by_gamma_and_asked_for_lag_and_batch() -> None:
    asked = []

    def switch(lag: int, rows: int) -> float:
        asked.append((lag, rows))
        return 0.3

    bandit = Nightjar(3, Draws(explore=False), switch)  # type: ignore[arg-type]
    arms = bandit.arms(4)
    for depth in range(4):
        arms.record(depth, 1.0 - 0.1 * depth)
    arms.bins.bin = 2
    bandit.choose(Situation(4, 3, 0, lag=77))
    assert asked == [(77, 4)]
    assert bandit.reason.predicted == pytest.approx([1.0, 0.9 + 0.3, 0.8 + 0.15, 0.7 + 0.1])


def test_v2_averages_latency_and_v1_goodput() -> None:
    """Times 1 and 3 against a steady 1.9: by mean latency 2 loses, by mean goodput (1 + 1/3) / 2 = 1 / 1.5 it wins."""
    for kind, best in ((Nightjar, 1), (NightjarV1, 0)):
        bandit = known(kind, [1.0, 1.9], 0.0)
        bandit.arms(4).record(0, 3.0)
        assert bandit.choose(Situation(4, 1, 1)) == best


def test_an_untried_arm_is_left_to_exploration() -> None:
    for kind in (Nightjar, NightjarV1):
        bandit = kind(3, Draws(explore=False, arm=3), lambda _lag, _rows: 0.0)  # type: ignore[arg-type]
        arms = bandit.arms(4)
        arms.record(2, 100.0)
        arms.bins.bin = 2
        assert bandit.choose(Situation(4, 3, 1)) == 2
        empty = kind(3, Draws(explore=False, arm=3), lambda _lag, _rows: 0.0)  # type: ignore[arg-type]
        empty.arms(4).bins.bin = 2
        assert empty.choose(Situation(4, 3, 1)) == 3, "nothing is known: a uniform draw"


def test_without_a_drafter_only_0_is_played_and_nothing_recorded() -> None:
    bandit = Nightjar(5, np.random.default_rng(0), lambda _lag, _rows: 0.0)
    for _ in range(50):
        situation = Situation(2, 0)
        assert bandit.choose(situation) == 0
        bandit.update(situation, 0, Outcome(1.0, 2))
    assert sum(bandit.arms(2).pulls) == 0
    assert bandit.arms(2).bins.block == 1


def test_catch_up_after_a_pause_is_not_counted_twice() -> None:
    bandit = Nightjar(1, Draws(explore=True, arm=1), lambda _lag, _rows: 0.0)  # type: ignore[arg-type]
    for previous, expected in ((0, 0.5), (1, 0.75)):
        situation = Situation(1, 1, previous, 10)
        bandit.update(situation, 1, Outcome(1.0, 1, catch_up_seconds=0.5))
        assert bandit.arms(1).latency[1] == pytest.approx(expected)


def test_ada_bingreedy_knows_neither_batch_sizes_nor_switching() -> None:
    bandit = AdaBinGreedy(5, np.random.default_rng(1))
    for at in range(100):
        situation = Situation(1 + at % 7, 5, 0, 1000)
        bandit.update(situation, bandit.choose(situation), Outcome(1.0, 1))
    bins = bandit.arms(0).bins
    assert (bins.block, bins.horizon, bins.bin, bins.counter) == literal(101)[100]
    assert bandit.exploration(9) == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", [Nightjar, NightjarV1])
def test_below_the_deepest_draft_the_arms_are_those_allowed(kind: type[Nightjar]) -> None:
    """Clipping would give the ceiling the draws and the merits of all that is deeper."""
    bandit = known(kind, [1.0, 0.7, 0.9, 0.5], 0.0)
    assert bandit.choose(Situation(4, 2, 1)) == 1, "the best of 0 to 2, not 3 cut to 2"
    assert bandit.choose(Situation(4, 3, 1)) == 1, "locked"
    bandit = known(kind, [1.0, 0.7, 0.9, 0.5], 0.0)
    assert bandit.choose(Situation(4, 3, 1)) == 3
    assert bandit.choose(Situation(4, 2, 1)) == 1, "what was locked is no longer to be had"
    explored = np.zeros(6)
    for seed in range(300):
        explored[kind(5, np.random.default_rng(seed), lambda _lag, _rows: 0.0).choose(Situation(4, 2))] += 1
    assert not explored[3:].any()
    assert explored[:3] == pytest.approx(100, abs=35)
