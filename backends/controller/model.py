"""Loads and unloads models of this server on the orchestrator's behalf.

`pb_utils.load_model` freezes every thread of the process that calls it, so it lives in a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        action = _text(request, "action")
        model = _text(request, "model")
        try:
            if action == "ready":
                ready = pb_utils.is_model_ready(model_name=model)
            elif action == "load":
                pb_utils.load_model(model_name=model)
                ready = True
            elif action == "unload":
                pb_utils.unload_model(model_name=model)
                ready = False
            else:
                raise ValueError(f"action: got {action!r}, allowed: load, unload, ready")
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("ready", np.array([ready], np.bool_))])


def _text(request: Any, name: str) -> str:
    return str(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0].decode())
