"""Triton's adapter for drafters: it only converts messages. The work and its queue are in `covey.drafters`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from covey.contracts import profile, registry
from covey.contracts.errors import CoveyError
from covey.contracts.types import DraftReply
from covey.drafters import load_drafter
from covey.drafters.service import DraftService
from covey.process.footprint import private_bytes
from covey.star import callers
from covey.tritonio import bls, ending
from covey.tritonio.log import to_triton
from covey.tritonio.metrics import DRAFT_COUNTERS, DRAFT_GAUGES, Metrics
from covey.wire import codec
from covey.wire.token import token


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        ending.at_once()
        to_triton()
        parameters = json.loads(args["model_config"])["parameters"]
        kind, named = (parameters.get(key, {}).get("string_value", "") for key in ("kind", "folder"))
        chosen, name = profile.from_environment(), args["model_name"]
        if registry.has_weights(kind):
            os.environ["OMP_NUM_THREADS"] = "1"  # for PyTorch, if it is imported: the cores belong to the target
        entry = Path(args["model_repository"]) / args["model_version"]
        folder = chosen.drafter.folder_of(name) or named or entry
        target = chosen.target.folder or entry.parents[1] / "target" / entry.name
        self._emulated = chosen.target.emulated
        star = chosen.star
        others = callers.read(star.callers) if star.callers else []
        again = partial(callers.read, star.callers) if star.callers else None
        self._auth = callers.Authenticator(token(), others, again)
        self._service = DraftService(
            load_drafter(kind, folder, target, chosen, name=name),
            weights={each.name: each.weight for each in others},
        )
        torch = sys.modules.get("torch")  # most drafters on a CPU run without it
        self._on_gpu = chosen.drafter.device != "cpu" and torch is not None and torch.cuda.is_available()
        self._metrics = Metrics(name, DRAFT_COUNTERS, DRAFT_GAUGES, {})
        self._metrics.follow(self._service.counters)
        self._metrics.watch(self._service.gauges)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer a lone sender's call in this thread. With several senders, queue each call and answer it in its turn,
        so that Triton can hand over the next ones."""
        if len(requests) == 1:
            return self._one(requests[0])
        for request in requests:
            responses = self._one(request)
            if responses is not None:
                bls.send(request.get_response_sender(), responses[0])
        return None

    def finalize(self) -> None:
        self._service.stop()
        self._metrics.stop()

    def _held(self) -> dict[str, Any]:
        """Return the memory that the target would gain if this process ended. Emulated drafters report it
        themselves."""
        if self._emulated:
            return {}
        if self._on_gpu:
            import torch

            return {"device": "cuda", "resident_bytes": torch.cuda.memory_reserved()}
        return {"device": "cpu", "resident_bytes": private_bytes()}

    def _one(self, request: Any) -> list[Any] | None:
        """Return the response in a list; None if it is sent later."""
        try:
            message = bls.message_of(request)
            caller = self._auth.caller(message)
            if codec.kind_of(message) == codec.INFO_REQUEST.kind:
                return [bls.response(codec.encode(replace(self._service.info(), **self._held())))]
            work = codec.decode_draft_work(message)
            work = replace(work, origin=self._auth.origin(caller, work.origin))
            reply = self._service.at_once(work, caller)
            if reply is not None:
                return [bls.response(codec.encode(reply))]
            self._service.submit(work, caller, partial(_send, request.get_response_sender()))
            return None
        except Exception as error:
            return [bls.failure(error)]


def _send(sender: Any, answer: DraftReply | CoveyError) -> None:
    failed = isinstance(answer, CoveyError)
    bls.send(sender, bls.failure(answer) if failed else bls.response(codec.encode(answer)))
