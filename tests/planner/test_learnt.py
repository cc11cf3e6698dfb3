"""What is learnt outlives a restart; what is foreign or damaged is ignored, with a warning."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from covey.bandits.fixed import Fixed
from covey.bandits.length import Situation
from covey.planner.covey import Covey
from covey.planner.devices import environment
from covey.planner.learnt import restore, save
from covey.planner.replay import replay
from covey.planner.switching import SwitchCost

BROKEN = (
    *("cut", "list", "nested", "version", "policy", "target", "depth", "missing"),
    *("shape", "ragged", "infinite", "type", "count", "switching"),
)
SITUATION = Situation(8, 5, 1, 1, (("simulated", 8),))


@pytest.fixture
def policy() -> Covey:
    made = Covey(5, 64, SwitchCost())
    replay(made, environment("card"), [1, 8, 32] * 200, np.random.default_rng(0))
    return made


def predicted(policy: Covey) -> list[float]:
    policy.choose(SITUATION)
    return list(policy.reason.predicted)


def test_a_restart_knows_what_was_learnt(policy: Covey, tmp_path: Path) -> None:
    path = tmp_path / "state" / "learnt.json"
    assert save(path, policy, name="covey", target="t")
    fresh = Covey(5, 64, SwitchCost())
    assert restore(path, fresh, name="covey", target="t")
    assert predicted(fresh) == pytest.approx(predicted(policy))
    assert fresh.choose(SITUATION) == policy.choose(SITUATION)
    assert fresh.state() == policy.state()


def test_a_policy_that_keeps_nothing_writes_nothing(tmp_path: Path) -> None:
    assert not save(tmp_path / "learnt.json", Fixed(3), name="fixed:3", target="t")
    assert not list(tmp_path.iterdir())


def test_no_file_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not restore(tmp_path / "learnt.json", Covey(5, 64, SwitchCost()), name="covey", target="t")
    assert not caplog.records


def broken(kind: str, text: str) -> str:
    whole = json.loads(text)
    state = whole["state"]
    if kind == "cut":
        return text[: len(text) // 2]
    if kind == "list":
        return "[]"
    if kind == "nested":
        return "[" * 100000
    if kind == "version":
        whole["covey_learnt"] = 2
    elif kind == "policy":
        whole["policy"] = "nightjar"
    elif kind == "target":
        whole["target"] = "other"
    elif kind == "depth":
        state["max_depth"] = 6
    elif kind == "missing":
        del state["costs"]["upkeep"]
    elif kind == "shape":
        state["costs"]["verify"]["weights"].pop()
    elif kind == "ragged":
        state["costs"]["verify"]["covariance"][0].pop()
    elif kind == "infinite":
        state["costs"]["verify"]["weights"][0] = float("inf")
    elif kind == "type":
        state["acceptance"] = 3
    elif kind == "count":
        state["acceptance"]["simulated"]["offered"][0] = -1
    elif kind == "switching":
        state["switching"]["weights"] = "x"
    return json.dumps(whole)


@pytest.mark.parametrize("kind", BROKEN)
def test_what_does_not_fit_is_ignored_with_a_warning(
    kind: str, policy: Covey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learnt.json"
    save(path, policy, name="covey", target="t")
    path.write_text(broken(kind, path.read_text()))
    fresh = Covey(5, 64, SwitchCost())
    before = fresh.state()
    with caplog.at_level(logging.WARNING):
        assert not restore(path, fresh, name="covey", target="t")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert fresh.state() == before, "nothing of it was taken up"
    assert 0 <= fresh.choose(SITUATION) <= 5
