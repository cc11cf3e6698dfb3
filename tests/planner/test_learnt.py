"""What is learnt outlives a restart; what is foreign or damaged is ignored, with a warning."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from covey.bandits.fixed import Fixed
from covey.bandits.length import Situation
from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import Trees
from covey.planner.build import build
from covey.planner.calibration import Calibration
from covey.planner.covey import Covey
from covey.planner.learnt import Keeper, file_in, restore, save
from covey.planner.round_planner import RoundPlanner
from covey.planner.switching import SwitchCosts
from covey.planner.worth import WorthSelector
from covey.trees.paths import Nodes
from loadtest.simulation.devices import environment
from loadtest.simulation.replay import replay
from tests.waiting import until

BROKEN = (
    *("cut", "list", "nested", "version", "policy", "target", "depth", "missing"),
    *("shape", "ragged", "infinite", "type", "count", "switching"),
)
SITUATION = Situation(8, 5, 1, 1, (("simulated", 8),))


@pytest.fixture
def policy() -> Covey:
    made = Covey(5, 64, SwitchCosts())
    replay(made, environment("card"), [1, 8, 32] * 200, np.random.default_rng(0))
    return made


def predicted(policy: Covey) -> list[float]:
    policy.choose(SITUATION)
    return list(policy.reason.predicted)


def test_a_restart_knows_what_was_learnt(policy: Covey, tmp_path: Path) -> None:
    path = tmp_path / "state" / "learnt.json"
    assert save(path, policy, name="covey", target="t")
    fresh = Covey(5, 64, SwitchCosts())
    assert restore(path, fresh, name="covey", target="t")
    assert predicted(fresh) == pytest.approx(predicted(policy))
    assert fresh.choose(SITUATION) == policy.choose(SITUATION)
    assert fresh.state() == policy.state()


def test_a_policy_that_keeps_nothing_writes_nothing(tmp_path: Path) -> None:
    assert not save(tmp_path / "learnt.json", Fixed(3), name="fixed:3", target="t")
    assert not list(tmp_path.iterdir())


def test_no_file_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not restore(tmp_path / "learnt.json", Covey(5, 64, SwitchCosts()), name="covey", target="t")
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
        del state["costs"]
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
        state["switching"]["simulated"] = {"weights": "x"}
    return json.dumps(whole)


@pytest.mark.parametrize("kind", BROKEN)
def test_what_does_not_fit_is_ignored_with_a_warning(
    kind: str, policy: Covey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learnt.json"
    save(path, policy, name="covey", target="t")
    path.write_text(broken(kind, path.read_text()))
    fresh = Covey(5, 64, SwitchCosts())
    before = fresh.state()
    with caplog.at_level(logging.WARNING):
        assert not restore(path, fresh, name="covey", target="t")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert fresh.state() == before, "nothing of it was taken up"
    assert 0 <= fresh.choose(SITUATION) <= 5


def keeper(path: Path, policy: Covey | Fixed, seconds: float = 3600.0, target: str = "t") -> Keeper:
    return Keeper(path, RoundPlanner(policy, max_depth=5), name="covey", target=target, seconds=seconds)


def test_a_keeper_saves_when_it_ends_and_the_next_goes_on_from_there(policy: Covey, tmp_path: Path) -> None:
    path = file_in(str(tmp_path / "state"), "covey")
    keeper(path, policy).stop()
    fresh = Covey(5, 64, SwitchCosts())
    keeper(path, fresh).stop()
    assert predicted(fresh) == pytest.approx(predicted(policy))
    assert [found.name for found in path.parent.iterdir()] == ["covey.json"]


def test_a_keeper_saves_now_and_then(policy: Covey, tmp_path: Path) -> None:
    kept = keeper(tmp_path / "covey.json", policy, seconds=0.01)
    until((tmp_path / "covey.json").exists)
    assert json.loads((tmp_path / "covey.json").read_text())["state"] == policy.state()
    kept.stop()


def test_a_keeper_takes_nothing_of_another_target(
    policy: Covey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper(tmp_path / "covey.json", policy, target="other").stop()
    fresh = Covey(5, 64, SwitchCosts())
    before = fresh.state()
    kept = keeper(tmp_path / "covey.json", fresh)
    assert fresh.state() == before
    assert "ignored" in caplog.text
    kept.stop()


def test_a_policy_that_keeps_nothing_is_said_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper(tmp_path / "covey.json", Fixed(3)).stop()
    assert "keeps nothing across restarts" in caplog.text
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_is_said_once(policy: Covey, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "covey.json").mkdir()
    kept = keeper(tmp_path / "covey.json", policy, seconds=0.01)
    time.sleep(0.1)
    kept.stop()
    assert [record.message for record in caplog.records if "cannot be saved" in record.message] != []
    assert len([record for record in caplog.records if "cannot be saved" in record.message]) == 1


def test_a_folder_that_cannot_be_written_to_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"speculation\.state: got .*file/deeper"):
        file_in(str(tmp_path / "file" / "deeper"), "covey")


SELECTING = SpeculationSettings(policy="covey", selection="worth", width=3, max_depth=4)


def selecting(names: tuple[str, ...], policy: str = "covey") -> tuple[RoundPlanner, Calibration]:
    made = build(dataclasses.replace(SELECTING, policy=policy), names)
    assert isinstance(made.selector, WorthSelector)
    return made, made.selector.calibration


def looked_at(calibration: Calibration) -> np.ndarray:
    """Where chains of two are counted, one of each of two drafters."""
    trees = Trees(np.array([0, 2, 4], np.int32), np.arange(4, dtype=np.int32), np.array([-1, 0, -1, 0], np.int32))
    nodes, said, drafter = Nodes.of(trees), np.full(4, 0.6, np.float32), calibration.index(("one", "two"))
    return calibration.cells(nodes, nodes.ranks(), said, drafter, np.zeros(2, np.bool_))


@pytest.mark.parametrize("policy", ["covey", "fixed:4"])
def test_how_often_drafts_are_right_outlives_a_restart(policy: str, tmp_path: Path) -> None:
    """... by the drafter's name: others may have come or gone meanwhile."""
    made, calibration = selecting(("one", "two"), policy)
    for _ in range(50):
        cells = looked_at(calibration)
        calibration.update(cells, np.array([True, True, True, False]))
    Keeper(tmp_path / "covey.json", made, name=policy, target="t").stop()
    fresh, found = selecting(("zero", "two", "one"), policy)
    Keeper(tmp_path / "covey.json", fresh, name=policy, target="t").stop()
    expected = calibration.own(looked_at(calibration), np.full(4, 0.6, np.float32))
    assert expected[3] < 0.1 < 0.9 < expected[2]
    assert found.own(looked_at(found), np.full(4, 0.6, np.float32)) == pytest.approx(expected)


@pytest.mark.parametrize("damage", ["cells", "counts", "depth", "list", "policy"])
def test_a_damaged_calibration_is_ignored_with_all_that_came_with_it(damage: str) -> None:
    made, calibration = selecting(("one", "two"))
    calibration.update(looked_at(calibration), np.ones(4, np.bool_))
    state = json.loads(json.dumps(made.state()))
    if damage == "cells":
        state["selector"]["drafters"]["one"]["cells"][0] = 10**6
    elif damage == "counts":
        state["selector"]["drafters"]["one"]["accepted"][0] = 1e9
    elif damage == "depth":
        state["selector"]["max_depth"] = 5
    elif damage == "list":
        state["selector"]["drafters"] = ["one"]
    else:
        del state["costs"]
    fresh, _ = selecting(("one", "two"))
    before = fresh.state()
    with pytest.raises(ValueError):
        fresh.restore(state)
    assert fresh.state() == before
