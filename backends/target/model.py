"""Triton's adapter for a target model: it only converts messages. The work is in `covey.target.opening`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.target.opening import load_target
from covey.tritonio import bls, ending
from covey.tritonio.log import to_triton
from covey.wire import codec


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        ending.at_once()
        to_triton()
        parameters = json.loads(args["model_config"])["parameters"]
        chosen = profile.from_environment()
        entry = Path(args["model_repository"]) / args["model_version"]
        if "folder" in parameters:
            raise SettingError(
                "parameter folder: tokenisers and drafters need the target's folder too and do not read it here; name "
                "it in the profile (target.folder) or with --model"
            )
        self._runner = load_target(chosen.target.folder or entry, chosen, name=args["model_name"], entry=entry)

    def execute(self, requests: list[Any]) -> list[Any]:
        return bls.serve(requests, self._answer)

    def _answer(self, message: Any) -> Any:
        kind = codec.kind_of(message)
        if kind == codec.INFO_REQUEST.kind:
            return codec.encode(self._runner.info())
        if kind == codec.RESIZE.kind:
            return codec.encode(self._runner.resize(codec.decode_resize(message)))
        return codec.encode(self._runner.step(codec.decode_target_work(message)))
