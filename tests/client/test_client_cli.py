"""The command line against the real tritonserver."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from covey.launcher import Server
from covey_client.cli import main
from tests.waiting import until

Running = tuple[Server, Any]
Run = Callable[..., int]

pytestmark = pytest.mark.e2e


@pytest.fixture
def covey(canned_server: Running) -> Run:
    def run(command: str, *arguments: str) -> int:
        return main([command, "--url", canned_server[0].grpc_url, *arguments])

    return run


def test_generate_streams_text(covey: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert covey("generate", "count 3", "--stats") == 0
    out, err = capsys.readouterr()
    assert out == "w0 w1 w2 \n"
    assert "3 tokens" in err
    assert "finish: length" in err


def test_generate_reads_stdin_and_writes_json(
    covey: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("settings"))
    flags = ["--max-tokens", "5", "--stop-words", "a", "--stop-words", "b", "--no-exclude-input-in-output"]
    assert covey("generate", "-", "--json", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finish_reason"] == "eos"
    assert json.loads(found["text"]) == {
        "text_input": "settings",
        "stream": False,
        "max_tokens": 5,
        "stop_words": ["a", "b"],
        "exclude_input_in_output": False,
    }


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["error [INVALID_ARG] top_k: got -1, allowed: 0 or more"], 2, "top_k: got -1"),
        (["error [UNAVAILABLE] the queue is full"], 3, "the queue is full"),
        (["hang", "--timeout", "0.2"], 4, "within 0.2 s"),
        (["error [INTERNAL] oh"], 1, "oh"),
        (["count 3", "--url", "127.0.0.1:9"], 5, "127.0.0.1:9"),
    ],
)
def test_errors_are_one_line_and_a_status(
    covey: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert covey("generate", *arguments) == status
    out, err = capsys.readouterr()
    assert err.startswith("covey: ")
    assert err.count("\n") == 1
    assert said in err
    assert out == ""


def test_a_full_disk_is_one_line_as_well(canned_server: Running) -> None:
    words = [sys.executable, "-m", "covey_client.cli", "generate", "count 3", "--url", canned_server[0].grpc_url]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_status(canned_server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    server = canned_server[0]
    where = ["--url", server.http_url, "--metrics-url", server.metrics_url.removesuffix("/metrics")]
    assert main(["status", *where, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ready"] is True
    assert {"name": "covey", "state": "READY", "reason": ""} in shown["models"]


# A shell's background jobs ignore interrupts, and so does whatever they start: these tests, and the command.
HEEDING_INTERRUPTS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from covey_client.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_interrupt_cancels_the_request(canned_server: Running) -> None:
    server, canned = canned_server
    words = [sys.executable, "-c", HEEDING_INTERRUPTS, "generate", "slow 400", "--tenant", "interrupted"]
    with subprocess.Popen(
        [*words, "--url", server.grpc_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == "w0 "
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert "Traceback" not in process.stderr.read()
    until((canned.marks / "interrupted").exists, seconds=5.0)
