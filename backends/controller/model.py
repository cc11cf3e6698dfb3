"""Loads and unloads models of this server on the orchestrator's behalf.

Over HTTP: `pb_utils.load_model` freezes every thread of the process that calls it, and when the load fails it can take
all of tritonserver 24.10 down. Triton lets any client ask any model; whoever does not know the server's token is
refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from covey.server.control import of_this_server, release
from covey.wire.token import same, token


class TritonPythonModel:
    def initialize(self, _args: dict[str, str]) -> None:
        self._token = token()
        if not self._token:
            pb_utils.Logger.log_warn(
                "this server was started without COVEY_TOKEN: whoever may send requests may load and unload models"
            )
        control = of_this_server()
        self._actions = {"load": control.load, "unload": control.unload, "release": partial(release, control)}

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            action, model = (_value(request, name).decode(errors="replace") for name in ("action", "model"))
            if not same(int(_value(request, "token")), self._token):
                raise PermissionError("model control is for this server's own models")
            if action not in self._actions:
                raise ValueError(f"action: got {action!r}, allowed: {', '.join(self._actions)}")
            self._actions[action](model)
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))
        return pb_utils.InferenceResponse([])


def _value(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
