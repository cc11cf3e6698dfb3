"""The launcher and the real tritonserver."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import Server, ServerDied, StartError, shared_memory
from covey.launcher.__main__ import _started_again
from covey.supervision.control import Control, ControlError
from covey.supervision.restarts import Restarts
from covey_client import Client, CoveyClientError, running, secret
from tests.waiting import until

pytestmark = pytest.mark.e2e
Make = Callable[[], Any]


def _regions(server: Server) -> list[str]:
    return [path.name for path in shared_memory.FOLDER.glob(f"covey_{server.options.http_port}_*")]


def test_two_servers_start_at_once_and_leave_nothing(canned_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_ADMIN_SECRET", raising=False)
    canned = canned_folder()
    seen: list[tuple[str, ...]] = []
    servers = [Server(canned.options("covey"), lambda loaded, _all: seen.append(loaded)) for _ in range(2)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert ("covey",) in seen
        for server in servers:
            assert _regions(server)
            with Client(server.grpc_url) as client:
                assert client.generate("count 2").tokens == (0, 1)
        assert servers[0].log_file != servers[1].log_file
        one, other = (secret.kept(server.options.http_port) for server in servers)
        with pytest.raises(ControlError, match=r"403|restricted"):
            replace(servers[0].control, secret=other).states()
        assert replace(servers[0].control, secret=one).states() == {"covey": "READY"}
        servers[0].stop()
        with Client(servers[1].grpc_url) as client:
            assert client.generate("count 2").tokens == (0, 1)
    finally:
        for server in servers:
            server.stop(drain_seconds=0)
    assert not any(_regions(server) or secret.kept(server.options.http_port) for server in servers)


def test_a_model_that_fails_says_why_in_one_line(canned_folder: Make) -> None:
    canned = canned_folder()
    canned.add("broken", fail="weights missing: no model.safetensors in /nowhere")
    server = canned.server("covey", "broken")
    with pytest.raises(StartError) as caught:
        server.start()
    assert str(caught.value).startswith("model 'broken': weights missing: no model.safetensors in /nowhere [log: ")
    assert "\n" not in str(caught.value)
    assert not server.running
    assert not _regions(server)


def test_a_drain_has_an_end(canned_folder: Make) -> None:
    with canned_folder().server("covey") as server, Client(server.grpc_url, timeout=20) as client:
        stream = client.stream("slow 400")
        next(stream)
        began = time.monotonic()
        assert not server.stop(drain_seconds=0.2)
        assert time.monotonic() - began < 5
        with pytest.raises(CoveyClientError):
            list(stream)


def test_a_server_that_dies_is_noticed_and_cleaned_up_after(canned_folder: Make) -> None:
    canned = canned_folder()
    with canned.server("covey") as server:
        server.check()
        os.killpg(server.pid, signal.SIGKILL)
        while server.running:
            time.sleep(0.01)
        with pytest.raises(ServerDied, match=r"killed by SIGKILL(.|\n)*Started Metrics Service"):
            server.check()
        assert _regions(server)
        with canned.server("covey"):
            assert _regions(server), "its launcher still lives"
    assert not _regions(server)


def _launch(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        said += line
    return said


def test_the_command_serves_until_it_is_told_to_stop(canned_folder: Make) -> None:
    with _launch(canned_folder().command("covey")) as process:
        said = _until_ready(process)
        assert "/v2/models/covey/generate_stream" in said
        grpc = said.partition("covey generate --url ")[2].split()[0]
        with Client(grpc) as client:
            assert client.generate("count 2").tokens == (0, 1)
        assert [each.pid for each in running.servers() if each.at(each.grpc) == grpc] == [process.pid]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.pid not in [each.pid for each in running._read()]
        assert process.returncode == 0
        assert "loaded covey (1/1)" in errors
        assert "stopped; no request was broken off" in errors
        assert "Traceback" not in errors


def test_a_second_interrupt_stops_at_once(canned_folder: Make) -> None:
    with _launch(canned_folder().command("covey")) as process:
        grpc = _until_ready(process).partition("covey generate --url ")[2].split()[0]
        with Client(grpc, timeout=30) as client:
            stream = client.stream("slow 400")
            next(stream)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=5)
            assert process.returncode == 0
            assert "no request was broken off" not in errors
            assert "Traceback" not in errors
            with pytest.raises(CoveyClientError):
                list(stream)


def test_a_launcher_that_can_write_to_nobody_starts_its_server_again(canned_folder: Make) -> None:
    """Its log is on a full disk."""
    with Path("/dev/full").open("w") as full:
        words = canned_folder().command("covey")
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full, text=True) as process:
            try:
                http = _until_ready(process).partition("curl -s http://")[2].partition("/")[0]
                host, _, port = http.partition(":")
                before = _servers(process.pid)
                os.kill(before.copy().pop(), signal.SIGKILL)
                until(lambda: _servers(process.pid) - before and Control(host, int(port)).ready())
                assert process.poll() is None
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def _servers(launcher: int) -> set[int]:
    """The tritonservers below it that run."""
    children = {int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()}
    found = set()
    for pid in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if Path(f"/proc/{pid}/comm").read_text().startswith("triton"):
                found.add(pid)
    return found


def test_a_start_that_fails_for_want_of_anything_is_tried_again() -> None:
    problems: list[Exception] = [StartError("not ready"), OSError(28, "No space left on device")]

    class Full:
        def start(self, _meanwhile: object) -> None:
            if problems:
                raise problems.pop()

    assert _started_again(Full(), Restarts(itertools.count(0, 400.0).__next__), lambda: None)  # type: ignore[arg-type]
    assert not problems


def test_the_command_says_in_one_line_why_it_cannot_start(canned_folder: Make, tmp_path: Path) -> None:
    canned = canned_folder()
    (tmp_path / "bad.toml").write_text("modells = []\n")
    with canned.server("covey") as server:
        cases = {
            ("--http-port", str(server.options.http_port)): "is not free",
            ("--profile", str(tmp_path / "bad.toml")): "modells",
        }
        for words, said in cases.items():
            command = (*canned.command("covey"), *words)
            found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert found.returncode == 2
            assert found.stderr.startswith("covey: cannot start: ")
            assert said in found.stderr
            assert found.stderr.count("\n") == 1
