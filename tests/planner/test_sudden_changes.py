"""How soon `covey` follows sudden changes, and its worth where nothing changes, replayed on the emulated 7B pair's
cost table with noise.

The oracle knows the device and the acceptance of the moment, and resumes for nothing. A change is followed after as
many rounds as pass before the first 100 in a row at 97 % of its speed; where there are none in the phase, the phase's
length stands. A seed is one run through all phases.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Phase:
    """So many rounds alike."""

    name: str
    rounds: int
    rate: float  # of acceptance, at each position
    dearness: float = 1.0  # what drafting takes, in times of the cost table's


@dataclass(frozen=True)
class Run:
    """One seed."""

    played: Replay
    spans: dict[str, tuple[int, int]]  # of rounds, by phase

    def rounds(self, phase: Phase) -> int:
        """Until it is as fast as it should be."""
        return self.played.until(SHARE, *self.spans[phase.name], WINDOW)


def play(rows: int, phases: Sequence[Phase], seed: int) -> Run:
    """One run of a policy that has learnt nothing before."""
    starts = [0, *accumulate(phase.rounds for phase in phases)]
    environment = Environment(
        device(),
        tuple((start, (phase.rate,) * DEPTH) for start, phase in zip(starts, phases)),
        NOISE,
        dearness=tuple((start, phase.dearness) for start, phase in zip(starts, phases)),
    )
    world, choices = np.random.default_rng(seed).spawn(2)
    policy = policies.make(policies.Setting("adaptive", DEPTH, MAX_ROWS, choices, SwitchCosts()))
    played = replay(policy, environment, [rows] * starts[-1], world)
    return Run(played, {phase.name: span for phase, span in zip(phases, pairwise(starts))})


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


def runs(rows: int, phases: Sequence[Phase], seeds: int = SEEDS) -> list[Run]:
    return [play(rows, phases, seed) for seed in range(seeds)]


def rounds(found: Sequence[Run], phase: Phase) -> float:
    return median(run.rounds(phase) for run in found)


@pytest.mark.parametrize("rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (4, 32))])
def test_a_step_down_is_followed_and_so_is_the_way_back(rows: int) -> None:
    before, down, up = Phase("before", 800 if rows == 1 else 400, 0.8), Phase("down", 200, 0.3), Phase("up", 200, 0.8)
    found = runs(rows, (before, down, up))
    assert rounds(found, down) <= MOST[rows]
    assert rounds(found, up) <= MOST[rows], "drafting has gone on, so it is seen as soon"


def test_a_drafter_is_not_given_up_for_one_bad_request() -> None:
    """One caller whose requests, of 85 rounds each, suit the drafter well, badly or not at all."""
    means = []
    for seed in range(3):
        draws = np.random.default_rng(seed)
        rates = np.clip(0.6 + draws.uniform(-0.45, 0.45, 40), 0.05, 0.97).tolist()
        found = play(1, [Phase(str(index), 85, rate) for index, rate in enumerate(rates)], seed)
        means.append(np.mean([found.played.between(at, at + 50) for at in range(0, 85 * len(rates), 50)]))
    assert median(means) > 0.935, "0.90 where changes are not looked for"
