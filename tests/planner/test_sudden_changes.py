"""How soon `covey` follows sudden changes, and its worth where nothing changes, replayed on the emulated 7B pair's
cost table with noise.

The oracle knows the device and the acceptance of the moment, and resumes for nothing. A change is followed after as
many rounds as pass before the first 100 in a row at 97 % of its speed; where there are none in the phase, the phase's
length stands. A seed is one run through all phases.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median

import numpy as np
import pytest

from covey.planner import policies
from covey.planner.switching import SwitchCosts
from covey_client.costs.surface import Surface
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.simulation.replay import Costs, Environment, Replay, replay

DEPTH, MAX_ROWS, NOISE = 5, 64, 0.08
SHARE, WINDOW = 0.97, 100
MOST = {1: 60, 4: 60, 32: 30}  # rounds after a step down, by batch
SEEDS = 10


def play(rows: int, phases: Sequence[tuple[int, float]], seed: int) -> tuple[Replay, list[tuple[int, int]]]:
    """Replay phases of so many rounds, each with its rate of acceptance, with a policy that has learnt nothing before.
    Return the first and last round of each phase as well."""
    starts = [0, *accumulate(rounds for rounds, _ in phases)]
    rates = tuple((start, (rate,) * DEPTH) for start, (_, rate) in zip(starts, phases))
    world, choices = np.random.default_rng(seed).spawn(2)
    policy = policies.make(policies.Setting("adaptive", DEPTH, MAX_ROWS, choices, SwitchCosts()))
    return replay(policy, Environment(device(), rates, NOISE), [rows] * starts[-1], world), list(pairwise(starts))


@functools.cache
def device() -> Costs:
    """The first emulated pair's, with its first drafter."""
    table, name = PAIRS[0].table, PAIRS[0].drafters[0]
    overhead = Surface((1, rows, seconds) for rows, seconds in table.overhead)
    return Costs(
        verify=functools.cache(Surface(table.verify)),
        draft=functools.cache(Surface(table.draft[name])),
        overhead=functools.cache(lambda rows: overhead(1, rows)),
        switch=functools.cache(Surface(table.switch[name])),
    )


@pytest.mark.parametrize("rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (4, 32))])
def test_a_step_down_is_followed_and_so_is_the_way_back(rows: int) -> None:
    """Drafting has gone on, so the way back is seen as soon."""
    late = []
    for seed in range(SEEDS):
        played, (_, down, up) = play(rows, [(800 if rows == 1 else 400, 0.8), (200, 0.3), (200, 0.8)], seed)
        late.append([played.until(SHARE, *span, WINDOW) for span in (down, up)])
    assert np.median(late, axis=0).max() <= MOST[rows]


def test_a_drafter_is_not_given_up_for_one_bad_request() -> None:
    """One caller whose requests, of 85 rounds each, suit the drafter well, badly or not at all."""
    means = []
    for seed in range(3):
        draws = np.random.default_rng(seed)
        rates = np.clip(0.6 + draws.uniform(-0.45, 0.45, 40), 0.05, 0.97).tolist()
        played, _ = play(1, [(85, rate) for rate in rates], seed)
        means.append(np.mean([played.between(at, at + 50) for at in range(0, 85 * len(rates), 50)]))
    assert median(means) > 0.935, "0.90 where changes are not looked for"
