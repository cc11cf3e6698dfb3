"""Sequential halving and PETC keep the better half, end with one arm, and switch a bounded number of times."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.bandits.synthetic import make

# Arms that survive, phase by phase, down to one.
PHASES = {1: [], 2: [2], 3: [3, 2], 4: [4, 2], 5: [5, 3, 2], 6: [6, 3, 2], 7: [7, 4, 2], 8: [8, 4, 2]}


@pytest.mark.parametrize(("arms", "phases"), PHASES.items())
@pytest.mark.parametrize("period", [1, 3])
def test_phases_halve_and_leave_the_best(arms: int, phases: list[int], period: int) -> None:
    bandit, played = make(f"sh:{period}", arms=arms), list[int]()
    for _ in range(sum(phases) * period + 20):
        arm = bandit.choose(range(arms))
        played.append(arm)
        bandit.update(arm, 0.1 + 0.1 * arm, 2)  # the last arm is the best, and no luck
    start = 0
    for size in phases:
        rounds = played[start : start + size * period]
        assert sorted(set(rounds)) == list(range(arms - size, arms))  # the upper part of the arms
        assert all(rounds.count(arm) == period for arm in set(rounds))
        assert sum(one != other for one, other in itertools.pairwise(rounds)) == size - 1
        start += size * period
    assert set(played[start:]) == {arms - 1}


@pytest.mark.parametrize("arms", [2, 5, 8])
@pytest.mark.parametrize("length", [100, 1000])
def test_petc_explores_for_its_tokens_and_commits(arms: int, length: int) -> None:
    """c ln B in equal shares of phases and arms; a turn ends with the round that fills it."""
    c, emits, phases = 20.0, 3, PHASES[arms]
    bandit, played = make(f"petc:{c}", arms=arms, max_tokens=length), list[int]()
    for _ in range(200):
        played.append(bandit.choose(range(arms)))
        bandit.update(played[-1], 0.1 + 0.1 * played[-1], emits)
    turns = [math.ceil(c * math.log(length) / (len(phases) * size) / emits) for size in phases]
    explored = sum(size * turn for size, turn in zip(phases, turns))
    assert sorted(set(played[: phases[0] * turns[0]])) == list(range(arms))
    assert set(played[explored:]) == {arms - 1}
    assert played[explored - 2 * turns[-1] : explored].count(arms - 2) == turns[-1]
    assert c * math.log(length) <= emits * explored <= c * math.log(length) + emits * sum(phases)


def test_phases_judge_by_their_own_rounds() -> None:
    """As published: an arm that was lucky in the first phase is judged anew in the next."""
    bandit = make("sh", arms=3)
    for arm, reward in [(0, 1.0), (1, 0.2), (2, 0.6)]:
        bandit.update(arm, reward, 1)
    for arm, reward in [(2, 0.6), (0, 0.5)]:
        bandit.update(arm, reward, 1)
    assert [bandit.choose(range(3)) for _ in range(3)] == [2, 2, 2]


def test_an_arm_that_does_not_serve_keeps_its_turn() -> None:
    bandit = make("sh", arms=4)
    for expected in (0, 1, 2):
        assert bandit.choose([0, 1, 2]) == expected
        bandit.update(expected, 0.5 - 0.1 * expected, 1)
    for _ in range(5):  # the phase waits for arm 3; the best so far stands in, and that is no part of the phase
        assert bandit.choose([0, 1, 2]) == 0
        bandit.update(0, 0.5, 1)
    assert bandit.choose(range(4)) == 3
    bandit.update(3, 0.9, 1)
    assert bandit.choose(range(4)) == 3  # the second phase, begun by the arm that has just drafted
    bandit.update(3, 0.9, 1)
    assert bandit.choose(range(4)) == 0
    bandit.update(0, 0.5, 1)
    assert bandit.choose(range(4)) == 3
    assert bandit.choose([0, 1, 2]) == 0  # the survivor is gone: the best of the others by all their rounds
    bandit.update(0, 0.0, 1)
    assert bandit.choose(range(4)) == 3
