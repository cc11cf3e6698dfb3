"""Paused processes are ended and brought back; those that go on in time are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from covey.server.paused import BOUND_SECONDS, FIND_EVERY, LOOK_SECONDS, Paused

from covey.server import processes
from covey_client import Client, CoveyClientError

Make = Callable[[], Any]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """Two processes of a server."""
    started = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(processes, "names", lambda _server: {started[0].pid: "one", started[1].pid: "other"})
    yield started
    for process in started:
        process.kill()
        process.wait()


def until(state: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while processes.state(process.pid) != state:
        assert time.monotonic() < deadline


def looks(paused: Paused, count: int) -> list[str]:
    return [name for _ in range(count) for name in paused.look()]


BOUND = round(BOUND_SECONDS / LOOK_SECONDS)


def test_who_is_paused_too_long_is_killed_and_nobody_else(two: tuple[subprocess.Popen[bytes], ...]) -> None:
    paused, other = two
    watch = Paused(1)
    assert looks(watch, 1) == []
    paused.send_signal(signal.SIGSTOP)
    until("T", paused)
    assert looks(watch, BOUND) == []
    assert looks(watch, 1) == ["one"]
    assert paused.wait(10) == -signal.SIGKILL
    assert other.poll() is None


def test_who_goes_on_in_time_lives(two: tuple[subprocess.Popen[bytes], ...]) -> None:
    paused, _ = two
    watch = Paused(1)
    for _ in range(2):
        paused.send_signal(signal.SIGSTOP)
        until("T", paused)
        assert looks(watch, BOUND) == []
        paused.send_signal(signal.SIGCONT)
        until("S", paused)
        assert looks(watch, 1) == []
    assert paused.poll() is None


def test_processes_that_came_later_are_found(
    two: tuple[subprocess.Popen[bytes], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, first = two
    monkeypatch.setattr(processes, "names", lambda _server: {first.pid: "first"})
    watch = Paused(1)
    watch.look()
    monkeypatch.setattr(processes, "names", lambda _server: {first.pid: "first", late.pid: "late"})
    late.send_signal(signal.SIGSTOP)
    until("T", late)
    assert looks(watch, FIND_EVERY + BOUND + 1) == ["late"]


@pytest.mark.e2e
def test_a_model_that_is_paused_is_back(canned_folder: Make) -> None:
    with canned_folder().server("covey") as server, Client(server.grpc_url, timeout=30) as client:
        pid = processes.named(server.pid)["covey"]
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while True:
            try:
                if processes.named(server.pid).get("covey", pid) != pid:
                    assert client.generate("count 2").tokens == (0, 1)
                    break
            except CoveyClientError:
                pass
            assert time.monotonic() < deadline, server.log_text()[-2000:]
            time.sleep(0.1)
        server.check()
