"""Whoever comes is asked what it is until it says so; whoever ends is told of at once."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from covey.contracts.errors import PortError
from covey.supervision import presence, processes
from covey.supervision.presence import Presence
from tests.supervision.model_control import SECONDS, Triton
from tests.waiting import until


@pytest.fixture
def triton() -> Iterator[Triton]:
    made = Triton("one", "two")
    yield made
    made.close()


class Told:
    def __init__(self, *models: str) -> None:
        self.came: list[tuple[str, str]] = []
        self.ended: list[str] = []
        self.fails = 0
        self.answer = threading.Event()
        self.answer.set()
        self.presence = Presence(os.getpid(), models, self._answers, self._came, self.ended.append)

    def _answers(self, model: str) -> str:
        self.answer.wait(SECONDS)
        if self.fails:
            self.fails -= 1
            raise PortError("not ready")
        return f"facts of {model}"

    def _came(self, model: str, facts: str) -> None:
        self.came.append((model, facts))

    def looks(self, count: int = 1) -> Told:
        for _ in range(count):
            self.presence.look()
        return self


@pytest.mark.usefixtures("triton")
def test_who_is_there_is_asked_until_it_answers_and_then_no_more() -> None:
    told = Told("one", "absent")
    told.fails = 3
    until(lambda: told.looks().came)
    assert told.fails == 0
    told.looks(10)
    assert told.came == [("one", "facts of one")]
    told.presence.close()


@pytest.mark.usefixtures("triton")
def test_one_that_does_not_answer_keeps_nobody_waiting() -> None:
    told = Told("one", "two")
    told.answer.clear()
    told.looks(3)
    assert not told.came
    told.answer.set()
    until(lambda: len(told.looks().came) == 2)
    told.presence.close()


def test_an_end_is_told_once_and_the_next_process_is_asked(triton: Triton) -> None:
    told = Told("one", "two")
    until(lambda: len(told.looks().came) == 2)
    files = len(os.listdir("/proc/self/fd"))
    for deaths in range(1, 3):
        triton.kill("one")
        os.waitid(os.P_PID, triton.running["one"].pid, os.WEXITED | os.WNOWAIT)  # a zombie stays
        assert told.looks().ended == ["one"] * deaths
        assert told.looks(2).ended == ["one"] * deaths, "the zombie is not followed"
        triton.running["one"].wait()
        triton.run("one")
        until(lambda want=2 + deaths: len(told.looks().came) == want)  # type: ignore[misc]
        assert len(os.listdir("/proc/self/fd")) == files
    told.presence.close()
    assert len(os.listdir("/proc/self/fd")) == files - 2


def test_who_does_not_work_is_ended_but_not_its_successor(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("one", "two")
    until(lambda: len(told.looks().came) == 2)
    told.presence.end("one")
    with pytest.raises(subprocess.TimeoutExpired):  # it came just now
        triton.running["one"].wait(0.2)
    monkeypatch.setattr(presence, "NEW_SECONDS", 0.0)
    told.presence.end("one")
    triton.running["one"].wait(SECONDS)
    assert processes.lives(triton.running["two"].pid)
    told.presence.close()
