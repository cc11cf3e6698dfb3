"""Who is brought back and who is not, with processes that only look like a model's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from covey.server.revival import Revival

from covey.care.control import Control, ControlError
from covey.care.deaths import Deaths, read
from covey.server import processes
from covey.tritonio import supervisor

SECONDS = 20.0
SLEEP = "import time; time.sleep(600)"


class Triton:
    """A server's model control; this process is the parent of its models' processes. As with Triton's, one that was
    killed is waited for when its model is unloaded."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.said: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.failures = 0
        self.waits = True
        self.zombies: list[subprocess.Popen[bytes]] = []
        self.loaded = threading.Semaphore(0)

    def load(self, model: str) -> None:
        self.calls.append(("load", model))
        if self.failures:
            self.failures -= 1
            raise ControlError("no memory")
        self.running[model] = subprocess.Popen([sys.executable, "-c", SLEEP, f"{model}_0_0"])
        self.said[model] = "READY"
        self.loaded.release()

    def unload(self, model: str) -> None:
        self.calls.append(("unload", model))
        self.said[model] = "UNAVAILABLE"
        if self.waits:
            self.running[model].kill()
            self.running[model].wait()
        else:
            self.zombies.append(self.running[model])


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    made = Triton()
    monkeypatch.setattr(Control, "states", lambda _control: dict(made.said))
    monkeypatch.setattr(Control, "load", lambda _control, model: made.load(model))
    monkeypatch.setattr(Control, "unload", lambda _control, model: made.unload(model))
    monkeypatch.setattr(supervisor, "FIRST_REST", 0.01)
    for model in ("tokenize", "detokenize"):
        made.load(model)
        made.loaded.acquire()
    made.calls.clear()
    yield made
    for process in (*made.running.values(), *made.zombies):
        process.kill()
        process.wait()


@pytest.fixture
def revival(triton: Triton) -> Iterator[Revival]:
    made = Revival(Control("", 0), os.getpid(), tuple(triton.running))
    until_watched(made, 3)
    yield made
    made.stop(SECONDS)


def until_watched(revival: Revival, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while revival._lost or len(revival._watched) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_dies_is_reloaded_each_time(triton: Triton, revival: Revival) -> None:
    for _ in range(2):
        triton.running["tokenize"].kill()
        assert triton.loaded.acquire(timeout=SECONDS)
        until_watched(revival, 3)
    assert triton.calls == 2 * [("unload", "tokenize"), ("load", "tokenize")]


def test_what_died_within_a_call_is_reloaded_once_though_its_zombie_stays(triton: Triton, revival: Revival) -> None:
    triton.waits = False
    triton.running["tokenize"].kill()
    assert triton.loaded.acquire(timeout=SECONDS)
    until_watched(revival, 3)
    time.sleep(1)
    assert triton.calls == [("unload", "tokenize"), ("load", "tokenize")]


@pytest.mark.usefixtures("revival")
def test_a_look_that_fails_of_anything_is_not_the_last(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[Exception] = [OSError(24, "Too many open files"), ValueError("Expecting value")]
    found = processes.by_model

    def by_model(server: int) -> dict[str, list[int]]:
        if problems:
            raise problems.pop()
        return found(server)

    monkeypatch.setattr(processes, "by_model", by_model)
    triton.running["tokenize"].kill()
    assert triton.loaded.acquire(timeout=SECONDS)
    assert not problems


def test_what_cannot_be_loaded_yet_is_tried_again(triton: Triton, revival: Revival) -> None:
    triton.failures = 2
    triton.running["tokenize"].kill()
    assert triton.loaded.acquire(timeout=SECONDS)
    until_watched(revival, 3)
    assert triton.calls.count(("load", "tokenize")) == 3


def test_what_somebody_unloads_is_left_alone_until_it_is_loaded_again(triton: Triton, revival: Revival) -> None:
    triton.unload("tokenize")
    time.sleep(0.5)
    assert triton.calls == [("unload", "tokenize")]
    triton.load("tokenize")
    triton.loaded.acquire()
    until_watched(revival, 3)
    triton.running["tokenize"].kill()
    assert triton.loaded.acquire(timeout=SECONDS)


def test_what_had_died_before_it_was_looked_for_is_reloaded_too(triton: Triton) -> None:
    triton.running["detokenize"].kill()
    triton.running["detokenize"].wait()
    revival = Revival(Control("", 0), os.getpid(), tuple(triton.running))
    assert triton.loaded.acquire(timeout=SECONDS)
    until_watched(revival, 3)
    revival.stop(SECONDS)


def test_nothing_is_brought_back_to_a_server_that_ends(triton: Triton) -> None:
    revival = Revival(Control("", 0), os.getpid(), tuple(triton.running))
    until_watched(revival, 3)
    revival.stop(SECONDS)
    triton.running["detokenize"].kill()
    time.sleep(0.5)
    assert not triton.calls


def test_a_death_is_told_once_and_when_it_happened(triton: Triton) -> None:
    """Of the public model: the front gives up streams from before it. Other models' deaths are not."""
    deaths = Deaths()
    deaths.serving(True)
    triton.load("covey")
    triton.loaded.acquire()
    revival = Revival(Control("", 0), os.getpid(), tuple(triton.running), deaths.note)
    until_watched(revival, 4)  # the server as well
    before = time.monotonic()
    for model in ("tokenize", "covey"):
        triton.running[model].kill()
        assert triton.loaded.acquire(timeout=SECONDS)
        until_watched(revival, 4)
    seen = read(deaths.fd)
    assert (seen.deaths, seen.serving) == (1, True)
    assert before < seen.last < time.monotonic()
    revival.stop(SECONDS)


def test_a_server_that_takes_its_models_along_died_once(triton: Triton) -> None:
    deaths = Deaths()
    deaths.serving(True)
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as server:
        triton.load("covey")
        revival = Revival(Control("", 0), server.pid, (), deaths.note)
        revival._follow("covey", triton.running["covey"].pid)
        server.kill()
        server.wait()
        triton.running["covey"].kill()
        deadline = time.monotonic() + SECONDS
        while revival._watched:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen = read(deaths.fd)
        assert (seen.deaths, seen.serving) == (1, False)
        revival.stop(SECONDS)
