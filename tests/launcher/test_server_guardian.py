"""A launcher that is killed outright leaves nothing behind, though its server is deaf; one that ends in order is left
alone."""

from __future__ import annotations

import io
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from covey.launcher import admin, guardian, shared_memory
from covey.launcher.guardian import Guardian
from covey_client import secret
from tests.waiting import until

SECONDS = 60.0
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
LAUNCHER = """
import signal, sys
from covey.launcher.guardian import Guardian
guardian = Guardian("127.0.0.1", [int(sys.argv[2])], 0.1)
for line in (sys.argv[1][::-1], *sys.argv[3:]):
    guardian.tell(line)
print("begun", flush=True)
signal.pause()
"""


@pytest.fixture
def prefix() -> Iterator[str]:
    made = f"covey_0_{secrets.token_hex(4)}_"
    yield made
    shared_memory.remove(made)


@pytest.fixture
def server(prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", DEAF, f"--shm-region-prefix-name={prefix}"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("known", [True, False], ids=["known", "just begun"])
def test_a_server_that_is_deaf_does_not_outlive_a_launcher_that_was_killed(
    prefix: str, server: subprocess.Popen[bytes], known: bool
) -> None:
    region = shared_memory.FOLDER / f"{prefix}region"
    region.touch()
    port = server.pid + 2**16  # no server's
    drawn = admin.settle(port, "")
    words = [sys.executable, "-c", LAUNCHER, prefix[::-1], str(port), drawn]  # a launcher does not name it
    words += [str(server.pid)] if known else []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline()
        assert server.poll() is None
        launcher.kill()
    assert server.wait(SECONDS) == -signal.SIGKILL
    until(lambda: not (region.exists() or secret.kept(port)), lambda: "what opened it lies there still")


def test_a_guardian_that_was_told_nothing_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    monkeypatch.setattr(guardian.processes, "kill", killed.append)
    monkeypatch.setattr(guardian.shared_memory, "remove", killed.append)
    monkeypatch.setattr(guardian.sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(guardian.signal, "signal", lambda _number, _handler: None)
    guardian.main(["0.1", "127.0.0.1", "1"])
    assert killed == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guardian_that_is_killed_or_paused_is_begun_again_and_knows_what_the_first_was_told(
    prefix: str, server: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    made = Guardian("127.0.0.1", [server.pid + 2**16], 0.1)
    for line in (prefix, "", str(server.pid)):
        made.tell(line)
    assert not made.check()
    made._process.send_signal(how)
    until(made.check, seconds=SECONDS)
    assert not made.check()
    assert made._process.stdin is not None
    made._process.stdin.close()  # as if the launcher had ended
    assert server.wait(SECONDS) == -signal.SIGKILL
    made.dismiss()


def test_a_guardian_that_is_dismissed_touches_nothing(prefix: str, server: subprocess.Popen[bytes]) -> None:
    made = Guardian("127.0.0.1", [1], 0.1)
    made.tell(prefix)
    process = made._process
    assert process.poll() is None
    made.dismiss()
    assert process.returncode == -signal.SIGKILL
    assert server.poll() is None
    made.dismiss()
