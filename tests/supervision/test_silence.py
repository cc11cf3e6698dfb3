"""A process that does not answer is ended; one that answers, however late it began to, is not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from covey.supervision.silence import LOOK_SECONDS, STARTING_SECONDS, Silence

BOUND = 3.0


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a processor; the tests' machine may be busy."""
    monkeypatch.setattr("covey.supervision.silence.Starved.look", lambda _starved, _pids: 0.0)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Also a little later, when a signal has reached it."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


class Talk:
    """A process that answers or not, and who listens to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self.answers, self.now = process.pid, True, 0.0
        self.asked: list[float] = []  # for how many seconds
        self.silence = Silence("one", lambda: self.pid, self._ask, BOUND, lambda: self.now)

    def _ask(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return self.answers

    def looks(self, seconds: float = LOOK_SECONDS, *, answers: bool) -> None:
        self.answers = answers
        for _ in range(int(seconds / LOOK_SECONDS)):
            self.silence.look()


def test_who_falls_silent_is_ended_and_not_before(process: subprocess.Popen[bytes]) -> None:
    talk = Talk(process)
    talk.looks(2 * BOUND, answers=True)
    for _ in range(3):  # silent for less than the bound, again and again
        talk.looks(BOUND - LOOK_SECONDS, answers=False)
        talk.looks(answers=True)
    assert lives(process)
    talk.looks(BOUND, answers=False)
    assert process.wait(10) == -signal.SIGKILL


def test_who_waits_for_a_processor_has_longer(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, which is the machine's doing; one that spins there is found, if late."""
    monkeypatch.setattr("covey.supervision.silence.Starved.look", lambda _starved, _pids: 0.75 * LOOK_SECONDS)
    talk = Talk(process)
    talk.looks(answers=True)
    talk.looks(4 * BOUND - LOOK_SECONDS, answers=False)
    assert lives(process)
    talk.looks(answers=False)
    assert process.wait(10) == -signal.SIGKILL


def test_who_answers_late_answers(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(process)
    talk.looks(answers=True)
    monkeypatch.setattr(talk.silence, "_asks", lambda seconds: talk._ask(seconds) and seconds > BOUND / 3)
    talk.looks(10 * BOUND, answers=True)
    assert lives(process)
    assert LOOK_SECONDS <= min(talk.asked) < max(talk.asked) < BOUND


def test_who_is_starting_has_longer_and_so_has_its_successor(process: subprocess.Popen[bytes]) -> None:
    talk = Talk(process)
    talk.pid = 1
    talk.looks(answers=True)
    talk.pid = process.pid
    talk.looks(STARTING_SECONDS - LOOK_SECONDS, answers=False)
    assert lives(process)
    talk.looks(answers=False)
    assert process.wait(10) == -signal.SIGKILL


def test_nobody_is_ended_for_one_that_has_gone(process: subprocess.Popen[bytes]) -> None:
    talk = Talk(process)
    talk.looks(answers=True)
    talk.looks(BOUND - LOOK_SECONDS, answers=False)

    def ends(_seconds: float) -> bool:
        talk.pid = 0  # while it was asked
        return False

    talk.silence._asks = ends
    talk.silence.look()
    assert lives(process)


@pytest.mark.parametrize("took", [1.0, 1000.0], ids=["as long as it may", "while nobody ran"])
def test_the_time_of_a_question_counts_as_far_as_it_may_last(process: subprocess.Popen[bytes], took: float) -> None:
    talk = Talk(process)
    talk.looks(answers=True)

    def silent(seconds: float) -> bool:
        talk.now += took * seconds
        return False

    talk.silence._asks = silent
    for _ in range(3):
        assert lives(process)
        talk.silence.look()
    assert process.wait(10) == -signal.SIGKILL
