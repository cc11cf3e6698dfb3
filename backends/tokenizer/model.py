"""Converts text to ids and ids to text, for pipelines that scale this apart from the orchestrator.

The backend serves two models; the parameter `direction` selects one. Detokenising keeps no state: each piece of output
carries the tokens before it (`detokenizer_state`). Its text is what it adds to theirs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from covey.contracts import profile
from covey.contracts.errors import BadField, SettingError
from covey.text.text import visible_text
from covey.text.tokenization import load_tokenizer, token_ids
from covey.tritonio.fields import check_prompt
from covey.tritonio.outlets import error_response
from covey.tritonio.tensors import ASKS_FOR_STATE
from covey_client.wire import OUTPUTS

PASSED = tuple(field.name for field in OUTPUTS if field.name != "text_output")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        own = Path(args["model_repository"]).parent / parameters["tokenizer_of"]["string_value"] / "1"
        chosen = profile.from_environment()
        self._limits = chosen.limits
        folder = chosen.target.folder or str(own)
        tokenizer = load_tokenizer(folder)
        if tokenizer is None:
            raise SettingError(f"{folder} has no tokenizer; leave {args['model_name']} out of the profile's models")
        self._tokenizer = tokenizer
        self._convert = {"encode": self._encode, "decode": self._decode}[parameters["direction"]["string_value"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            try:
                responses.append(pb_utils.InferenceResponse(self._convert(request)))
            except Exception as error:
                responses.append(error_response(error))
        return responses

    def _encode(self, request: Any) -> list[Any]:
        raw = _array(request, "text_input").reshape(-1)
        if raw.size != 1:
            raise BadField("text_input", f"{raw.size} values", "one value")
        check_prompt(raw[0], self._limits)
        try:
            text = raw[0].decode()
        except UnicodeDecodeError:
            raise BadField("text_input", raw, "UTF-8 text") from None
        ids = token_ids(self._tokenizer, text)
        return [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor(ASKS_FOR_STATE, np.array([True], np.bool_))]

    def _decode(self, request: Any) -> list[Any]:
        state = json.loads(_array(request, "detokenizer_state").reshape(-1)[0])
        new = _array(request, "output_ids").reshape(-1).tolist()
        before, context, stops, final = state["before"], state["context"], state["stop_words"], state["final"]
        seen = visible_text(self._tokenizer, context, before, stops, final=False)
        text = state["prefix"] + visible_text(self._tokenizer, context, before + new, stops, final=final)[len(seen) :]
        # An ensemble's outputs must all come from one step, so the orchestrator's pass through here.
        same = [pb_utils.Tensor(name, _array(request, name)) for name in PASSED]
        return [pb_utils.Tensor("text_output", np.array([text.encode()], np.object_)), *same]


def _array(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
