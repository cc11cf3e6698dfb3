"""What the planner estimates: curves, acceptance, the price of switching, corrections."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.bandits.length import DraftCall, Situation
from covey.bandits.nightjar import Nightjar
from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings
from covey.planner.acceptance import Acceptance
from covey.planner.build import build, measured
from covey.planner.cost_table import load_costs
from covey.planner.costs import RoundCosts
from covey.planner.switching import SwitchCost
from covey_client.costs.table import CostTable


def test_acceptance_by_position() -> None:
    rng, acceptance = np.random.default_rng(0), Acceptance(4)
    rates = (0.9, 0.7, 0.5, 0.3)

    def rounds(count: int, rates: tuple[float, ...], depth: int = 4) -> None:
        for _ in range(count):
            survivors = [8]
            for rate in rates[:depth]:
                survivors.append(int(rng.binomial(survivors[-1], rate)))
            acceptance.update(survivors[:-1], survivors[1:])

    rounds(1500, rates)
    assert acceptance.rates() == pytest.approx(rates, abs=0.05)
    tokens, doubt = acceptance.expected()
    assert tokens == pytest.approx(np.cumsum([1.0, *np.cumprod(rates)]), rel=0.04)
    assert doubt[0] == 0
    assert all(0 < value < 0.05 for value in doubt[1:])
    rounds(2500, (0.4, 0.4, 0.4, 0.4))
    assert acceptance.rates() == pytest.approx([0.4] * 4, abs=0.08), "drift is followed"


def test_switching_starts_at_nothing_and_is_refined() -> None:
    cost = SwitchCost()
    assert cost(500, 32) == 0.0
    for _ in range(200):
        for lag, rows in ((10, 4), (100, 4), (100, 32), (600, 32)):
            cost.observe(lag, rows, 0.005 + 2e-6 * lag * rows)
    assert cost(100, 32) == pytest.approx(0.0114, rel=0.1)
    assert 0.005 < cost(50, 4) < cost(300, 32) < cost(600, 32)
    assert cost(0, 32) == 0.0


def test_switching_takes_a_measured_table() -> None:
    """Nightjar's Table 3, as its starting point."""
    table = [
        (128, 32, 17.87),
        (128, 64, 28.53),
        (256, 32, 20.65),
        (256, 64, 22.33),
        (512, 32, 24.30),
        (512, 64, 102.03),
    ]
    cost = SwitchCost((lag, rows, seconds / 1000) for lag, rows, seconds in table)
    assert 0.012 < cost(128, 32) < 0.03
    assert cost(512, 64) > 1.5 * cost(256, 32)


def calls(rows: int, depth: int, seconds: float = 0.003) -> dict[str, DraftCall]:
    return {"d": DraftCall([rows] * depth, seconds)} if depth else {}


def test_round_costs_find_the_parts() -> None:
    rng, costs = np.random.default_rng(0), RoundCosts(4, 32)
    for _ in range(3000):
        rows, depth = int(rng.integers(1, 33)), int(rng.integers(0, 5))
        tokens = rows * (depth + 1)
        noise = rng.lognormal(0, 0.05, 3)
        costs.observe(
            rows,
            calls(rows, depth),
            verified=tokens,
            verify=(0.02 + 0.0005 * max(0, tokens - 16)) * noise[0],
            draft=(0.002 + 0.001 * depth) * noise[1] if depth else 0.0,
            overhead=0.001 * noise[2],
        )
    for rows in (1, 6, 20, 32):
        seconds, variance = costs.predict(rows, (("d", rows),), tuple(rows * tokens for tokens in range(1, 6)))
        for depth in range(5):
            draft = 0.002 + 0.001 * depth if depth else 0.0
            truth = 0.021 + 0.0005 * max(0, rows * (depth + 1) - 16) + draft
            assert seconds[depth] == pytest.approx(truth, rel=0.06), (rows, depth)
            assert 0 < variance[depth] < truth**2 * 0.1


COSTS = {
    "covey_costs": 1,
    "name": "test",
    "origin": "made up",
    "verify": [{"rows": 1, "tokens": tokens, "seconds": 0.02 + 0.001 * tokens} for tokens in (1, 2, 4, 8, 16, 32)],
    "overhead": [{"rows": 1, "seconds": 0.001}],
    "draft": {"d": [{"rows": 1, "depth": depth, "seconds": 0.003 * depth} for depth in (1, 2, 3)]},
    "switch": {"d": [{"lag": 512, "rows": 32, "seconds": 0.0243}]},
}


def test_rows_that_do_not_draft_are_verified_and_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    costs = RoundCosts(3, 8, load_costs(path))
    whole, _ = costs.predict(8, (("d", 8),), (8, 16, 24, 32))
    one, _ = costs.predict(8, (("d", 1),), (8, 9, 10, 11))
    assert whole[0] == one[0]
    assert one[3] - one[0] == pytest.approx(0.003 + 0.009, rel=0.1)
    assert whole[3] - whole[0] > 0.03


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
    assert "cost table test knows nothing of other" in caplog.text


@pytest.mark.parametrize(
    ("choice", "mine"), [("fixed", "b"), ("fixed:a", "a"), ("fixed:gone", "b"), ("covey", "b"), ("ucb-be:0.1", "b")]
)
def test_nightjar_prices_the_drafter_that_drafts_whatever_the_order_of_the_table(choice: str, mine: str) -> None:
    cells = {name: ((512, 32, seconds),) for name, seconds in (("a", 0.01), ("b", 0.02))}
    table = CostTable("test", "made up", ((1, 1, 0.02),), (), {}, cells)
    settings = SpeculationSettings(policy="nightjar", drafter_policy=choice)
    policy = build(settings, ("b", "a", "c"), costs=table).policy if choice != "fixed:gone" else None
    assert policy is None or policy._switch_cost(512, 32) == cells[mine][0][2]  # type: ignore[attr-defined]
    names = measured(settings, ("b", "a", "c"))
    assert names == ((mine,) if choice.startswith("fixed") else ("b", "a", "c"))


def test_a_drafter_without_a_pause_to_price_is_not_given_another_ones() -> None:
    table = CostTable("test", "made up", ((1, 1, 0.02),), (), {}, {"b": ((512, 32, 0.02),)})
    policy = build(SpeculationSettings(policy="nightjar"), ("a", "b"), costs=table).policy
    assert policy._switch_cost(512, 32) == 0.0  # type: ignore[attr-defined]


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
