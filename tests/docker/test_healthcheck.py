"""The image's health check: as healthy as what it serves."""

from __future__ import annotations

import http.client
import http.server
import itertools
import runpy
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import covey

HEALTHCHECK = Path(covey.__file__).parents[2] / "docker" / "healthcheck"


@pytest.mark.parametrize(
    ("down", "said"),
    [
        (None, None),
        ((8000, "/v2/health/ready"), "/v2/health/ready on port 8000 answers"),
        ((8000, "/v2/models/covey/ready"), "covey/ready on port 8000 answers"),
        ((8010, "/v2/health/ready"), "/v2/health/ready on port 8010 answers"),
    ],
)
def test_it_follows_the_server_and_the_public_model(
    monkeypatch: pytest.MonkeyPatch, down: tuple[int, str] | None, said: str | None
) -> None:
    class Connection:
        def __init__(self, _host: str, port: int, **_settings: object) -> None:
            self.port, self.status = port, 200

        def request(self, _method: str, path: str) -> None:
            self.status = 400 if (self.port, path) == down else 200

        def getresponse(self) -> SimpleNamespace:
            return SimpleNamespace(status=self.status)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    monkeypatch.setattr(sys, "argv", [str(HEALTHCHECK)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HEALTHCHECK), run_name="__main__")
    assert (said or "0") in str(ended.value)


def test_a_server_without_covey_is_asked_for_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    program = runpy.run_path(str(HEALTHCHECK))
    monkeypatch.setitem(program["problem"].__globals__, "asked", lambda *ask: asked.append(ask) or 200)
    monkeypatch.setenv("COVEY_HEALTH_MODEL", "draft_general")
    assert program["problem"]() == ""
    assert asked == [(8000, "/v2/health/ready"), (8000, "/v2/models/draft_general/ready")]


class Answers(http.server.BaseHTTPRequestHandler):
    """A front."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/ready" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("speaks", ["http", "tls", "tls for those who have a certificate"])
def test_a_front_is_ready_whatever_it_speaks(tmp_path: Path, speaks: str) -> None:
    asked = runpy.run_path(str(HEALTHCHECK))["asked"]
    server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if speaks != "http":
        words = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -days 1 -out c -keyout k"
        )
        subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "c", tmp_path / "k")
        if speaks != "tls":
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(tmp_path / "c")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert asked(server.server_port, "/v2/health/ready") == 200
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(ConnectionRefusedError):
        asked(server.server_port, "/v2/health/ready")


def watched(states: str, told: float = 0.0, step: float = 5.0) -> tuple[int, float] | None:
    """After how many looks it is ended, and for how long it had not been ready; `states` has a letter for each look, +
    where it is ready."""
    program, looks = runpy.run_path(str(HEALTHCHECK)), iter(states)
    clock = itertools.count(0.0, step)
    seen = []

    def problem() -> str:
        seen.append(next(looks))
        return "" if seen[-1] == "+" else "not ready"

    try:
        what, bad = program["wait_for_trouble"](told, 30.0, problem, lambda: next(clock), lambda _seconds: None)
    except StopIteration:
        return None
    assert what == "not ready"
    return len(seen), bad


def test_a_server_that_is_not_ready_for_long_is_ended() -> None:
    assert watched("+" + 100 * "-") == (67, 330.0)
    assert watched("+" + 3 * (65 * "-" + "+")) is None, "it came back each time"
    assert watched(40 * "-" + "+" + 200 * "-") == (41 + 129, 645.0), "its start took 205 s: a later one may take 615"
    assert watched("+" + 100 * "-", told=60.0) == (13, 60.0)
    assert watched(200 * "-", told=60.0) == (180, 900.0), "a first start has its time"


def test_a_server_that_was_ready_for_two_seconds_has_started() -> None:
    program, now = runpy.run_path(str(HEALTHCHECK)), 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def problem() -> str:
        return "" if 11.0 < now <= 13.0 else "not ready"

    assert program["wait_for_trouble"](60.0, 30.0, problem, lambda: now, sleep) == ("not ready", 60.0)
    assert now == 72.0


def test_time_in_which_the_machine_slept_does_not_count() -> None:
    assert watched("+" + 100 * "-", told=60.0, step=1000.0) == (5, 68.0)


def test_the_server_is_told_and_then_killed() -> None:
    program = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(60)"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        ending = runpy.run_path(str(HEALTHCHECK))
        slept: list[float] = []
        ending["end"].__globals__.update(
            wait_for_trouble=lambda *_: ("not ready", 5.0), time=SimpleNamespace(sleep=slept.append)
        )
        ending["end"](server.pid)
        assert server.wait() == -signal.SIGKILL
    assert slept == [50.0], "what a drain and an end may take"
