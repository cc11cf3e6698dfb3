"""EXP3, which draws its arm from estimates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covey.bandits.drafters.exp3 import EXP3

GAMMA = 0.4


def seeded(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def test_an_estimate_divides_by_the_probability_among_the_arms_that_served() -> None:
    """Of two that serve each has 1/2, of five 1/5: the same reward of the same arm counts two and five times."""
    for arms, times in (([0, 1], 2.0), ([0, 1, 2, 3, 4], 5.0)):
        bandit = EXP3(5, seeded(), gamma=GAMMA)
        arm = bandit.choose(arms)
        bandit.update(arm, 0.6, 2)
        ratio = math.exp(GAMMA * 0.6 * times / 5)
        shares = (bandit.probabilities(range(5)) - GAMMA / 5) / (1 - GAMMA)
        assert shares[arm] / shares[(arm + 1) % 5] == pytest.approx(ratio)
