"""AdaServe's constants by grid search over a cost table: they follow the device, and the policy starts from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from covey.bandits.length import Situation
from covey.emulated import budgets
from covey.emulated.budgets import searched
from covey.planner.adaserve import AdaServe
from covey.planner.cost_table import load_costs
from covey_client.costs.table import CostTable


def device(free: int, each: float) -> CostTable:
    """A pass takes 20 ms over up to `free` tokens, and `each` more for every further one; a draft's step 0.5 ms."""
    verify = [(rows, n, 0.02 + each * max(0, n - free)) for rows in (1, 8) for n in (rows, free, 256)]
    draft = tuple((rows, depth, 0.0005 * depth) for rows in (1, 64) for depth in (1, 6))
    return CostTable("made up", "for tests", tuple(verify), (), {"draft": draft})


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in {"LANES": (8, 32), "FEWER": (0,), "WIDER": (0,), "MOST": (2, 8), "SLACKS": (1.1, 2.0)}.items():
        monkeypatch.setattr(budgets, name, values)
    monkeypatch.setattr(budgets, "ROWS", 24)


def test_what_is_found_is_of_most_worth_and_follows_the_device() -> None:
    found = {each: searched(device(8, each), "draft", 4, 4) for each in (1e-5, 0.004)}
    assert found[1e-5]["b1"] > 100, "tokens are nearly free"
    assert found[0.004]["b1"] < 20, "none of them is"
    search = budgets.Search(device(8, 0.004), "draft", budgets.Guesses.load(guesses()), max_depth=4, max_width=4)
    worth = [search.worth({**found[0.004], "b1": b1, "n_max": most}) for b1 in (8, 13) for most in (2, 8)]
    assert search.worth(found[0.004]) == max(worth) > min(worth)


def guesses() -> Path:
    return Path(budgets.profile.guesses_file(budgets.GUESSES))


def test_the_policy_starts_from_what_the_table_says_unless_the_profile_does(tmp_path: Path) -> None:
    table = replace(device(64, 0.001), adaserve={"b1": 40, "c1": 2})
    table.save(tmp_path / "mine.json")
    assert load_costs(tmp_path / "mine.json") == table
    made = AdaServe(6, 4, load_costs(tmp_path / "mine.json"), ())
    assert (made.budget, made.choose(Situation(8, 6))) == (40, 40 // 10 - 1)
    assert AdaServe(6, 4, table, ("b1=20",)).budget == 20
    assert AdaServe(6, 4, table, ("b1=20",)).choose(Situation(8, 6)) == 1, "c1 is the table's yet"
