"""What a server's own processes load and unload they give up where that would never end."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from covey.supervision import control
from covey.supervision.control import FAILED, Control, ControlError, InnerControl

SECONDS = 20.0
ROWS = [("loads", "LOADING", ""), ("away", "UNAVAILABLE", "unloaded"), ("bad", "UNAVAILABLE", "Internal: no")]


class _Silent(http.server.BaseHTTPRequestHandler):
    """Says nothing until the test has ended, as Triton does to who loads a model whose process hangs."""

    ended = threading.Event()

    def do_POST(self) -> None:
        if self.path.endswith("index"):
            rows = [{"name": name, "state": state, "reason": reason} for name, state, reason in ROWS]
            body = json.dumps(rows).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.ended.wait(SECONDS)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def silent() -> Iterator[InnerControl]:
    _Silent.ended.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield InnerControl("127.0.0.1", server.server_address[1], seconds=SECONDS)
        _Silent.ended.set()
        server.shutdown()
        thread.join()


def test_a_load_is_given_up_when_its_process_has_ended(silent: InnerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(control, "DEAD_SECONDS", 0.05)
    looks: list[dict[str, list[int]]] = [{"draft": [1]}] * 20
    monkeypatch.setattr(control.processes, "by_model", lambda _server: looks.pop() if looks else {})
    with pytest.raises(ControlError, match="ended while it was loading"):
        silent.load("draft")
    assert not looks, "it waited while there was a process"
    for act in (silent.load, silent.unload, silent.release):
        with pytest.raises(ControlError, match="is being loaded"):
            act("loads")


def test_what_nobody_answers_is_given_up(silent: InnerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "WAIT_SECONDS", 0.01)
    began = time.monotonic()
    with pytest.raises(ControlError, match="timed out"):
        Control(silent.host, silent.port, seconds=0.2).load("draft")
    assert 0.2 <= time.monotonic() - began < SECONDS / 2


def test_who_was_unloaded_has_not_failed(silent: InnerControl) -> None:
    assert silent.states() == {"loads": "LOADING", "away": "UNAVAILABLE", "bad": FAILED}


def test_release_waits_until_the_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    living = [{"draft": [1, 2]}, {"draft": [2], "other": [3]}, {"other": [3]}]
    monkeypatch.setattr(Control, "states", lambda _self: {})
    monkeypatch.setattr(Control, "unload", lambda _self, model: said.append(model))
    monkeypatch.setattr(control.processes, "by_model", lambda _server: living.pop(0))
    InnerControl("", 1).release("draft")
    assert (said, living) == (["draft"], [])
    monkeypatch.setattr(control, "RELEASE_SECONDS", 0.0)
    monkeypatch.setattr(control.processes, "by_model", lambda _server: {"draft": [1]})
    with pytest.raises(control.ControlError, match="not ended"):
        InnerControl("", 1).release("draft")
