"""The bars of `python -m loadtest.bench changes`: how soon `covey` follows, and its worth where nothing changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from covey.bandits.fixed import Fixed
from loadtest.bench import changes
from loadtest.bench.__main__ import main
from loadtest.bench.changes import BATCHES, COVEY, DEAR, DOWN_UP, POLICIES, SCENARIOS, UP, Phase, Run, play
from loadtest.simulation.replay import Costs, Environment, replay

MOST = {1: 60, 4: 60, 32: 30}  # rounds after a step down, by batch
SEEDS = 10


def runs(rows: int, phases: Sequence[Phase], seeds: int = SEEDS) -> list[Run]:
    return [play(COVEY, rows, phases, seed) for seed in range(seeds)]


def rounds(found: Sequence[Run], phase: Phase) -> float:
    return median(run.followed[phase.name].rounds for run in found)


def steady(found: Sequence[Run], phase: Phase) -> float:
    return float(np.mean([run.followed[phase.name].steady for run in found]))


@pytest.mark.parametrize("rows", BATCHES)
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
        found = play(COVEY, 1, [Phase(str(index), 85, rate) for index, rate in enumerate(rates)], seed)
        means.append(np.mean([efficiency for _, efficiency in found.curve]))
    assert median(means) > 0.935, "0.90 where changes are not looked for"


@pytest.mark.slow
@pytest.mark.parametrize("rows", BATCHES)
def test_the_bars_of_the_bench(rows: int) -> None:
    """Efficiency where nothing changes was 0.997 before changes were looked for, 0.994 where drafting does not pay."""
    for scenario, least in ((DOWN_UP, 0.992), (UP, 0.989), (DEAR, 0.992)):
        phases = SCENARIOS[scenario]
        found = runs(rows, phases)
        assert steady(found, phases[0]) >= least, scenario
        if scenario == DOWN_UP:
            assert rounds(found, phases[1]) <= MOST[rows]
            assert rounds(found, phases[2]) <= MOST[rows]
        else:
            assert rounds(found, phases[1]) < 1000, "seen by probes alone, or by errors of the cost curves"


def test_rounds_are_counted_to_the_first_window_that_is_fast_enough() -> None:
    """Depth 1 is best but for rounds 30 to 59, where drafting takes ten times as long."""
    costs = Costs(lambda _rows, _tokens: 1.0, lambda _rows, _depth: 0.1)
    dearer = ((0, 1.0), (30, 10.0), (60, 1.0))
    played = replay(
        Fixed(1), Environment(costs, ((0, (1.0,)),), 0.0, dearness=dearer), [1] * 100, np.random.default_rng(0)
    )
    assert played.between(0, 30) == pytest.approx(1.0)
    assert played.between(30, 60) == pytest.approx(2.0 / 2.0)
    off = replay(Fixed(0), Environment(costs, ((0, (1.0,)),), 0.0), [1] * 100, np.random.default_rng(0))
    assert off.between(0, 100) == pytest.approx(1.1 / 2)
    assert off.until(0.97, 0, 100, 10) == 100
    assert played.until(0.97, 5, 100, 10) == 0


def test_a_quick_run_has_the_keys_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SHORTER", 25)  # no phase is shorter than the window that is looked at
    out = tmp_path / "changes.json"
    assert main(["changes", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["emulated"], found["clock"], found["seeds"]) == (True, "virtual", 1)
    for scenario, phases in SCENARIOS.items():
        for rows in map(str, BATCHES):
            for policy in POLICIES:
                cell = found["scenarios"][scenario][rows][policy]
                assert set(cell["phases"]) == {phase.name for phase in phases}
                for phase in cell["phases"].values():
                    assert phase["rounds"]["repetitions"] == 1
                    assert 0 < phase["efficiency_meanwhile"] <= 1
                    assert 0 < phase["steady_efficiency"] <= 1
    assert (tmp_path / "changes.png").read_bytes().startswith(b"\x89PNG")
