"""Cost tables: read, saved, refused, and what a planner takes from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from covey.bandits.nightjar import Nightjar
from covey.bandits.policy import Situation
from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings
from covey.planner.build import build, measured
from covey.planner.cost_table import load_costs
from covey_client.costs.table import CostTable

COSTS = {
    "covey_costs": 1,
    "name": "test",
    "origin": "made up",
    "verify": [{"rows": 1, "tokens": tokens, "seconds": 0.02 + 0.001 * tokens} for tokens in (1, 2, 4, 8, 16, 32)],
    "overhead": [{"rows": 1, "seconds": 0.001}],
    "draft": {"d": [{"rows": 1, "depth": depth, "seconds": 0.003 * depth} for depth in (1, 2, 3)]},
    "switch": {"d": [{"lag": 512, "rows": 32, "seconds": 0.0243}]},
}


def test_a_cost_table_is_saved_as_it_is_loaded(tmp_path: Path) -> None:
    points = {"plain": [{"rows": 2, "seconds": 0.02}]}
    of_old = {"prefill": [{"tokens": 64, "seconds": 0.01}]}
    (tmp_path / "costs.json").write_text(json.dumps(COSTS | points | of_old))
    table = load_costs(tmp_path / "costs.json")
    table.save(tmp_path / "new" / "costs.json")
    assert json.loads((tmp_path / "new" / "costs.json").read_text()) == COSTS | points
    assert load_costs(tmp_path / "new" / "costs.json") == table


def test_a_planner_starts_from_a_cost_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    table, settings = load_costs(path), SpeculationSettings(max_depth=3)
    policy = build(settings, ("d",), max_rows=8, costs=table).policy
    policy.choose(Situation(1, 3, 1, 1, (("d", 1),)))
    assert policy.reason.predicted[0] == pytest.approx(0.022, rel=0.1), "the first round's, before any was measured"
    nightjar = build(replace(settings, policy="nightjar"), ("d",), max_rows=8, costs=table).policy
    assert isinstance(nightjar, Nightjar)
    assert nightjar._switch_cost(512, 32) == pytest.approx(0.0243)
    assert not caplog.records
    build(settings, ("other",), max_rows=8, costs=table)
    assert "Cost table test has no timings of other" in caplog.text


@pytest.mark.parametrize(
    ("choice", "names", "mine", "seconds"),
    [
        ("fixed", ("b", "a", "c"), ("b",), 0.02),
        ("fixed:a", ("b", "a", "c"), ("a",), 0.01),
        ("ucb-be:0.1", ("b", "a", "c"), ("b", "a", "c"), 0.02),
        ("fixed", ("c", "b"), ("c",), 0.0),  # no pause of its own was measured, and another's is not taken
    ],
)
def test_nightjar_prices_the_drafter_that_drafts_whatever_the_order_of_the_table(
    choice: str, names: tuple[str, ...], mine: tuple[str, ...], seconds: float
) -> None:
    table = CostTable("test", "made up", ((1, 1, 0.02),), (), {}, {"a": ((512, 32, 0.01),), "b": ((512, 32, 0.02),)})
    settings = SpeculationSettings(policy="nightjar", drafter_policy=choice)
    assert build(settings, names, costs=table).policy._switch_cost(512, 32) == seconds  # type: ignore[attr-defined]
    assert measured(settings, names) == mine


@pytest.mark.parametrize(
    "change",
    [{"covey_costs": 2}, {"verify": [{"rows": 1, "tokens": 1}]}, {"draft": []}, {"switch": {"d": [{"lag": 0}]}}],
)
def test_a_bad_cost_table_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS | change))
    with pytest.raises(SettingError, match=r"costs\.json"):
        load_costs(path)
    with pytest.raises(SettingError, match=r"missing\.json"):
        load_costs(tmp_path / "missing.json")
