"""A process that does not answer is ended; one that answers, however late it began to, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from covey.server.canary import LOOK_SECONDS, STARTING_SECONDS, Canary, CanaryWatch

BOUND = 3.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def looks(canary: Canary, seconds: float) -> None:
    for _ in range(int(seconds / LOOK_SECONDS)):
        canary.look()


def test_who_falls_silent_is_ended_and_not_before(process: subprocess.Popen[bytes]) -> None:
    said = [True]
    canary = Canary("one", lambda: process.pid, lambda _seconds: said[0], BOUND)
    looks(canary, 2 * BOUND)
    for _ in range(3):  # silent for less than the bound, again and again
        said[0] = False
        looks(canary, BOUND - LOOK_SECONDS)
        said[0] = True
        canary.look()
    assert process.poll() is None
    said[0] = False
    looks(canary, BOUND)
    assert process.wait(10) == -signal.SIGKILL


def test_who_is_starting_has_longer_and_so_has_its_successor(process: subprocess.Popen[bytes]) -> None:
    pid, said = [1], [True]
    canary = Canary("one", lambda: pid[0], lambda _seconds: said[0], BOUND)
    canary.look()
    pid[0], said[0] = process.pid, False
    looks(canary, STARTING_SECONDS - LOOK_SECONDS)
    assert process.poll() is None
    canary.look()
    assert process.wait(10) == -signal.SIGKILL


def test_nobody_is_ended_for_one_that_has_gone(process: subprocess.Popen[bytes]) -> None:
    pid = [process.pid]

    def silent(_seconds: float) -> bool:
        pid[0] = 0  # it ended while it was asked
        return False

    canary = Canary("one", lambda: pid[0], lambda _seconds: True, BOUND)
    canary.look()
    canary._asks, canary._bound = silent, LOOK_SECONDS
    canary.look()
    assert process.poll() is None


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.server.canary.LOOK_SECONDS", 0.01)
    again, looks = threading.Event(), []

    def asks(_seconds: float) -> bool:
        looks.append(len(looks))
        if len(looks) == 1:
            raise RuntimeError("unforeseen")
        again.set()
        return True

    watch = CanaryWatch(Canary("one", os.getpid, asks, 1.0))
    try:
        assert again.wait(10)
    finally:
        watch.stop()
