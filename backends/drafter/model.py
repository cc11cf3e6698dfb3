"""Triton's adapter for drafters: messages in, messages out. The work is in `covey.drafters`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey import profile, registry
from covey.drafters import load_drafter
from covey.footprint import private_bytes
from covey.tritonio import bls, ending
from covey.wire import codec


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        ending.at_once()
        parameters = json.loads(args["model_config"])["parameters"]
        kind, named = (parameters.get(key, {}).get("string_value", "") for key in ("kind", "folder"))
        chosen, name = profile.from_environment(), args["model_name"]
        self._on_gpu = False
        if registry.has_weights(kind) and chosen.target.kind == "neural":
            import torch  # lookups and emulated drafters do without

            torch.set_num_threads(1)  # the target has the cores
            self._on_gpu = chosen.drafter.device != "cpu" and torch.cuda.is_available()
        entry = Path(args["model_repository"]) / args["model_version"]
        folder = chosen.drafter.folder_of(name) or named or entry
        target = chosen.target.folder or entry.parents[1] / "target" / entry.name
        self._emulated = chosen.target.kind == "emulated"
        self._drafter = load_drafter(kind, folder, target, chosen, name=name)

    def execute(self, requests: list[Any]) -> list[Any]:
        return bls.serve(requests, self._answer)

    def _held(self) -> dict[str, Any]:
        """What would be the target's if this process ended; an emulated device's drafters say it themselves."""
        if self._emulated:
            return {}
        if self._on_gpu:
            import torch

            return {"resident_bytes": torch.cuda.memory_reserved(), "device": "cuda"}
        return {"resident_bytes": private_bytes(), "device": "cpu"}

    def _answer(self, message: Any) -> Any:
        if codec.kind_of(message) == codec.INFO_REQUEST.kind:
            return codec.encode_info(replace(self._drafter.info(), **self._held()))
        return codec.encode_draft_reply(self._drafter.draft(codec.decode_draft_work(message)))
