"""The replay simulator: its world is what it says, and regret grows as the papers say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from covey.bandits.fixed import Fixed
from covey.bandits.tetris import Tetris
from covey.planner import policies
from covey.planner.switching import SwitchCosts
from loadtest.simulation.devices import environment
from loadtest.simulation.replay import Costs, Environment, World, log_spaced, replay


def test_measured_speed_is_the_expected() -> None:
    device = environment("card", noise=0.1)
    for rows, depth in ((1, 0), (8, 3), (32, 5)):
        rng = np.random.default_rng(0)
        seconds, tokens, _ = World(device, rng).expected(rows)
        result = replay(Fixed(depth), device, [rows] * 20000, rng)
        assert result.speed == pytest.approx(tokens[depth] / seconds[depth], rel=0.01)
        assert result.depths[rows][depth] == 20000


def test_the_oracle_has_no_regret_and_others_have_theirs() -> None:
    device, rng = environment("card", noise=0.0), np.random.default_rng(0)
    seconds, tokens, latencies = World(device, rng).expected(16)
    best = int(np.argmin(latencies))
    one = replay(Fixed(best), device, [16] * 100, rng)
    catch_up = device.costs.switch(device.lag_limit, 16)
    assert one.lost == pytest.approx(catch_up)
    assert one.switches == 1
    off = replay(Fixed(0), device, [16] * 100, rng, checkpoints=[10, 100])
    assert off.lost == pytest.approx(100 * (seconds[0] - tokens[0] * latencies[best]))
    assert off.loss == pytest.approx(100 * (latencies[0] - latencies[best]))
    assert [at for at, _, _ in off.checkpoints] == [10, 100]
    assert off.efficiency == pytest.approx(latencies[best] / latencies[0])
    assert off.slope(1) == pytest.approx(1.0)


def test_catch_up_is_paid_after_a_pause_and_grows_with_it() -> None:
    class Alternating(Fixed):
        def __init__(self, pause: int) -> None:
            super().__init__(1)
            self.rounds = itertools.count()
            self.pause = pause

        def choose(self, situation):  # type: ignore[no-untyped-def]  # noqa: ARG002
            return int(next(self.rounds) % (self.pause + 1) == self.pause)

    costs = Costs(lambda _rows, _tokens: 1.0, lambda _rows, _depth: 0.5, switch=lambda lag, rows: lag * rows)
    device = Environment(costs, ((0, (0.5,)),), noise=0.0, lag_limit=3)
    for pause, lag in ((1, 2), (2, 3), (9, 3)):
        result = replay(Alternating(pause), device, [2] * 10 * (pause + 1), np.random.default_rng(0))
        expected = 10 * (pause + 1.5) + 2 * (9 * lag + 3)  # the first drafting round meets requests never seen
        assert result.seconds == pytest.approx(expected)


def test_acceptance_changes_with_its_phases() -> None:
    device = Environment(environment("card").costs, ((0, (1.0,)), (10, (0.0,))), noise=0.0)
    result = replay(Fixed(1), device, [4] * 20, np.random.default_rng(0))
    assert result.tokens == 10 * 8 + 10 * 4


def test_ranking_needs_drafts() -> None:
    with pytest.raises(ValueError, match="cannot be replayed"):
        replay(Tetris(5), environment("card"), [1], np.random.default_rng(0))


def test_runs_are_reproducible() -> None:
    def run(seed: int) -> float:
        rng = np.random.default_rng(seed)
        policy = policies.make(policies.Setting("nightjar", 5, 64, rng, SwitchCosts()))
        return replay(policy, environment("card"), [1, 2, 4] * 500, rng).seconds

    assert run(1) == run(1) != run(2)


def test_regret_grows_as_the_papers_say() -> None:
    """From 10^3 rounds on: about T^0.5 for version 2 and T^0.75 for version 1; a static depth's is linear."""
    rounds = 60_000
    slopes = {}
    for name in ("nightjar", "nightjar-v1", "fixed:1"):
        found = []
        for seed in range(3):
            policy = policies.make(policies.Setting(name, 5, 64, np.random.default_rng(seed + 9), SwitchCosts()))
            result = replay(
                policy,
                environment("processor", 0.05),
                [16] * rounds,
                np.random.default_rng(seed),
                checkpoints=log_spaced(1000, rounds, 15),
            )
            found.append(result.slope(1000))
        slopes[name] = float(np.median(found))
    assert 0.4 < slopes["nightjar"] < 0.7, slopes
    assert 0.65 < slopes["nightjar-v1"] < 0.9, slopes
    assert slopes["fixed:1"] > 0.9, "linear, after the catch-up it begins with"
