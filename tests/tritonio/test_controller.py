"""The controller obeys who knows the server's token, and nobody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covey.server import control
from covey.server.control import Control, of_this_server
from tests.tritonio import adapters


class Tensor:
    def __init__(self, value: Any) -> None:
        self.value = value

    def as_numpy(self) -> Any:
        return np.array([self.value])


@pytest.mark.parametrize(
    ("token", "action", "refused"),
    [(7, "load", ""), (7, "unload", ""), (8, "load", "own models"), (0, "unload", "own models"), (7, "ready", "ready")],
)
def test_only_the_token_opens(monkeypatch: pytest.MonkeyPatch, token: int, action: str, refused: str) -> None:
    done: list[tuple[str, str]] = []
    for name in ("load", "unload"):
        monkeypatch.setattr(Control, name, lambda _self, model, name=name: done.append((name, model)))
    monkeypatch.setenv("COVEY_TOKEN", "7")
    module, fake = adapters.load(monkeypatch, "controller")
    sent = {"token": np.int64(token), "action": action.encode(), "model": b"draft"}
    fake.get_input_tensor_by_name.side_effect = lambda _request, name: Tensor(sent[name])
    model = module.TritonPythonModel()
    model.initialize({})
    model.execute([object()])
    said = [str(call.args[0]) for call in fake.TritonError.call_args_list]
    assert done == ([] if refused else [(action, "draft")])
    assert refused in said[0] if refused else not said


def test_release_waits_until_the_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    living = [{"draft": [1, 2]}, {"draft": [2], "other": [3]}, {"other": [3]}]
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
