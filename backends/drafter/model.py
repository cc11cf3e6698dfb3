"""Triton's adapter for drafters: messages in, messages out. The work is in `covey.drafters`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey import profile, registry
from covey.drafters import load_drafter
from covey.tritonio import bls, ending
from covey.wire import codec


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        ending.at_once()
        parameters = json.loads(args["model_config"])["parameters"]
        kind, named = (parameters.get(key, {}).get("string_value", "") for key in ("kind", "folder"))
        chosen, name = profile.from_environment(), args["model_name"]
        if registry.has_weights(kind) and chosen.target.kind == "neural":
            import torch  # lookups and emulated drafters do without

            torch.set_num_threads(1)  # the target has the cores
        entry = Path(args["model_repository"]) / args["model_version"]
        folder = chosen.drafter.folder_of(name) or named or entry
        target = chosen.target.folder or entry.parents[1] / "target" / entry.name
        self._drafter = load_drafter(kind, folder, target, chosen, name=name)

    def execute(self, requests: list[Any]) -> list[Any]:
        return bls.serve(requests, self._answer)

    def _answer(self, message: Any) -> Any:
        if codec.kind_of(message) == codec.INFO_REQUEST.kind:
            return codec.encode_info(self._drafter.info())
        return codec.encode_draft_reply(self._drafter.draft(codec.decode_draft_work(message)))
