"""Totals of a planner's choices, as metrics take them."""

from __future__ import annotations

import math

import pytest

from covey.bandits.policy import Reason
from covey.planner.round_planner import PlannerTotals


def total(totals: PlannerTotals, metric: str, **labels: str) -> float:
    return sum(value for name, found, value in totals.figures() if name == metric and found == labels)


def test_choices_are_counted_by_depth_and_reason() -> None:
    totals = PlannerTotals()
    best, explored = Reason("best", (0.3, 0.1, 0.2)), Reason("explore", (0.3, 0.1, 0.2))
    totals.add(1, best, ceiling=2, drafted=True, tokens=10, seconds=1.5)
    totals.add(1, best, ceiling=2, drafted=True, tokens=10, seconds=None)
    totals.add(2, explored, ceiling=2, drafted=True, tokens=20, seconds=3.0)
    totals.add(0, Reason("no drafter"), ceiling=0, drafted=False, tokens=4, seconds=1.0)
    totals.draft({("code", "best"): 3, ("general", "explore"): 1})
    totals.draft({("code", "best"): 2})
    assert total(totals, "covey_planner_rounds_total", depth="1", why="best") == 2
    assert total(totals, "covey_planner_rounds_total", depth="2", why="explore") == 1
    assert total(totals, "covey_planner_rounds_total", depth="0", why="no drafter") == 1
    assert total(totals, "covey_planner_switches_total", to="on") == 1
    assert total(totals, "covey_planner_switches_total", to="off") == 1
    assert total(totals, "covey_planner_predicted_seconds_total") == pytest.approx(10 * 0.1 + 20 * 0.2)
    assert total(totals, "covey_planner_observed_seconds_total") == pytest.approx(4.5)
    assert total(totals, "covey_planner_regret_seconds_total") == pytest.approx(20 * 0.1)
    assert total(totals, "covey_drafter_chosen_total", drafter="code", why="best") == 5
    # Nothing is lost to a depth that was not to be had or never played.
    totals.add(1, Reason("best", (0.3, 0.2, 0.1)), ceiling=1, drafted=True, tokens=10, seconds=1.0)
    totals.add(2, Reason("explore", (0.3, 0.2, math.inf)), ceiling=2, drafted=True, tokens=10, seconds=1.0)
    assert total(totals, "covey_planner_regret_seconds_total") == pytest.approx(20 * 0.1)
    assert total(totals, "covey_planner_observed_seconds_total") == pytest.approx(5.5)
