"""A process that ended is told once, unless its model was unloaded; its successor is followed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from covey.server.ends import FIND_EVERY, Ends

from covey.care.control import FAILED, Control, ControlError


def started(model: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"{model}_0_0"])


@pytest.fixture
def two() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running = {model: started(model) for model in ("draft_a", "draft_b")}
    yield running
    for process in running.values():
        process.kill()
        process.wait()


class Told:
    """Follows the two and notes what is told; Triton says `states` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, states: dict[str, str]) -> None:
        self.died: list[str] = []
        monkeypatch.setattr(Control, "states", lambda _control: states)
        self.ends = Ends(os.getpid(), ("draft_a", "draft_b", "draft_absent"), Control("", 0), self.died.append)

    def looks(self, count: int) -> list[str]:
        for _ in range(count):
            self.ends.look()
        return self.died


def test_an_end_is_told_once_and_the_next_process_is_followed(
    two: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch, {"draft_a": "READY", "draft_b": "READY"})
    assert told.looks(2 * FIND_EVERY) == []
    files = len(os.listdir("/proc/self/fd"))
    for deaths in range(1, 3):
        two["draft_a"].kill()
        os.waitid(os.P_PID, two["draft_a"].pid, os.WEXITED | os.WNOWAIT)  # a zombie stays
        assert told.looks(1) == ["draft_a"] * deaths
        assert told.looks(2 * FIND_EVERY) == ["draft_a"] * deaths, "the zombie is not followed again"
        two["draft_a"].wait()
        two["draft_a"] = started("draft_a")
        assert told.looks(2 * FIND_EVERY) == ["draft_a"] * deaths
        assert len(os.listdir("/proc/self/fd")) == files
    told.ends.close()
    assert len(os.listdir("/proc/self/fd")) == files - 2


def test_what_was_unloaded_did_not_die(
    two: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch, {"draft_a": "UNAVAILABLE", "draft_b": "READY"})
    told.looks(1)
    for process in two.values():
        process.kill()
        process.wait()
    assert told.looks(1) == ["draft_b"]
    told.ends.close()


@pytest.mark.usefixtures("two")
def test_what_could_not_be_loaded_is_told_until_somebody_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"draft_a": "READY", "draft_b": "READY", "draft_absent": FAILED}
    told = Told(monkeypatch, states)
    assert told.looks(2 * FIND_EVERY) == ["draft_absent"] * 2
    for state in ("LOADING", "UNAVAILABLE"):
        states["draft_absent"] = state
        assert told.looks(2 * FIND_EVERY) == ["draft_absent"] * 2
    told.ends.close()


def test_what_the_server_did_not_say_is_asked_again(
    two: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch, {"draft_a": "READY", "draft_b": "READY"})
    told.looks(1)
    two["draft_a"].kill()
    two["draft_a"].wait()

    def silent(_control: Control) -> dict[str, str]:
        raise ControlError("timed out")

    with monkeypatch.context() as patched:
        patched.setattr(Control, "states", silent)
        with pytest.raises(ControlError):
            told.looks(1)
    assert told.looks(1) == ["draft_a"]
    assert told.looks(2) == ["draft_a"]
    told.ends.close()
