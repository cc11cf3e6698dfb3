"""Who runs in circles is ended; who works, or sleeps, or is another backend's, is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from covey.server.spinning import BOUND_SECONDS, LOOK_SECONDS, RAN_SECONDS, Spinning, watched

from covey.care.control import Control, ControlError
from covey.server import processes, spinning

LOOKS = round(BOUND_SECONDS / LOOK_SECONDS)


class World:
    """Two models' processes; how busy each is and how many requests each has answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = {"covey": [11], "tokenize": [12]}
        self.now = 0.0
        self.spent = dict.fromkeys((11, 12, 13), (1.0, 1.0))
        self.busy = dict.fromkeys(self.spent, 0.0)  # share of its time
        self.starved = dict.fromkeys(self.spent, 0.0)  # ... of that, waiting
        self.answers = dict.fromkeys(self.running, 0)
        self.killed: list[int] = []
        self.ended: dict[int, str] = {}
        monkeypatch.setattr(processes, "by_model", lambda _server: self.running)
        monkeypatch.setattr(processes, "state", lambda pid: self.ended.get(pid, "R"))
        monkeypatch.setattr(spinning, "times", lambda pid: self.spent.get(pid, (0.0, 0.0)))
        monkeypatch.setattr(Control, "answered", lambda _control, model: self.answers[model])
        monkeypatch.setattr(
            os, "kill", lambda pid, number: self.killed.append(pid) if number == signal.SIGKILL else None
        )
        self._spinning = Spinning(Control("", 0), 1, self.running, lambda: self.now)

    def looks(self, count: int, answering: str = "", seconds: float = LOOK_SECONDS) -> list[int]:
        for _ in range(count):
            self.now += seconds
            for pid, (ran, waited) in self.spent.items():
                busy, starved = self.busy[pid] * seconds, self.starved[pid]
                self.spent[pid] = ran + (1 - starved) * busy, waited + starved * busy
            if answering:
                self.answers[answering] += 1
            self._spinning.look()
        return self.killed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(monkeypatch)
    made.looks(1)
    return made


def test_who_never_sleeps_and_answers_nobody_is_ended(world: World) -> None:
    world.busy[12] = 1.0
    assert world.looks(LOOKS - 1) == []
    assert world.looks(1) == [12]


def test_who_works_and_who_rests_now_and_then_are_not(world: World) -> None:
    world.busy[11] = 1.0
    assert world.looks(5 * LOOKS, answering="covey") == []
    for _ in range(3):
        world.busy[11] = 1.0
        world.looks(LOOKS - 1)
        world.busy[11] = 0.0
        world.looks(1)
    assert world.killed == []


def test_who_waits_for_a_processor_has_longer_and_is_found_all_the_same(world: World) -> None:
    world.busy[12], world.starved[12] = 1.0, 0.9
    looks = round(RAN_SECONDS / (0.1 * LOOK_SECONDS))
    assert world.looks(looks - 1) == []
    assert world.looks(1) == [12]


def test_who_rarely_runs_says_late_what_it_waited(world: World) -> None:
    """Among hundreds that spin: nothing at one look, and twice as much at the next."""
    for look in range(2 * LOOKS):
        world.busy[12], world.starved[12] = (0.6, 0.4) if look % 2 else (1.4, 0.4)
        world.looks(1)
    assert world.killed == [12]


def test_looks_that_come_late_make_nobody_busy(world: World) -> None:
    """This process, too, waits for a processor."""
    world.busy[12] = 0.5
    assert world.looks(5 * LOOKS, seconds=2.5 * LOOK_SECONDS) == []


def test_what_cannot_be_said_ends_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_control: Control, _model: str) -> int:
        raise ControlError("it is not loaded")

    monkeypatch.setattr(Control, "answered", unknown)
    world.busy[11] = 1.0
    assert world.looks(3 * LOOKS) == []


@pytest.mark.parametrize("state", ["", "Z"])
def test_a_successor_is_judged_by_itself(world: World, state: str) -> None:
    """Whether or not Triton keeps what is left of its predecessor."""
    world.busy[11] = world.busy[13] = 1.0
    world.looks(LOOKS - 1)
    world.busy[11], world.ended[11] = 0.0, state
    world.running["covey"] = [13]
    assert world.looks(LOOKS) == []
    assert world.looks(1) == [13]


def test_of_other_backends_nothing_is_known(tmp_path: Path) -> None:
    for name, backend in (("covey", "orchestrator"), ("own", "python"), ("target", "target"), ("pipe", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(
            f'backend: "{backend}"\n' if backend else 'platform: "ensemble"\n'
        )
    assert watched(tmp_path, ("covey", "own", "target", "pipe")) == ("covey",)


def test_the_thread_that_runs_is_seen_to() -> None:
    before = spinning.times(os.getpid())[0]
    assert before > 0
    sum(range(10**6))
    assert spinning.times(os.getpid())[0] > before
    assert spinning.times(2**22) == (0.0, 0.0)
