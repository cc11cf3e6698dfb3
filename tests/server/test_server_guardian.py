"""A launcher that is killed outright leaves nothing behind, though its server is deaf; one that ends in order is left
alone."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from covey import admin
from covey.care import processes
from covey.server import shared_memory
from covey.server.guardian import Guardian
from covey_client import secret

SECONDS = 60.0
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
LAUNCHER = """
import signal, sys
from covey.server.guardian import Guardian
Guardian(sys.argv[1][::-1], int(sys.argv[2]), int(sys.argv[3]), "127.0.0.1", 0.1)
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


def test_a_server_that_is_deaf_does_not_outlive_a_launcher_that_was_killed(
    prefix: str, server: subprocess.Popen[bytes]
) -> None:
    region = shared_memory.FOLDER / f"{prefix}region"
    region.touch()
    port = server.pid + 2**16  # no server's
    assert admin.settle(port, "")
    words = [sys.executable, "-c", LAUNCHER, prefix[::-1], str(server.pid), str(port)]  # a launcher does not name it
    with subprocess.Popen(words, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline()
        assert server.poll() is None
        launcher.kill()
    assert server.wait(SECONDS) == -signal.SIGKILL
    deadline = time.monotonic() + SECONDS
    while processes.named_by(prefix):
        assert time.monotonic() < deadline, "the guardian ends last"
        time.sleep(0.05)
    assert not region.exists()
    assert not secret.kept(port), "what opened it lies there still"


def test_a_guardian_that_is_dismissed_touches_nothing(prefix: str, server: subprocess.Popen[bytes]) -> None:
    guardian = Guardian(prefix, server.pid, 1, "127.0.0.1", 0.1)
    process = guardian._process
    assert process.poll() is None
    guardian.dismiss()
    assert process.returncode == -signal.SIGKILL
    assert server.poll() is None
    guardian.dismiss()
