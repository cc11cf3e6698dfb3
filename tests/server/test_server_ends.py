"""A process that ended is told once, unless its model was unloaded; its successor is followed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from covey.server.control import Control
from covey.server.ends import FIND_SECONDS, Ends, EndsWatch

SECONDS = 20.0


def started(model: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"{model}_0_0"])


@pytest.fixture
def two() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running = {model: started(model) for model in ("draft_a", "draft_b")}
    yield running
    for process in running.values():
        process.kill()
        process.wait()


def test_an_end_is_told_once_and_the_next_process_is_followed(two: dict[str, subprocess.Popen[bytes]]) -> None:
    ends = Ends(os.getpid(), ("draft_a", "draft_b", "draft_absent"))
    assert ends.look(0.0) == []
    for round in range(1, 3):
        two["draft_a"].kill()
        os.waitid(os.P_PID, two["draft_a"].pid, os.WEXITED | os.WNOWAIT)  # a zombie stays
        assert ends.look(0.1) == ["draft_a"]
        assert ends.look(FIND_SECONDS * (2 * round)) == [], "the zombie is not followed again"
        two["draft_a"].wait()
        two["draft_a"] = started("draft_a")
        assert ends.look(FIND_SECONDS * (2 * round + 1)) == []
    ends.close()


def test_what_was_unloaded_did_not_die(
    two: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "states", lambda _control: {"draft_a": "UNAVAILABLE", "draft_b": "READY"})
    ends, died, told = Ends(os.getpid(), tuple(two)), [], threading.Event()
    ends.look(0.0)

    def told_of(model: str) -> None:
        died.append(model)
        told.set()

    watch = EndsWatch(ends, Control("", 0), told_of)
    two["draft_a"].kill()
    two["draft_a"].wait()
    two["draft_b"].kill()
    assert told.wait(SECONDS)
    watch.stop()
    assert died == ["draft_b"]
