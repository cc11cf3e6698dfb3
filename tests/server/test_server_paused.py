"""Paused processes are ended and brought back; those that go on in time are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from covey.server import processes
from covey.server.paused import BOUND_SECONDS, FIND_EVERY, Paused
from covey_client import Client, CoveyClientError

Make = Callable[[], Any]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """Two processes of a server."""
    started = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(processes, "named", lambda _server: {"one": started[0].pid, "other": started[1].pid})
    yield started
    for process in started:
        process.kill()
        process.wait()


def until(state: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while processes.state(process.pid) != state:
        assert time.monotonic() < deadline


def test_who_is_paused_too_long_is_killed_and_nobody_else(two: tuple[subprocess.Popen[bytes], ...]) -> None:
    paused, other = two
    watch = Paused(1)
    assert watch.look(0.0) == []
    paused.send_signal(signal.SIGSTOP)
    until("T", paused)
    assert watch.look(1.0) == []
    assert watch.look(1.0 + BOUND_SECONDS / 2) == []
    assert watch.look(1.0 + BOUND_SECONDS) == ["one"]
    assert paused.wait(10) == -signal.SIGKILL
    assert other.poll() is None


def test_who_goes_on_in_time_lives(two: tuple[subprocess.Popen[bytes], ...]) -> None:
    paused, _ = two
    watch = Paused(1)
    for start in (0.0, 10.0):
        paused.send_signal(signal.SIGSTOP)
        until("T", paused)
        assert watch.look(start) == []
        paused.send_signal(signal.SIGCONT)
        until("S", paused)
        assert watch.look(start + BOUND_SECONDS) == []
    assert paused.poll() is None


def test_processes_that_came_later_are_found(
    two: tuple[subprocess.Popen[bytes], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, first = two
    monkeypatch.setattr(processes, "named", lambda _server: {"first": first.pid})
    watch = Paused(1)
    watch.look(0.0)
    monkeypatch.setattr(processes, "named", lambda _server: {"first": first.pid, "late": late.pid})
    late.send_signal(signal.SIGSTOP)
    until("T", late)
    found = [watch.look(float(second)) for second in range(1, FIND_EVERY + 4)]
    assert found[-1] == ["late"] or ["late"] in found


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
