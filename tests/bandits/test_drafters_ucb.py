"""UCB over drafters, to the letter of its formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.bandits.synthetic import DEPTH, always, make, play

History = list[tuple[int, float]]


def ucb(history: History, arm: int, beta: float) -> float:
    rewards = [reward for played, reward in history if played == arm]
    return float(np.mean(rewards)) + beta * math.sqrt(2 * math.log(len(history)) / len(rewards))


def discounted(history: History, arm: int, beta: float, gamma: float) -> float:
    weights = [gamma ** (len(history) - 1 - index) for index in range(len(history))]
    count = sum(weight for weight, (played, _) in zip(weights, history) if played == arm)
    total = sum(weight * reward for weight, (played, reward) in zip(weights, history) if played == arm)
    return total / count + beta * math.sqrt(2 * math.log(sum(weights)) / count)


def windowed(history: History, arm: int, beta: float, window: int) -> float:
    recent = history[-window:]
    return ucb(recent, arm, beta) if any(played == arm for played, _ in recent) else math.inf


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("ucb-bd:0.3", lambda history, arm: ucb(history, arm, 0.3)),
        ("ucb-be", lambda history, arm: ucb(history, arm, 0.01)),
        ("ucb-bd-theorem", lambda history, arm: ucb(history, arm, DEPTH**-0.5)),
        ("d-ucb:0.2,0.8", lambda history, arm: discounted(history, arm, 0.2, 0.8)),
        ("sw-ucb:0.2,12", lambda history, arm: windowed(history, arm, 0.2, 12)),
    ],
)
def test_the_index_is_the_formula(name: str, index: Callable[[History, int], float]) -> None:
    rng, bandit, history = np.random.default_rng(3), make(name, arms=4), list[tuple[int, float]]()
    for count in range(150):
        arm = bandit.choose(range(4))
        if count < 4:
            assert arm == count  # each once
        else:
            indices = [index(history, each) for each in range(4)]
            assert indices[arm] == pytest.approx(max(indices), abs=1e-9)
        reward = float(rng.random() * (0.4 + 0.1 * arm))
        bandit.update(arm, reward, 2)
        history.append((arm, reward))
    assert len({arm for arm, _ in history[75:]}) >= (1 if name == "ucb-be" else 2)


@pytest.mark.parametrize("window", [3, 4, 12])
def test_an_arm_that_left_the_window_is_played_and_nothing_is_divided_by_zero(window: int) -> None:
    played = play(make(f"sw-ucb:0.01,{window}", arms=3), always(0.9, 0.2, 0.2), rounds=80).arms
    for first in range(80 - window - 2):  # two may have left at once
        assert set(played[first : first + window + 2]) == {0, 1, 2}
