"""The default policy against simulated devices: as good as the best static depth everywhere, and never stuck."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.bandits.dsd import DSD
from covey.bandits.nightjar import Nightjar
from covey.bandits.policy import LengthPolicy, Outcome, Situation, Trials
from covey.planner.adaptive import PLAIN, SHARE, Adaptive
from covey.planner.costs import RoundCosts
from covey.planner.expectations import Expectations
from covey.planner.switching import SwitchCosts
from covey_client.costs.table import CostTable
from loadtest.simulation.devices import DEVICES, environment
from loadtest.simulation.replay import Costs, Environment, World, replay


def adaptive() -> Adaptive:
    return Adaptive(5, 64, SwitchCosts())


def nightjar() -> Nightjar:
    return Nightjar(5, np.random.default_rng(0), lambda _lag, _batch: 0.0)


def situation(rows: int, ceiling: int = 5, previous: int = 1, lag: int = 1, **more: Any) -> Situation:
    return Situation(rows, ceiling, previous, lag, (("simulated", rows),), **more)


def settled(policy: Adaptive, asked: Situation) -> int:
    """What it chooses when it explores nothing."""
    policy._bank = 0.0
    return policy.choose(asked)


@pytest.mark.parametrize("rows", [1, 16, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 4, 8, 32, 64))])
@pytest.mark.parametrize("regime", DEVICES)
def test_at_least_097_of_the_best_static_depth_from_the_first_round_on(regime: str, rows: int) -> None:
    result = replay(adaptive(), environment(regime), [rows] * 1500, np.random.default_rng(rows))
    assert result.efficiency >= 0.97, result.depths


@pytest.mark.parametrize("regime", ["card", pytest.param("processor", marks=pytest.mark.slow)])
def test_a_wandering_batch_size_is_no_harder(regime: str) -> None:
    rng = np.random.default_rng(0)
    walk = np.clip(np.cumsum(rng.integers(-1, 2, 4000)) + 16, 1, 64).tolist()
    assert replay(adaptive(), environment(regime), walk, rng).efficiency >= 0.97


def test_what_one_batch_size_teaches_others_know() -> None:
    """Batch sizes met for the first time: the best depth within a few percent at once, as a rule (median of seeds)."""
    world_costs, met = environment("card"), (2, 7, 11, 23, 40)
    losses = []
    for seed in range(3):
        policy, rng = adaptive(), np.random.default_rng(seed)
        replay(policy, world_costs, [1, 4, 16, 48] * 400, rng)
        world = World(world_costs, rng)
        for rows in met:
            latencies = world.expected(rows)[2]
            policy.choose(situation(rows))
            depth = int(np.argmin(policy.reason.predicted))
            losses.append(latencies[depth] / min(latencies))
    for rows, loss in zip(met, np.median(np.reshape(losses, (3, -1)), axis=0)):
        assert loss < 1.04, rows


CARD, COMPUTE_BOUND = DEVICES["card"][0], DEVICES["compute"][0]
SPELLS = ((0, (0.9,) * 5), (600, (0.02,) * 5), (1800, (0.9,) * 5))


def late(policy: LengthPolicy, rows: int) -> float:
    """Share of rounds that drafted, long after acceptance has come back."""
    environment = Environment(CARD, SPELLS, 0.05)
    policy_rng = np.random.default_rng(2)
    replay(policy, environment, [rows] * 6000, policy_rng)
    after = replay(policy, Environment(CARD, SPELLS[2:3], 0.05), [rows] * 1000, policy_rng)
    depths = after.depths[rows]
    return 1.0 - depths[0] / sum(depths)


def test_the_deadlock_of_dsd_is_reproduced_and_absent_elsewhere() -> None:
    rows = 8
    assert late(DSD(5), rows) == 0.0
    assert late(nightjar(), rows) > 0.8
    assert late(adaptive(), rows) > 0.95


def test_drifting_acceptance_is_tracked() -> None:
    phases = tuple((at * 500, (0.3 + 0.6 * abs(1 - at / 6),) * 5) for at in range(12))
    drifting = Environment(CARD, phases, 0.05)
    mine = replay(adaptive(), drifting, [16] * 6000, np.random.default_rng(0))
    assert mine.efficiency >= 0.95
    assert mine.lost < replay(nightjar(), drifting, [16] * 6000, np.random.default_rng(0)).lost


def test_a_slower_device_is_noticed() -> None:
    """The curves change under the policy's feet: drafting pays no more."""
    policy = adaptive()
    rates = ((0, (0.7, 0.6, 0.5, 0.5, 0.5)),)
    rng = np.random.default_rng(0)
    before = replay(policy, Environment(CARD, rates, 0.05), [16] * 1500, rng)
    replay(policy, Environment(COMPUTE_BOUND, rates, 0.05), [16] * 1000, rng)
    after = replay(policy, Environment(COMPUTE_BOUND, rates, 0.05), [16] * 1000, rng)
    assert before.depths[16][0] < 100
    assert after.depths[16][0] > 900


def test_the_first_rounds_show_what_a_plain_one_takes() -> None:
    """Drafting pays here, so no later round would be plain."""
    policy, world = adaptive(), environment("memory")
    depths = replay(policy, world, [1] * PLAIN, np.random.default_rng(0)).depths[1]
    assert depths[0] == PLAIN
    replay(policy, world, [1] * 300, np.random.default_rng(1))
    plain = World(world, np.random.default_rng(0)).expected(1)[2][0]
    policy.choose(situation(1))
    assert policy.reason.predicted[0] == pytest.approx(plain, rel=0.1)


def test_exploration_never_stops_and_stays_within_its_share() -> None:
    """Drafting does not pay here: each probe catches up on all that was missed."""
    policy = adaptive()
    result = replay(policy, environment("compute"), [32] * 8000, np.random.default_rng(0))
    depths = result.depths[32]
    assert depths[0] > 7800
    policy._bank *= 1e6  # many rounds later, each of which pays its share in
    assert policy.choose(situation(32, previous=0, lag=999)) > 0
    assert result.lost / (result.lost + result.ideal) < SHARE


def test_greedy_and_random_rows_have_expectations_of_their_own() -> None:
    expectations, shares = Expectations(2, 8), (("d", 4),)
    greedy, random = Situation(4, 2, 1, 1, shares), Situation(4, 2, 1, 1, shares, sampled=(4,))
    for _ in range(100):
        for kind, right, situation in ((False, 4, greedy), (True, 1, random)):
            trials = {("d", kind): Trials([4, 4], [right, right])}
            expectations.update(situation, 1, Outcome(0.02, 4 + right, 0.005, 0.01, verified=8, trials=trials))
    high, low = (expectations.of(each).tokens[1] for each in (greedy, random))
    assert (high, low) == pytest.approx((8.0, 5.0), abs=0.1)
    half = Situation(4, 2, 1, 1, shares, sampled=(2,))
    assert expectations.of(half).tokens[1] == pytest.approx((high + low) / 2)


def test_exploring_pays_for_catch_up_that_no_estimate_knows() -> None:
    """The replay tells the policy of no switching costs, so only the rounds' own time shows them."""
    costs = Costs(
        verify=lambda _rows, tokens: 0.008 + 0.0003 * tokens,
        draft=lambda rows, depth: 0.002 + depth * (0.0007 + 0.00004 * rows),
        switch=lambda lag, rows: 0.00003 * lag * rows,
    )
    hidden = Environment(costs, ((0, (0.6, 0.5, 0.5, 0.5, 0.5)),), 0.05)
    result = replay(adaptive(), hidden, [16] * 4000, np.random.default_rng(0))
    assert result.depths[16][0] < 4000, "it goes on exploring"
    assert 1 - result.between(1000, 4000) < 2 * SHARE, ".035 if only the estimated price is paid"


def test_a_ceiling_is_kept_and_a_missing_drafter_is_no_lesson() -> None:
    policy = adaptive()
    replay(policy, environment("memory"), [4] * 300, np.random.default_rng(0))
    for ceiling in range(6):
        assert policy.choose(situation(4, ceiling)) <= ceiling
    assert policy.choose(Situation(4, 0, served=False)) == 0
    assert policy.reason.word == "no drafter"


def test_a_long_lag_delays_switching_on_and_a_short_one_does_not() -> None:
    def rounds_until_drafting(seconds: float) -> int:
        switch = SwitchCosts()
        policy = Adaptive(5, 64, switch)
        replay(policy, environment("card", 0.02), [2, 64] * 500, np.random.default_rng(0))
        replay(policy, environment("card", 0.02), [64] * 50, np.random.default_rng(0))
        assert policy.choose(Situation(64, 0)) == 0  # off, for want of a drafter
        for _ in range(200):
            switch.of("simulated").observe(200, 2, seconds)
        asked = situation(2, previous=0, lag=200)
        policy._bank = 0.0  # no exploring
        return next((count for count in range(1000) if policy.choose(asked)), 1000)

    assert rounds_until_drafting(0.001) <= 1
    assert 3 <= rounds_until_drafting(0.5) < 100


def test_beside_prefill_a_draft_is_weighed_against_the_time_it_adds() -> None:
    """On a card with room to spare drafts are nearly free; in a pass that prompts have filled they are not. Nor while
    many prompts wait: once they are read, a large batch emits more in the time that drafts for two rows take."""
    policy = adaptive()
    replay(policy, environment("card", 0.02), [2, 4, 8, 16, 32, 64] * 300, np.random.default_rng(0))
    few = [settled(policy, situation(2, prefill=8, joining=joining)) for joining in (0, 62)]
    assert few[0] >= 2
    assert few[1] == 0
    replay(policy, environment("card", 0.02), [8] * 100, np.random.default_rng(0))
    depths = [settled(policy, situation(8, prefill=prefill)) for prefill in (0, 8, 300)]
    assert depths[0] >= 4
    assert depths[0] >= depths[1] > depths[2]
    assert policy.choose(situation(8, 0, prefill=4000)) == 0, "prompts have taken the whole budget"
    assert policy.choose(situation(8, previous=0, lag=9)) == depths[0], "plain rounds go on as before"


@pytest.mark.parametrize("regime", ["card", pytest.param("processor", marks=pytest.mark.slow)])
def test_a_machine_that_is_slow_at_times_misleads_nobody(regime: str) -> None:
    """Everything takes longer for a while: no depth is to be blamed for being played just then."""
    costs, rates = DEVICES[regime]
    rounds = itertools.count()
    slow = 1.0

    def verify(rows: int, tokens: int) -> float:
        nonlocal slow
        slow = 1.6 if next(rounds) // 150 % 2 else 1.0
        return slow * costs.verify(rows, tokens)

    drifting = replace(costs, verify=verify, draft=lambda rows, depth: slow * costs.draft(rows, depth))
    rng = np.random.default_rng(0)
    played = replay(adaptive(), Environment(drifting, ((0, rates),), 0.1), [8] * 6000, rng).depths[8]
    latencies = World(environment(regime), rng).expected(8)[2]
    lost = sum(count * (latencies[depth] / min(latencies) - 1.0) for depth, count in enumerate(played)) / 6000
    assert lost < 0.02, played


def test_one_long_prompt_does_not_make_a_whole_batch_dear_to_catch_up() -> None:
    assert list(Situation(4, 5, 0, 100).lags()) == [("", 4, 100)]
    shares = (("one", 4), ("other", 2))
    assert list(Situation(6, 5, 0, 100, shares, missed=(121, 8)).lags()) == [("one", 4, 31), ("other", 2, 4)]


@pytest.mark.parametrize("per_token", [0.00002, 0.004])
def test_a_table_unlike_the_prior_is_believed(per_token: float) -> None:
    """Passes whose time is all in their tokens, or none of it: the first predictions are the table's."""
    cells = tuple((rows, n, 0.01 + per_token * n) for rows in (1, 4, 16) for n in (rows, 3 * rows, 6 * rows))
    draft = tuple((rows, depth, 0.001 * depth) for rows in (1, 16) for depth in (1, 5))
    curves = RoundCosts(5, 64, CostTable("steep", "made up", cells, (), {"d": draft}))
    for rows in (1, 4, 16):
        seconds = curves.predict(rows, (("d", rows),), tuple(rows * (depth + 1) for depth in range(6)))[0]
        assert seconds[0] == pytest.approx(0.01 + per_token * rows, rel=0.1)
        assert seconds[5] == pytest.approx(0.015 + per_token * 6 * rows, rel=0.1)
