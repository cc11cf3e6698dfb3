"""Policies in a closed loop, from made-up runs: their keys, and what counts as the best static choice; open loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.arrivals import Arrival
from loadtest.bench import loads
from loadtest.bench.policies import PolicyRuns, shown
from loadtest.bench.session import Session, Wanted
from loadtest.bench.statistics import interval
from loadtest.bench.work import Answer, Run

TOKENS = tuple(range(40))


def answered(seconds: float) -> Run:
    return Run((Answer(TOKENS, seconds, drafted=60, accepted=20),), seconds)


def made_up_runs(repetitions: int) -> PolicyRuns:
    """covey is as fast as fixed:2, the best; at concurrency 8 off is the best, and a tenth faster than covey."""
    measured = PolicyRuns()
    for concurrency, seconds in ((1, {"off": 2.0, "fixed:2": 1.0}), (8, {"off": 0.9, "fixed:2": 1.5})):
        for _ in range(repetitions):
            for name, each in {**seconds, "nightjar": 3.0, "adaptive": 1.0}.items():
                measured.runs[concurrency][name].append(answered(each))
    return measured


@pytest.mark.parametrize("repetitions", [1, 4])
def test_runs_have_the_keys_they_promise(repetitions: int) -> None:
    found = made_up_runs(repetitions).summary()
    assert found["points"]["1"]["adaptive_over_best_static"] == pytest.approx(1.0)
    assert found["points"]["8"]["adaptive_over_best_static"] == pytest.approx(0.9)
    assert found["min_adaptive_over_best_static"] == pytest.approx(0.9)
    assert set(found["points"]["1"]["picked"]) == {"fixed:2"}
    assert set(found["points"]["8"]["picked"]) == {"off"}
    assert found["points"]["1"]["depth"]["adaptive"] == pytest.approx(3.0), "60 drafted in the 20 rounds of a row"


def test_an_entrant_that_has_had_fewer_turns_shortens_the_comparison() -> None:
    measured = made_up_runs(3)
    measured.runs[1]["adaptive"].pop()
    found = measured.summary()["points"]["1"]
    assert found["tokens_per_second"]["off"]["repetitions"] == 2


def test_results_are_written_and_shown(tmp_path: Path) -> None:
    session = Session("policies", Wanted(tmp_path / "out.json"), Console(quiet=True))
    session.summarise = made_up_runs(2).summary
    result = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == result
    session.console.print(shown("policies", result["points"]))


def test_what_was_not_measured_is_null() -> None:
    found = PolicyRuns().summary()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_loads_are_scaled_to_what_can_be_served() -> None:
    recorded = [Arrival(float(at), 10, 10) for at in range(3000)]
    made = loads.around(10.0, 100.0, recorded, seed=1)
    assert len(made["azure"]) == pytest.approx(1000 * loads.MEAN, rel=0.01)
    assert max(made["azure"]) == pytest.approx(100.0, rel=0.05)
    peaks = made["two_peaks"]
    assert len(peaks) == pytest.approx(1000 * (loads.LOW + (loads.HIGH - loads.LOW) * 3 / 8), rel=0.15)
    crowded = sum(20 <= at < 30 for at in peaks)
    assert crowded > 5 * sum(45 <= at < 55 for at in peaks)
    assert made == loads.around(10.0, 100.0, recorded, seed=1)
    assert "azure" not in loads.around(10.0, 100.0, None, seed=1)


def test_a_poisson_load_has_its_rate() -> None:
    times = loads.poisson(5.0, 2000, seed=3)
    assert len(times) == 2000
    assert times[-1] == pytest.approx(400.0, rel=0.1)


def test_an_interval_is_of_the_mean() -> None:
    low, high = interval([0.9, 1.0, 1.1, 0.95, 1.05, 1.0, 0.98, 1.02])
    assert 0.9 < low < 1.0 < high < 1.1
