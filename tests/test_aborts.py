"""A test whose tritonserver aborts is run again on another, and not for ever; one that kills its server is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Canned

pytestmark = [pytest.mark.e2e, pytest.mark.budget(30)]

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import os, signal, threading, time
from pathlib import Path
import pytest
from covey.server import FREE, Options, Server
from tests.aborts import RUNS

HERE, ran = Path({folder!r}), []

@pytest.fixture(scope="module")
def server():
    ports = dict(http_port=FREE, grpc_port=FREE, metrics_port=FREE)
    folders = dict(model_repository=HERE / "models", backends=HERE / "backends", state=HERE / "state")
    with Server(Options(**ports, **folders, models=("covey",), drain_seconds=0.0)) as running:
        yield running

def end(server, number):
    os.kill(server.pid, number)
    while server.running:
        time.sleep(0.01)

def test_aborted(server):
    ran.append("aborted")
    if len(ran) == 1:
        caller = threading.Thread(target=call, args=(server,))
        caller.start()
        os.kill(server.pid, signal.SIGABRT)
        caller.join()
        assert not caller, "at once"
    assert server.control.ready()

def call(server):
    while True:
        server.control.states()

def test_aborts_always(server):
    ran.append("always")
    end(server, signal.SIGABRT)
    server.check()

def test_killed(server):
    server.kill()
    server.start()
    ran.append("killed")
    end(server, signal.SIGKILL)
    server.check()

def test_thread(server):
    server.kill()
    server.start()
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

def test_wrong(server):
    server.kill()
    server.start()
    ran.append("wrong")
    assert not server.running

def test_how_often():
    assert ran == ["aborted", "aborted", *["always"] * RUNS, "killed", "wrong"]
"""


def test_a_test_is_run_again_where_its_server_aborted(canned_folder: Callable[[], Canned], tmp_path: Path) -> None:
    (tmp_path / "test_these.py").write_text(TESTS.format(folder=str(canned_folder().folder)))
    words = ["-m", "pytest", "-p", "tests.aborts", "-p", "no:cacheprovider", "-c", "pyproject.toml", "-rA"]
    ran = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = {line.split("::")[1] for line in ran.stdout.splitlines() if line.startswith("PASSED")}
    assert passed == {"test_aborted", "test_how_often"}, ran.stdout
