"""Where each command asks: what COVEY_URL, --url and --http-url make of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import Server
from covey_client import InvalidRequest, running, secret, status
from covey_client.address import Address
from covey_client.cli import main, parser
from covey_client.commands import flags

Running = tuple[Server, Any]
Asked = Callable[..., str]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this user's servers say where they listen; none runs."""
    monkeypatch.setattr(running, "folder", lambda: tmp_path)
    return tmp_path


def test_a_secret_comes_from_the_environment_or_from_the_file_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text("of the file\n")
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    monkeypatch.setenv(secret.FILE_VARIABLE, str(path))
    assert secret.given() == "of the file"
    monkeypatch.setenv(secret.VARIABLE, "itself")
    assert secret.given() == "itself"
    monkeypatch.delenv(secret.VARIABLE)
    for hurt in (lambda: path.write_text(""), path.unlink):
        hurt()
        with pytest.raises(InvalidRequest, match=secret.FILE_VARIABLE):
            secret.given()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The HTTP address that a command line comes to."""

    def run(covey_url: str | None, *words: str) -> str:
        if covey_url is None:
            monkeypatch.delenv("COVEY_URL", raising=False)
        else:
            monkeypatch.setenv("COVEY_URL", covey_url)
        return flags.http_url(parser().parse_args(words))

    return run


def test_without_flags_the_host_is_that_of_covey_url(asked: Asked) -> None:
    assert asked(None, "status") == "127.0.0.1:8000"
    assert asked("", "status") == "127.0.0.1:8000"
    assert asked("box", "status") == "box:8000"
    assert asked("box:9001", "status") == "box:8000"
    assert asked("grpcs://box:9001", "status") == "https://box:8000"
    assert asked("[::1]:9001", "status") == "[::1]:8000"
    assert asked("box:9001", "status", "--http-url", "other:1") == "other:1"
    assert asked("box:9001", "status", "--url", "other:7") == "other:7"


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--url", "ftp://box"],
        ["status", "--metrics-url", "box:port"],
        ["generate", "x", "--url", "box:port"],
        ["status", "--http-url", "box:port"],
    ],
    ids=" ".join,
)
def test_what_is_no_address_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "allowed: host:port" in err
    assert err.count("\n") == 1


def test_any_port_of_a_server_that_runs_here_or_none_is_enough(asked: Asked) -> None:
    server = running.RunningServer("127.0.0.1", 9001, 9000, 9002, os.getpid(), 9010, 9011)
    server.write()
    for port in (None, 9001, 9000, 9002, 9010, 9011):
        given = [] if port is None else ["--url", f"localhost:{port}"]
        assert Address.parse(asked(None, "status", *given), port=1).port == 9000
        with flags.client(parser().parse_args(["generate", "x", *given])) as made:
            through = 9011 if port in (9010, 9011) else 9001
            assert made._address.port == through, "requests for the front go through it"
    assert asked("box", "status") == "box:8000"
    assert asked(None, "status", "--url", "box:9001") == "box:9001", "another machine's"

    other = running.RunningServer("127.0.0.1", 7001, 7000, 7002, os.getpid())
    other.write()
    assert main(["generate", "x"]) == 2, "which of them?"
    replace(other, http=6000, grpc=8001).write()
    assert asked(None, "status") == "127.0.0.1:6000", "the one on the usual port"
    server.forget()
    assert len(running.servers()) == 2


def test_what_a_killed_server_left_and_what_others_could_have_written_is_not_believed(here: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    running.RunningServer("127.0.0.1", 9001, 9000, 9002, gone.pid).write()
    told = {"host": "127.0.0.1", "grpc": 9001, "http": 9000, "metrics": 9002, "pid": os.getpid(), "started": 1}
    wrong: tuple[Any, ...] = ("{", "[1]", told, {**told, "pid": "x"}, {**told, "pid": 1 << 70}, {**told, "host": 5})
    for number, said in enumerate(wrong):
        (here / f"127.0.0.1_{number}.ports").write_text(said if isinstance(said, str) else json.dumps(said))
        assert running.servers() == [], "a later process has its launcher's number, or a file is damaged"
    assert running.usual() == "127.0.0.1:8001"
    running.RunningServer("127.0.0.1", 9001, 9000, 9002, os.getpid()).write()
    assert len(running.servers()) == 1
    here.chmod(0o777)
    assert running.servers() == []


class Http(BaseHTTPRequestHandler):
    """Speaks HTTP/1, as a server of something else, which answers everything alike."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_said: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def http_port() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Http) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_an_http_port_where_grpc_is_meant_says_so(http_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", "--url", http_port]) == 1
    assert "does not speak gRPC: is it an HTTP port? Give the gRPC port" in capsys.readouterr().err


NOT_COVEY, NOT_OURS = "does not answer as Covey does", "the server's decisions are not in Covey's form"
DECISIONS = {
    "1": NOT_OURS,
    '{"policy": "a", "decisions": [1]}': NOT_OURS,
    "[" * 100_000: NOT_COVEY,
}
MODELS = [b"hi!!", b"\xff", b"7", b"[1]", b"[{}]", b'{"a": 1}', b'[{"name": 1}]', b"[" * 100_000]


def test_a_server_of_something_else_says_so(
    http_port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [(json.dumps({"report": report}).encode(), ["--decisions"], said) for report, said in DECISIONS.items()]
    for body, words, said in (*answers, *((body, [], f"{http_port} {NOT_COVEY}") for body in MODELS)):
        monkeypatch.setattr(Http, "body", body)
        assert main(["status", *words, "--http-url", http_port]) == 1
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1


def test_metrics_that_are_none_are_missing(http_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Http, "body", b"[] \xff")
    monkeypatch.setattr(status, "_models", lambda *_read: ())
    assert status.read(http_port, http_port).samples == ()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "words",
    [["status", "--url"], ["status", "--decisions", "3", "--url"]],
    ids=lambda words: words[0] + str(len(words)),
)
def test_the_grpc_port_where_http_is_meant_says_so(
    canned_server: Running, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    where = canned_server[0].grpc_url
    assert main([*words, where]) in (1, 5)
    said = capsys.readouterr().err
    assert f"{where} does not speak HTTP: is that the gRPC port? Give the HTTP port (usually 8000)" in said
    assert said.count("\n") == 1
