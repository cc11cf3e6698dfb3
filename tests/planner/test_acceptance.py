"""Acceptance under sudden changes: followed within tens of trials, and nothing moves without one."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from covey.planner.acceptance import MEMORY, Acceptance

DEPTH = 5


def feed(acceptance: Acceptance, rng: np.random.Generator, rate: float, rounds: int, rows: int, depth: int) -> int:
    """Rounds of so many rows; returns how often what was known was dropped."""
    drops = 0
    for _ in range(rounds):
        survivors = [rows]
        for _ in range(depth):
            survivors.append(int(rng.binomial(survivors[-1], rate)))
        before = acceptance._offered[0]
        acceptance.update(survivors[:-1], survivors[1:])
        drops += acceptance._offered[0] < before * (1.0 - rows / MEMORY) - 1e-9
    return drops


def rounds_to_follow(before: float, after: float, rows: int, depth: int, seed: int) -> int:
    """Until tokens per round of the deepest draft are within a fifth of the truth, from well above or below it."""
    acceptance, rng = Acceptance(DEPTH), np.random.default_rng(seed)
    feed(acceptance, rng, before, 4 * int(MEMORY) // rows, rows, depth)
    truth = sum(after**index for index in range(DEPTH + 1))
    for count in range(1000):
        if abs(acceptance.expected()[0][DEPTH] / truth - 1.0) < 0.2:
            return count
        feed(acceptance, rng, after, 1, rows, depth)
    return 1000


@pytest.mark.parametrize(("rows", "most"), [(1, 30), (4, 10), (32, 2)])
@pytest.mark.parametrize(("before", "after"), [(0.8, 0.3), (0.3, 0.8)])
def test_a_sudden_change_is_followed_within_tens_of_trials(before: float, after: float, rows: int, most: int) -> None:
    assert median(rounds_to_follow(before, after, rows, DEPTH, seed) for seed in range(11)) <= most


def test_first_positions_speak_for_later_ones_that_are_not_looked_at() -> None:
    """What was learnt of depth 5 is of the past once drafts of one token are accepted as never before."""
    for before, after in ((0.15, 0.85), (0.85, 0.15)):
        acceptance, rng = Acceptance(DEPTH), np.random.default_rng(0)
        feed(acceptance, rng, before, 2000, 4, DEPTH)
        feed(acceptance, rng, after, 30, 4, 1)
        assert acceptance.rates() == pytest.approx([after] * DEPTH, abs=0.12)


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("rows", "rounds"), [(1, 20000), (32, 4000)])
def test_chance_alone_moves_nothing(rate: float, rows: int, rounds: int) -> None:
    acceptance, rng = Acceptance(DEPTH), np.random.default_rng(1)
    feed(acceptance, rng, rate, 200, rows, DEPTH)
    assert feed(acceptance, rng, rate, rounds, rows, DEPTH) == 0
    assert acceptance.rates()[0] == pytest.approx(rate, abs=0.04)
