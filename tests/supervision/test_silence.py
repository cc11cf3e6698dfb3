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


def looks(silence: Silence, seconds: float) -> None:
    for _ in range(int(seconds / LOOK_SECONDS)):
        silence.look()


def test_who_falls_silent_is_ended_and_not_before(process: subprocess.Popen[bytes]) -> None:
    said = [True]
    silence = Silence("one", lambda: process.pid, lambda _seconds: said[0], BOUND, lambda: 0.0)
    looks(silence, 2 * BOUND)
    for _ in range(3):  # silent for less than the bound, again and again
        said[0] = False
        looks(silence, BOUND - LOOK_SECONDS)
        said[0] = True
        silence.look()
    assert lives(process)
    said[0] = False
    looks(silence, BOUND)
    assert process.wait(10) == -signal.SIGKILL


def test_who_waits_for_a_processor_has_longer(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, which is the machine's doing; one that spins there is found, if late."""
    monkeypatch.setattr("covey.supervision.silence.Starved.look", lambda _starved, _pids: 0.75 * LOOK_SECONDS)
    said = [True]
    silence = Silence("one", lambda: process.pid, lambda _seconds: said[0], BOUND, lambda: 0.0)
    silence.look()
    said[0] = False
    looks(silence, 4 * BOUND - LOOK_SECONDS)
    assert lives(process)
    silence.look()
    assert process.wait(10) == -signal.SIGKILL


def test_who_answers_late_answers(process: subprocess.Popen[bytes]) -> None:
    asked: list[float] = []

    def late(seconds: float) -> bool:
        asked.append(seconds)
        return seconds > BOUND / 3

    silence = Silence("one", lambda: process.pid, late, BOUND, lambda: 0.0)
    silence._answered = silence._known = process.pid
    looks(silence, 10 * BOUND)
    assert lives(process)
    assert LOOK_SECONDS <= min(asked) < max(asked) < BOUND


def test_who_is_starting_has_longer_and_so_has_its_successor(process: subprocess.Popen[bytes]) -> None:
    pid, said = [1], [True]
    silence = Silence("one", lambda: pid[0], lambda _seconds: said[0], BOUND, lambda: 0.0)
    silence.look()
    pid[0], said[0] = process.pid, False
    looks(silence, STARTING_SECONDS - LOOK_SECONDS)
    assert lives(process)
    silence.look()
    assert process.wait(10) == -signal.SIGKILL


def test_nobody_is_ended_for_one_that_has_gone(process: subprocess.Popen[bytes]) -> None:
    pid = [process.pid]

    def silent(_seconds: float) -> bool:
        pid[0] = 0  # it ended while it was asked
        return False

    silence = Silence("one", lambda: pid[0], lambda _seconds: True, BOUND, lambda: 0.0)
    silence.look()
    silence._asks, silence._bound = silent, LOOK_SECONDS
    silence.look()
    assert lives(process)


@pytest.mark.parametrize(("took", "questions"), [(1.0, 3), (1000.0, 3)], ids=["as long as it may", "while nobody ran"])
def test_the_time_of_a_question_counts_as_far_as_it_may_last(
    process: subprocess.Popen[bytes], took: float, questions: int
) -> None:
    now, asked = [0.0], []

    def silent(seconds: float) -> bool:
        asked.append(seconds)
        now[0] += took * seconds
        return False

    silence = Silence("one", lambda: process.pid, silent, BOUND, lambda: now[0])
    silence._answered = silence._known = process.pid
    for _ in range(questions):
        assert lives(process)
        silence.look()
    assert process.wait(10) == -signal.SIGKILL
