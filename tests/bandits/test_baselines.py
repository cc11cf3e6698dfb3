"""The published behaviour of the other policies, flaws included."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from covey.bandits.banditspec import BanditSpec
from covey.bandits.dsd import DSD
from covey.bandits.fixed import Fixed, Table
from covey.bandits.linear import LinTS, LinUCB
from covey.bandits.policy import LengthPolicy, Outcome, Situation, Trials

DEPTH = 4


def seconds(rows: int, depth: int) -> float:
    return 0.01 + 0.001 * rows * (depth + 1) + 0.001 * depth


def rounds(policy: LengthPolicy, count: int, rate: float = 0.8, rows: int = 4, ceiling: int = DEPTH) -> list[int]:
    """Play `count` rounds of known cost and no luck; returns the depths."""
    depths = []
    for _ in range(count):
        situation = Situation(rows, ceiling, 1, 1, (("d", rows),))
        depth = policy.choose(situation)
        offered = [rows * 100 * rate**index for index in range(depth)]
        accepted = [rows * 100 * rate ** (index + 1) for index in range(depth)]
        tokens = round(100 * rows + sum(accepted))
        trials = Trials([round(count) for count in offered], [round(count) for count in accepted])
        outcome = Outcome(100 * seconds(rows, depth), tokens, trials={("d", False): trials} if depth else {})
        policy.update(situation, depth, outcome)
        depths.append(depth)
    return depths


def best(rate: float, rows: int) -> int:
    tokens = np.cumsum(rate ** np.arange(DEPTH + 1.0))
    return int(np.argmin([seconds(rows, depth) / tokens[depth] for depth in range(DEPTH + 1)]))


def test_fixed_and_table_stay_below_the_ceiling() -> None:
    assert Fixed(3).choose(Situation(4, 5)) == 3
    assert Fixed(3).choose(Situation(4, 2)) == 2
    table = Table({1: 5, 8: 2, 16: 0})
    assert [table.choose(Situation(rows, 5)) for rows in (1, 7, 8, 15, 16, 99)] == [5, 5, 2, 2, 0, 0]
    assert table.choose(Situation(1, 0)) == 0
    with pytest.raises(ValueError, match="batch 1"):
        Table({2: 3})


def test_banditspec_plays_every_arm_first_and_then_mostly_the_fastest() -> None:
    bandit = BanditSpec(DEPTH)
    played = rounds(bandit, 4000)
    assert sorted(played[: DEPTH + 1]) == list(range(DEPTH + 1))
    # The index never stops exploring arms that are a few percent apart; those far off it leaves.
    assert np.bincount(played[2000:]).argmax() == best(0.8, 4)
    assert rounds(BanditSpec(DEPTH), 5, ceiling=0) == [0] * 5


def test_banditspec_cannot_tell_batch_sizes_apart() -> None:
    bandit = BanditSpec(DEPTH)
    rounds(bandit, 2000, rows=1)
    assert bandit.choose(Situation(1, DEPTH)) == bandit.choose(Situation(32, DEPTH)) != best(0.8, 32)


def test_banditspec_has_old_and_new_rewards_on_one_scale() -> None:
    """Its index does not depend on when the fastest round came."""
    speeds = [(0, 2.0), (1, 1.0), (1, 3.0), (0, 8.0), (1, 4.0), (0, 1.0)]
    chosen = set()
    for order in itertools.permutations(speeds):
        bandit = BanditSpec(1)
        for depth, speed in order:
            bandit.update(Situation(1, 1), depth, Outcome(1.0 / speed, 1))
        chosen.add(bandit.choose(Situation(1, 1)))
    assert chosen == {0}


def linear_rounds(policy: LinUCB | LinTS) -> tuple[list[tuple[float, float]], list[float]]:
    """Contexts and rewards of depth 1, every one of which it was told of; depth 0 was played once."""
    contexts, rewards = [], []
    policy.update(Situation(32, 1), 0, Outcome(1.0, 32))
    for rows, speed in ((32, 1.0), (4, 1.5), (16, 0.8)):
        policy.update(Situation(rows, 1), 1, Outcome(1.0 / speed, rows))
        contexts.append((1.0, rows / 32))
        rewards.append(speed)
    return contexts, rewards


def papers_score(contexts: list[tuple[float, float]], rewards: list[float], x: np.ndarray) -> tuple[float, float]:
    """theta'x and sqrt(x' A^-1 x) with A = I + sum x x'."""
    phi = np.array(contexts)
    inverse = np.linalg.inv(np.eye(2) + phi.T @ phi)
    return float(x @ inverse @ phi.T @ np.array(rewards)), float(np.sqrt(x @ inverse @ x))


def test_linucb_scores_as_the_paper_does() -> None:
    policy, x = LinUCB(1), np.array((1.0, 8 / 32))
    mean, deviation = papers_score(*linear_rounds(policy), x)
    assert policy._scores(x)[1] == pytest.approx(mean + deviation)


def test_lints_draws_as_the_paper_does() -> None:
    """v = R sqrt(9 d ln(t / delta)) in the fifth round, four having taught."""

    class Ones:
        def standard_normal(self, count: int) -> np.ndarray:
            return np.ones(count)

    policy, x = LinTS(1, Ones(), noise=0.2), np.array((1.0, 8 / 32))  # type: ignore[arg-type]
    mean, deviation = papers_score(*linear_rounds(policy), x)
    assert policy._scores(x)[1] == pytest.approx(mean + 0.2 * math.sqrt(18 * math.log(5 / 0.05)) * deviation)


def test_dsd_finds_the_best_depth_when_its_model_holds() -> None:
    for rate in (0.5, 0.8, 0.9):
        for rows in (1, 4, 32):
            assert rounds(DSD(DEPTH), 200, rate, rows)[-1] == best(rate, rows), (rate, rows)
