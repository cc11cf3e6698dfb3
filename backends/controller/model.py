"""Loads and unloads models of this server on the orchestrator's behalf.

Over HTTP: `pb_utils.load_model` freezes every thread of the process that calls it, and when the load fails it can take
all of tritonserver 24.10 down. Each request has a thread, so that no model waits for another one's load. Triton lets
any client ask any model; whoever does not know the server's token is refused.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from covey.server import control
from covey.tritonio import bls
from covey.wire.token import same, token


class TritonPythonModel:
    def initialize(self, _args: dict[str, str]) -> None:
        self._token = token()
        if not self._token:
            pb_utils.Logger.log_warn(
                "this server was started without COVEY_TOKEN: whoever may send requests may load and unload models"
            )
        server = control.of_this_server()
        actions = {"load": control.load, "unload": control.unload, "release": control.release}
        self._actions = {name: partial(action, server) for name, action in actions.items()}

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                action, model = self._asked(request)
                threading.Thread(target=self._act, args=(action, model, sender), name=model, daemon=True).start()
            except Exception as error:
                bls.send(sender, _failed(error))

    def _asked(self, request: Any) -> tuple[str, str]:
        """What is to be done with which model; raises PermissionError and ValueError."""
        action, model = (_value(request, name).decode(errors="replace") for name in ("action", "model"))
        if not same(int(_value(request, "token")), self._token):
            raise PermissionError("model control is for this server's own models")
        if action not in self._actions:
            raise ValueError(f"action: got {action!r}, allowed: {', '.join(self._actions)}")
        return action, model

    def _act(self, action: str, model: str, sender: Any) -> None:
        try:
            self._actions[action](model)
            answer = pb_utils.InferenceResponse([])
        except Exception as error:
            answer = _failed(error)
        bls.send(sender, answer)


def _failed(error: Exception) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))


def _value(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
