"""The controller obeys who knows the server's token, and nobody else; no model waits for another one's load."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from covey.server import control
from covey.server.control import Control, ControlError, of_this_server
from tests.tritonio import adapters

SECONDS = 20.0


class Tensor:
    def __init__(self, value: Any) -> None:
        self.value = value

    def as_numpy(self) -> Any:
        return np.array([self.value])


class Request:
    """One to the controller; answered later, once."""

    def __init__(self, token: int, action: str, model: str) -> None:
        self.tensors = {"token": np.int64(token), "action": action.encode(), "model": model.encode()}
        self.answers = threading.Semaphore(0)

    def get_response_sender(self) -> Any:
        return self

    def send(self, _response: Any, _flags: Any) -> None:
        self.answers.release()

    @property
    def answered(self) -> bool:
        return self.answers.acquire(timeout=SECONDS)


def controller(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The model, and its fake of Triton's binding."""
    monkeypatch.setenv("COVEY_TOKEN", "7")
    monkeypatch.setattr(Control, "states", lambda _self: {})
    module, fake = adapters.load(monkeypatch, "controller")
    fake.get_input_tensor_by_name.side_effect = lambda request, name: Tensor(request.tensors[name])
    model = module.TritonPythonModel()
    model.initialize({})
    return model, fake


@pytest.mark.parametrize(
    ("token", "action", "refused"),
    [(7, "load", ""), (7, "unload", ""), (8, "load", "own models"), (0, "unload", "own models"), (7, "ready", "ready")],
)
def test_only_the_token_opens(monkeypatch: pytest.MonkeyPatch, token: int, action: str, refused: str) -> None:
    done: list[tuple[str, str]] = []
    for name in ("load", "unload"):
        monkeypatch.setattr(Control, name, lambda _self, model, *_, name=name: done.append((name, model)))
    model, fake = controller(monkeypatch)
    request = Request(token, action, "draft")
    model.execute([request])
    assert request.answered
    said = [str(call.args[0]) for call in fake.TritonError.call_args_list]
    assert done == ([] if refused else [(action, "draft")])
    assert refused in said[0] if refused else not said


def test_a_load_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(Control, "load", lambda _self, model, *_: model == "hangs" and ends.wait(SECONDS))
    model, _ = controller(monkeypatch)
    hangs, other = Request(7, "load", "hangs"), Request(7, "load", "other")
    model.execute([hangs, other])
    assert other.answered
    assert not hangs.answers.acquire(blocking=False)
    ends.set()
    assert hangs.answered


class _Silent(http.server.BaseHTTPRequestHandler):
    """Says nothing until the test has ended, as Triton does to who loads a model whose process hangs."""

    ended = threading.Event()

    def do_POST(self) -> None:
        if self.path.endswith("index"):
            body = b'[{"name": "loads", "state": "LOADING"}]'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.ended.wait(SECONDS)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def silent() -> Iterator[Control]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Control("127.0.0.1", server.server_address[1], seconds=SECONDS)
        _Silent.ended.set()
        server.shutdown()
        thread.join()


def test_a_load_is_given_up_when_its_process_has_ended(silent: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(control, "DEAD_SECONDS", 0.05)
    monkeypatch.setattr(control.processes, "is_zombie", lambda pid: pid < 0)
    looks: list[dict[str, list[int]]] = [{"draft": [1]}] * 20
    monkeypatch.setattr(control.processes, "by_model", lambda _server: looks.pop() if looks else {"draft": [-1]})
    with pytest.raises(ControlError, match="ended while it was loading"):
        control.load(silent, "draft")
    assert not looks, "it waited while there was a process"
    for act in (control.load, control.unload, control.release):
        with pytest.raises(ControlError, match="is being loaded"):
            act(silent, "loads")


def test_release_waits_until_the_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    living = [{"draft": [1, 2]}, {"draft": [2], "other": [3]}, {"other": [3]}]
    monkeypatch.setattr(Control, "states", lambda _self: {})
    monkeypatch.setattr(Control, "unload", lambda _self, model: said.append(model))
    monkeypatch.setattr(control.processes, "by_model", lambda _server: living.pop(0))
    control.release(Control("", 1), "draft")
    assert (said, living) == (["draft"], [])
    monkeypatch.setattr(control, "RELEASE_SECONDS", 0.0)
    monkeypatch.setattr(control.processes, "by_model", lambda _server: {"draft": [1]})
    with pytest.raises(control.ControlError, match="not ended"):
        control.release(Control("", 1), "draft")


def test_it_reaches_the_server_that_it_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COVEY_HTTP", "COVEY_ADMIN_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    assert of_this_server() == Control("127.0.0.1", 8000, "", 600.0)
    monkeypatch.setenv("COVEY_HTTP", "::1:9000")
    monkeypatch.setenv("COVEY_ADMIN_SECRET", "s")
    assert of_this_server() == Control("::1", 9000, "s", 600.0)
