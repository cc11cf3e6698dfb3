"""Policies that draw their arm: EXP3 and EXP3Spec from estimates, NormalHedge from what it witnesses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from covey.bandits.drafters.banditspec import EXP3Spec
from covey.bandits.drafters.exp3 import EXP3, Drawn
from covey.bandits.drafters.hedge import NormalHedge
from tests.bandits.synthetic import always, play

GAMMA = 0.4


def seeded(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("bandit", [EXP3(5, seeded(), gamma=GAMMA), EXP3Spec(5, seeded())], ids=["exp3", "exp3spec"])
def test_probabilities_are_some_of_the_arms_that_serve_and_explore(bandit: Drawn) -> None:
    allowed = [[0, 1, 2, 3, 4], [1, 4], [3], [0, 2, 3]]
    for count in range(1500):
        arms = allowed[count % 4]
        probabilities = bandit.probabilities(arms)
        assert probabilities.sum() == pytest.approx(1.0)
        if isinstance(bandit, EXP3):
            assert probabilities.min() >= GAMMA / len(arms) - 1e-12
        arm = bandit.choose(arms)
        bandit.update(arm, 0.9 if arm == 2 else 0.1, 2)
    assert bandit.probabilities([0, 1, 2, 3, 4]).argmax() == 2


def test_exp3_is_algorithm_7() -> None:
    bandit, weights, rng = EXP3(3, seeded(), gamma=GAMMA), np.ones(3), np.random.default_rng(1)
    for _ in range(100):
        expected = (1 - GAMMA) * weights / weights.sum() + GAMMA / 3
        assert np.allclose(bandit.probabilities([0, 1, 2]), expected)
        arm = bandit.choose([0, 1, 2])
        reward = float(rng.random())
        weights[arm] *= math.exp(GAMMA * reward / expected[arm] / 3)
        bandit.update(arm, reward, 2)


def test_weights_stay_finite() -> None:
    """Algorithm 7's own would be e^1600 here."""
    bandit = EXP3(5, seeded(), gamma=GAMMA)
    for _ in range(20_000):
        bandit.update(2, 1.0, 2)
    assert bandit.probabilities([1, 2]).tolist() == pytest.approx([GAMMA / 2, 1 - GAMMA / 2])


def test_exp3spec_is_algorithm_5() -> None:
    bandit, losses, rng = EXP3Spec(3, seeded()), np.zeros(3), np.random.default_rng(1)
    for count in range(1, 100):
        weights = np.exp(-math.sqrt(math.log(3) / (count * 3)) * losses)
        assert np.allclose(bandit.probabilities([0, 1, 2]), weights / weights.sum())
        arm = bandit.choose([0, 1, 2])
        accepted = int(rng.integers(0, 6))
        losses[arm] += (5 + 1 - (accepted + 1)) / (5 * (weights / weights.sum())[arm])
        bandit.update(arm, accepted / 5, accepted + 1)


def test_an_estimate_divides_by_the_probability_among_the_arms_that_served() -> None:
    """Of two that serve each has 1/2, of five 1/5: the same reward of the same arm counts two and five times."""
    for arms, times in (([0, 1], 2.0), ([0, 1, 2, 3, 4], 5.0)):
        bandit = EXP3(5, seeded(), gamma=GAMMA)
        arm = bandit.choose(arms)
        bandit.update(arm, 0.6, 2)
        ratio = math.exp(GAMMA * 0.6 * times / 5)
        shares = (bandit.probabilities(range(5)) - GAMMA / 5) / (1 - GAMMA)
        assert shares[arm] / shares[(arm + 1) % 5] == pytest.approx(ratio)


def reference(regrets: np.ndarray) -> np.ndarray:
    """NormalHedge's weights, c by another way."""
    ahead = np.maximum(0.0, regrets)
    if not ahead.any():
        return np.full(len(regrets), 1 / len(regrets))
    scale = brentq(lambda c: np.exp(ahead**2 / (2 * c)).mean() - math.e, ahead.max() ** 2 / 60, ahead.max() ** 2 * 9)
    weights = ahead / scale * np.exp(ahead**2 / (2 * scale))
    return np.asarray(weights / weights.sum())


def test_hedge_is_normal_hedge() -> None:
    bandit, regrets, rng = NormalHedge(5, seeded()), np.zeros(5), np.random.default_rng(2)
    for _ in range(60):
        drawn = bandit.probabilities(range(5))
        assert np.allclose(drawn, reference(regrets), atol=1e-6)
        rewards = rng.random(5)
        regrets = regrets + rewards - drawn @ rewards
        bandit.witness(rewards.tolist())


def test_hedge_counts_what_is_known_alone() -> None:
    """Arm 2 is heard of last: until then it neither wins nor loses against the others."""
    bandit = NormalHedge(3, seeded())
    for _ in range(20):
        bandit.witness([0.6, 0.4, None])
    assert bandit.probabilities(range(3)).tolist() == [1.0, 0.0, 0.0]
    assert bandit.probabilities([1, 2]).tolist() == [0.5, 0.5]
    bandit.witness([None, None, None])
    for _ in range(20):
        bandit.witness([0.6, 0.4, 0.9])
    assert bandit.probabilities(range(3)).argmax() == 2


def test_hedge_needs_no_rounds_of_an_arm_to_know_it() -> None:
    """Full information: it drafts with one arm and moves to another at once, where bandits must try it first."""
    bandit = NormalHedge(8, seeded())
    for _ in range(8):
        bandit.update(0, 0.2, 2)
        bandit.witness([0.2] * 7 + [0.8])
    assert {bandit.choose(range(8)) for _ in range(20)} == {7}


def test_hedge_s_regret_stays_under_its_bound() -> None:
    """Theorem 1 of its paper, the leading term: sqrt(3 t (1 + ln K)), against sequences made to mislead it."""
    bandit, gained, totals = NormalHedge(4, seeded()), 0.0, np.zeros(4)
    for count in range(800):
        rewards = np.array([count // 100 % 2, 1 - count // 100 % 2, 0.5, count % 2], np.float64)
        gained += float(bandit.probabilities(range(4)) @ rewards)
        totals += rewards
        bandit.witness(rewards.tolist())
        assert totals.max() - gained <= math.sqrt(3 * (count + 1) * (1 + math.log(4)))


def test_hedge_switches_seldom_once_it_knows() -> None:
    played = play(NormalHedge(5, seeded()), always(0.45, 0.45, 0.75, 0.45, 0.45), rounds=100)
    assert played.switches <= 10
