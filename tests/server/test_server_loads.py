"""A load that takes far longer than the last one is ended; slow ones, first ones, those of a busy machine are not."""

from __future__ import annotations

import os
import signal

import pytest
from covey.server.loads import DEAD_SECONDS, LEAST_SECONDS, LOOK_SECONDS, TIMES, Loads

from covey.care.control import Control
from covey.server import loads, processes

TOOK, UNKNOWN = 4.0, 100.0


class World:
    """A server with one model that loads, and who is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spared: tuple[str, ...] = ()) -> None:
        self.states = {"target": "READY", "draft": "READY"}
        self.running: dict[str, list[int]] = {"target": [11], "draft": [12]}
        self.killed: list[int] = []
        self.waits = 0.0  # for a processor, of each look
        monkeypatch.setattr(Control, "states", lambda _control: dict(self.states))
        monkeypatch.setattr(processes, "by_model", lambda _server: self.running)
        monkeypatch.setattr(loads.Starved, "look", lambda _starved, _pids: self.waits)
        monkeypatch.setattr(
            os, "kill", lambda pid, number: self.killed.append(pid) if number == signal.SIGKILL else None
        )
        self._loads = Loads(Control("", 0), 1, {"target": TOOK, "draft": 0.1}, spared, UNKNOWN)

    def looks(self, seconds: float) -> list[int]:
        for _ in range(round(seconds / LOOK_SECONDS)):
            self._loads.look()
        return self.killed

    def load(self, model: str, seconds: float) -> None:
        self.states[model] = "LOADING"
        self.looks(seconds)
        self.states[model] = "READY"
        self.looks(LOOK_SECONDS)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize(("model", "bound"), [("target", TIMES * TOOK), ("draft", LEAST_SECONDS)])
def test_a_load_that_takes_far_longer_than_the_last_is_ended_once(world: World, model: str, bound: float) -> None:
    world.states[model] = "LOADING"
    assert world.looks(bound) == []
    assert world.looks(LOOK_SECONDS) == world.running[model]
    assert len(world.looks(bound)) == 1, "while the error is on its way"


def test_what_it_takes_is_learnt_and_the_next_may_take_twice_as_long(world: World) -> None:
    world.load("target", 3 * TOOK)
    world.states["target"] = "LOADING"
    assert world.looks(3 * TIMES * TOOK) == []
    assert world.looks(LOOK_SECONDS) == [11]
    world.states["target"] = "UNAVAILABLE"
    world.looks(LOOK_SECONDS)
    world.states["target"] = "LOADING"
    assert world.looks(6 * TIMES * TOOK) == [11]
    assert world.looks(LOOK_SECONDS) == [11, 11]


def test_who_never_loaded_may_take_long_and_who_wants_a_processor_too(world: World) -> None:
    world.states["new"], world.running["new"] = "LOADING", [13]
    world.looks(UNKNOWN)
    assert world.killed == []
    world.states["draft"], world.waits = "LOADING", 0.75 * LOOK_SECONDS
    world.states["new"] = "READY"
    world.looks(4 * LEAST_SECONDS)
    assert world.killed == []
    world.looks(LOOK_SECONDS)
    assert world.killed == [12]


@pytest.mark.parametrize(("spared", "killed"), [((), [1]), (("target",), [])])
def test_a_death_that_triton_overlooks_ends_the_server_but_for_a_drafter(
    monkeypatch: pytest.MonkeyPatch, spared: tuple[str, ...], killed: list[int]
) -> None:
    world = World(monkeypatch, spared)
    world.states["target"], world.running["target"] = "LOADING", []
    assert world.looks(DEAD_SECONDS - LOOK_SECONDS) == []
    assert world.looks(10 * DEAD_SECONDS) == killed
