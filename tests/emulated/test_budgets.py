"""AdaServe's constants by grid search over a cost table: they follow the device, and the policy starts from them."""

from __future__ import annotations

import math
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


def test_a_candidate_is_worth_what_its_rounds_bring_by_hand() -> None:
    """Node by node in plain loops, on the trees that the search serves."""
    table = replace(device(8, 0.002), overhead=((1, 0.001), (8, 0.003)))
    lanes = tuple((rows, depth, 0.0005 * depth * rows) for rows in (1, 64) for depth in (1, 6))
    search = budgets.Search(
        replace(table, draft={"draft": lanes}), "draft", budgets.Guesses.load(guesses()), max_depth=4, max_width=3
    )
    tpots, shares = (1.2 * (0.02 + 0.001), 0.05, 0.15), (0.6, 0.2, 0.2)
    for b1, b2, c1, most in ((12, 8, 0, 8), (20, 16, 2, 2), (40, 32, 0, 4), (6, 8, 0, 8)):
        total = 0.0
        for rows in (1, 8):
            depth, width = min(4, max(1, b1 // (rows + c1) - 1)), min(3, max(1, b2 // rows))
            drafting = 0.0005 * depth * rows * width + 0.001 + (rows - 1) * 0.002 / 7
            allowed, rounds = max(0, b1 - rows), 24 // rows
            tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
            seconds = 0.0
            for turn in range(rounds):
                offered = search._offered(rows, depth, width, turn)
                paths, row_of = offered.ranked.paths.tolist(), offered.nodes.row_of.tolist()
                kinds = [(0, 1, 0, 2, 0)[(turn * rows + row) % 5] for row in range(rows)]
                took = drafting + _passes(rows + min(allowed, len(paths)))
                kept: set[int] = set()
                for row in sorted(range(rows), key=lambda row: -took / tpots[kinds[row]]):
                    brought, mine = (
                        1.0,
                        sorted((n for n, at in enumerate(row_of) if at == row), key=lambda n: -paths[n]),
                    )
                    for node in mine[: most - 1]:
                        if brought < min(took / tpots[kinds[row]], depth + 1) - 1e-9 and len(kept) < allowed:
                            kept.add(node)
                            brought += paths[node]
                others = sorted((n for n in range(len(paths)) if n not in kept), key=lambda n: -paths[n])
                kept |= set(others[: allowed - len(kept)])
                for row, kind in enumerate(kinds):
                    tokens[kind].append(1 + sum(row_of[n] == row and bool(offered.right[n]) for n in kept))
                seconds += drafting + _passes(rows + len(kept))
            mean = {kind: sum(each) / len(each) for kind, each in tokens.items()}
            each_round = seconds / rounds
            total += math.log(
                sum(
                    rows * shares[k] * mean[k] / each_round * min(1.0, mean[k] * tpots[k] / each_round)
                    for k in range(3)
                )
            )
        constants = {**budgets.DEFAULTS, "b1": b1, "b2": b2, "c1": c1, "n_max": most}
        assert search.worth(constants) == pytest.approx(total / 2)


def _passes(tokens: int) -> float:
    return 0.02 + 0.002 * max(0, tokens - 8)


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
