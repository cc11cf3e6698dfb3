"""A server is ready when all its ports listen, in whatever order they open."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import Server, StartError
from covey.supervision import processes, rules
from covey.supervision.processes import SERVER
from loadtest.attack import injection, spin

Make = Callable[[], Any]

# Healthy at once and all models loaded, but one port opens late or never; its log says otherwise, as Triton's does.
FAKE = """#!{python}
import http.server, os, pathlib, socket, sys, threading, time
{counted}
ports = {{word.split("=")[0]: int(word.split("=")[1]) for word in sys.argv if "-port=" in word}}

class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass

def serve(port):
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Healthy).serve_forever()

print("successfully loaded 'covey'\\nStarted Metrics Service", flush=True)
late = ports.pop({late!r})
for port in ports.values():
    threading.Thread(target=serve, args=(port,)).start()
time.sleep({seconds})
serve(late)
"""

CRASHING = """
starts = pathlib.Path({starts!r})
count = len(starts.read_bytes()) if starts.exists() else 0
starts.write_bytes(bytes(count + 1))
if count < {crashes}:
    print('W1124 00:11:21.767456 1 log.py:22] "covey.supervision.watch: cannot see calls that hang"', flush=True)
    os.abort()
"""


def with_late_port(folder: Path, late: str, seconds: float, crashes: int = 0) -> Path:
    """A Triton installation whose server opens that port so late, and crashes at its first starts."""
    for path in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).touch()
    binary = folder / "bin" / "tritonserver"
    counted = CRASHING.format(starts=str(folder / "starts"), crashes=crashes)
    binary.write_text(FAKE.format(python=sys.executable, counted=counted, late=late, seconds=seconds))
    binary.chmod(0o755)
    return folder


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_server_is_ready_when_its_last_port_listens(canned_folder: Make, tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []
    canned = canned_folder()
    triton = with_late_port(tmp_path, "--metrics-port", 1.0)
    options = replace(canned.options("covey"), triton=triton, drain_seconds=0.0)
    with Server(options, lambda loaded, _all: seen.append(loaded)) as server:
        ports = (server.options.http_port, server.options.grpc_port, server.options.metrics_port)
        assert [listens(port) for port in ports] == [True] * 3
        assert seen[-1] == ("covey",)


def test_a_port_that_never_listens_is_named(canned_folder: Make, tmp_path: Path) -> None:
    triton = with_late_port(tmp_path, "--metrics-port", 60.0)
    server: Server = canned_folder().server("covey", triton=triton, load_seconds=1.5)
    with pytest.raises(StartError, match=r"not ready after 2 s, no listener on metrics_port \d+ \[log: "):
        server.start()
    assert not server.running


@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_a_tritonserver_that_runs_in_circles_while_it_starts_is_started_again(
    canned_folder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "CIRCLES_SECONDS", 2.0)
    canned = canned_folder()
    triton = with_late_port(tmp_path, "--grpc-port", 2.0)
    server = Server(replace(canned.options("covey"), triton=triton, drain_seconds=0.0, load_seconds=200.0))
    hurt: list[int] = []

    def hurt_once() -> None:
        if not hurt and not injection.harm(SERVER, injection.SPIN, server.pid):
            pytest.skip("tracing is not allowed here")
        hurt.append(server.pid)

    server.start(hurt_once)
    try:
        assert not processes.lives(hurt[0])
        assert hurt[-1] == server.pid
    finally:
        server.kill()


def test_a_start_that_crashes_is_made_again_but_not_for_ever(canned_folder: Make, tmp_path: Path) -> None:
    """Tritonserver's locks in shared memory give up where cores are starved."""
    canned = canned_folder()
    triton = with_late_port(tmp_path, "--grpc-port", 0.0, crashes=2)
    with Server(replace(canned.options("covey"), triton=triton, drain_seconds=0.0)) as server:
        assert server.running
    again: Server = canned.server("covey", triton=with_late_port(tmp_path / "again", "--grpc-port", 0.0, crashes=9))
    with pytest.raises(StartError, match=r"tritonserver ended \(killed by SIGABRT\) \[log: "):
        again.start()
    assert (tmp_path / "again" / "starts").stat().st_size == 3
    assert not again.running
