"""A test whose tritonserver aborts is run again on another, and not for ever; one that kills its server is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Canned
from tests.inner import outcomes

pytestmark = [pytest.mark.e2e, pytest.mark.budget(30)]

TESTS = """
import os, signal, threading, time
from pathlib import Path
import pytest
from covey.server import FREE, Options, Server
from tests.aborts import RUNS, THROWN

HERE, ran = Path({folder!r}), []

@pytest.fixture(scope="module")
def server():
    ports = dict(http_port=FREE, grpc_port=FREE, metrics_port=FREE)
    folders = dict(model_repository=HERE / "models", backends=HERE / "backends", state=HERE / "state")
    with Server(Options(**ports, **folders, models=("covey",), drain_seconds=0.0)) as running:
        yield running

def abort(server, said):
    with server.log_file.open("r+") as log:
        log.seek(1 << 20)  # behind what the server writes yet
        log.write(said)
    os.kill(server.pid, signal.SIGABRT)

def ended(server):
    while server.running:
        time.sleep(0.01)
    return True

def test_aborted(server):
    ran.append("aborted")
    if len(ran) == 1:
        caller = threading.Thread(target=call, args=(server,))
        caller.start()
        abort(server, THROWN)
        caller.join()
        assert not caller, "at once"
    assert server.control.ready()

def call(server):
    while True:
        server.control.states()

def test_aborts_always(server):
    ran.append("always")
    abort(server, THROWN)
    assert not ended(server)

def test_aborted_otherwise(server):
    server.kill()
    server.start()
    ran.append("otherwise")
    abort(server, "")
    assert not ended(server)

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
    assert ran == ["aborted", "aborted", *["always"] * RUNS, "otherwise", "wrong"]
"""


def test_a_test_is_run_again_where_its_server_aborted(canned_folder: Callable[[], Canned], tmp_path: Path) -> None:
    found, said = outcomes(tmp_path, TESTS.format(folder=str(canned_folder().folder)), "tests.aborts")
    assert {name for name, outcome in found if outcome == "PASSED"} == {"test_aborted", "test_how_often"}, said
