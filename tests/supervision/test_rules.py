"""Which processes are ended: those that hang, in each way that has a row; slow ones and starved ones are not."""

from __future__ import annotations

import pytest

from covey.supervision import health, processes
from covey.supervision.control import LOADING, READY
from covey.supervision.health import Health
from covey.supervision.rules import (
    ASLEEP_SECONDS,
    BUSY_SECONDS,
    CIRCLES_SECONDS,
    PAUSED_SECONDS,
    RAN_SECONDS,
    Loads,
    broken,
)

LOOK, LONGEST = 0.25, 100.0


class World:
    """One model's process: what it does with its time, and what Triton says of the model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.health = Health("model", 11, self.answered)
        self.loads = Loads(LONGEST)
        self.state, self.kernel = READY, "S"
        self.ran, self.waited = 0.0, 0.0  # shares of each second
        self.children = 0.0  # ... that its children run
        self.answers: int | None = 0
        self.works = True  # while it loads
        self.total, self.first = 0.0, (0.0, 0.0)
        self.moves = 0  # how far a load has come
        self.asked = 0
        monkeypatch.setattr(processes, "state", lambda _pid: self.kernel)
        monkeypatch.setattr(processes, "spent", lambda _pid: self.total)
        monkeypatch.setattr(health, "times", lambda _pid: self.first)
        monkeypatch.setattr(health.Starved, "look", lambda starved, _pids: self._look(starved))

    def _look(self, starved: health.Starved) -> float:
        starved.ran = self.ran * LOOK
        return self.waited * LOOK

    def answered(self, health: Health) -> int | None:
        self.asked += 1
        return self.moves if health.loading else self.answers

    def passes(self, seconds: float, *, look: float = LOOK) -> str:
        """What is said of the rule that is broken by then; "" for none."""
        for _ in range(round(seconds / look)):
            self.first = self.first[0] + self.ran * look, self.first[1] + self.waited * look
            self.total += (self.ran + self.children) * look
            self.moves += self.works
            self.health.look(look, self.state, mostly_idle=True)
            found = broken(self.health, self.loads)
            if found:
                return found
        return ""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_who_is_paused_for_too_long(world: World) -> None:
    for _ in range(3):
        world.kernel = "T"
        assert not world.passes(PAUSED_SECONDS - LOOK)
        world.kernel = "S"
        assert not world.passes(10.0)
    world.kernel = "T"
    assert "has been paused" in world.passes(PAUSED_SECONDS)


def test_a_load_has_an_end_and_one_that_wants_a_processor_a_later_one(world: World) -> None:
    world.state, world.ran = LOADING, 1.0
    assert not world.passes(LONGEST - LOOK)
    assert "has been loading" in world.passes(LOOK)
    world.state = READY
    world.passes(LOOK)
    world.state, world.ran, world.waited = LOADING, 0.2, 0.8
    assert not world.passes(5 * LONGEST - 1.0)
    assert "has been loading" in world.passes(2.0), "it is not spared for ever"


def test_who_loads_and_does_nothing_unless_it_waits_for_its_children(world: World) -> None:
    world.state, world.children = LOADING, 0.5
    assert not world.passes(2 * ASLEEP_SECONDS)
    world.children = 0.0
    assert not world.passes(ASLEEP_SECONDS - LOOK)
    assert "has done nothing" in world.passes(2 * LOOK)


def test_who_loads_and_runs_in_circles(world: World) -> None:
    world.loads = Loads(1000.0)
    world.state, world.ran = LOADING, 1.0
    assert not world.passes(1.5 * CIRCLES_SECONDS)
    world.works = False
    assert not world.passes(CIRCLES_SECONDS / 2)
    assert "without an answer" in world.passes(2 * CIRCLES_SECONDS)


def test_how_long_a_whole_start_may_take_is_known_to_whoever_starts_it(world: World) -> None:
    world.health.name = processes.SERVER
    world.state, world.ran = LOADING, 0.5
    assert not world.passes(2 * LONGEST)


def test_who_never_sleeps_and_answers_nobody(world: World) -> None:
    world.ran = 1.0
    assert not world.passes(BUSY_SECONDS - LOOK)
    assert "without an answer" in world.passes(2 * LOOK)


def test_who_works_and_who_rests_now_and_then_are_left_alone(world: World) -> None:
    world.ran = 1.0
    for _ in range(30):
        world.answers = (world.answers or 0) + 1
        assert not world.passes(BUSY_SECONDS / 2)
    for _ in range(3):
        world.ran = 1.0
        assert not world.passes(BUSY_SECONDS - 1.0)
        world.ran = 0.0
        assert not world.passes(1.0)
    assert world.asked < 60, "the server is asked now and then, not at each look"


@pytest.mark.parametrize(("state", "answers"), [("UNLOADING", 0), (READY, None)], ids=["ends", "server is silent"])
def test_who_is_on_its_way_out_or_of_whom_the_server_says_nothing_is_left_alone(
    world: World, state: str, answers: int | None
) -> None:
    world.ran, world.state, world.answers = 1.0, state, answers
    assert not world.passes(10 * BUSY_SECONDS)


def test_a_load_that_sleeps_may_sleep_twice_as_long_after_one_that_was_ended(world: World) -> None:
    world.loads.ended("model")
    world.state = LOADING
    assert not world.passes(2 * ASLEEP_SECONDS - LOOK)
    assert "has done nothing" in world.passes(2 * LOOK)
    world.loads.succeeded("model")
    assert world.loads.asleep(world.health) == ASLEEP_SECONDS


def test_who_waits_for_a_processor_has_longer_and_is_found_all_the_same(world: World) -> None:
    world.ran, world.waited = 0.1, 0.9
    assert not world.passes(RAN_SECONDS / 0.1 - LOOK)
    assert "without an answer" in world.passes(3 * LOOK)


def test_who_is_not_judged_may_be_busy_for_ever(world: World) -> None:
    world.ran = 1.0
    for _ in range(100):
        world.first = world.first[0] + LOOK, 0.0
        world.health.look(LOOK, READY, mostly_idle=False)
        assert broken(world.health, world.loads) == ""
