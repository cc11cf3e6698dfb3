"""A smoke run of the bench `drafters` against the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.__main__ import main

pytestmark = pytest.mark.e2e


@pytest.mark.slow
def test_a_quick_run_asks_several_orchestrators_of_one_server(tmp_path: Path) -> None:
    out = tmp_path / "drafters.json"
    assert main(["drafters", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    for part in ("c1", "mixed16"):
        assert found[part]["covey_over_general"]["repetitions"] == 2
        assert found[part]["covey_share_of_oracle"]["median"] > 0
        assert found[part]["covey_over_ucb"] is None
    rounds = found["c1"]["tokens_per_round"]
    assert rounds["off"] == 1.0, "each has a profile of its own"
    assert rounds["oracle"] > 1.2
    assert rounds["general"] > 1.2


@pytest.mark.slow
def test_rewards_are_of_real_models(tmp_path: Path) -> None:
    out = tmp_path / "drafters.json"
    assert main(["drafters", "--part", "rewards", "--quick", "--json", str(out)]) == 0
    for temperature in ("0", "1"):
        code = json.loads(out.read_text())["rewards"][temperature]["code"]
        assert code["own"]["divergence"]["mean"] > code["other"]["divergence"]["mean"]
        assert code["own"]["divergence"]["variance"] < code["own"]["efficiency"]["variance"]
        assert code["own"]["divergence"]["zero_ratio"] < code["own"]["efficiency"]["zero_ratio"]
    assert (tmp_path / "drafters-rewards.png").read_bytes().startswith(b"\x89PNG")
