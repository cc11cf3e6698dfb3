"""Triton's adapter for the public model, the orchestrator. Requests become work for `covey.loop.engine`, and its
progress becomes responses.

This file holds only what depends on Triton; `covey.public_model` is the model itself. It calls a target and drafters,
which are other models of this server. Triton reports this model ready before its engine is, so the launcher asks the
engine.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from functools import partial
from typing import Any

from covey.contracts import profile
from covey.contracts.clock import RealClock
from covey.contracts.ports import Clock
from covey.contracts.profile import Profile
from covey.contracts.types import DrafterInfo, JsonDict
from covey.process import traces
from covey.process.guard import Guard
from covey.process.traces import Traces
from covey.public_model.build import Builder, named_costs
from covey.public_model.drafter_facts import DrafterFacts
from covey.public_model.life import Life
from covey.public_model.link_handler import LinkHandler
from covey.public_model.requests import Requests
from covey.public_model.start import Start
from covey.supervision import calls, presence, processes
from covey.supervision.control import InnerControl, of_this_server
from covey.supervision.watch import Watch
from covey.tritonio import bls, link
from covey.tritonio.log import to_triton
from covey.tritonio.metrics import Metrics
from covey.tritonio.outlets import Sender, SenderOutlet, TritonRequest, take_each
from covey.tritonio.residency import TritonResidency

SWITCH_SECONDS = 0.0005  # longest time until the engine's thread gets the interpreter back from the streamer's


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        to_triton()
        parameters = json.loads(args["model_config"])["parameters"]
        chosen, self._name = profile.of_model(parameters), args["model_name"]
        clock, guard = RealClock(), Guard()
        self._control = of_this_server()
        self._metrics, self._life = Metrics(self._name, guard=guard), Life()
        self._traces = traces.opened()
        self._models = Models(
            self._name,
            chosen,
            clock,
            self._metrics,
            guard,
            self._life,
            control=self._control,
            parameters=parameters,
            traces=self._traces,
        )
        self._requests = Requests(self._life, clock, self._metrics.refused)
        self._life.begin(self._models.service, self._leave)
        handler = LinkHandler(self._life, self._requests)
        self._exchange = link.Exchange(self._name, handler.received, handler.lost)

    def execute(self, requests: list[Any]) -> None:
        take_each(requests, self._taken)

    def finalize(self) -> None:
        """End the model. Triton calls this after its requests have ended; no other model can be asked any more."""
        self._life.end()
        self._exchange.close()
        self._models.close()
        self._life.join()
        if self._life.service is not None:
            self._life.service.close()
        self._metrics.stop()
        if self._traces is not None:
            self._traces.close()

    def _taken(self, asked: TritonRequest, sender: Sender) -> None:
        key = self._requests.new_key()
        self._requests.take(key, SenderOutlet(asked, sender), asked.tensors, asked.parameters)

    def _leave(self) -> None:
        """End this process: the launcher reloads a model whose process has ended."""
        os.kill(os.getpid(), signal.SIGKILL)


class Models:
    """Owns the public model's calls to its target and drafters, which are other models of this server."""

    def __init__(
        self,
        name: str,
        chosen: Profile,
        clock: Clock,
        metrics: Metrics,
        guard: Guard,
        life: Life,
        *,
        control: InnerControl,
        parameters: JsonDict,
        traces: Traces | None,
    ) -> None:
        self._target, drafters = parameters["target"]["string_value"], chosen.speculation.drafters
        self._life, server = life, os.getppid()
        under_way = calls.Calls(processes.end, _processes, clock.now)
        self._drafter = partial(bls.BlsDrafter, calls=under_way)
        facts = DrafterFacts(self._target, metrics.drafter_failed)
        followed = (self._target, *drafters)
        self._presence = presence.Presence(server, followed, self._ask, facts.came, facts.ended)
        builder = Builder(
            model=name,
            profile=chosen,
            target=bls.BlsTarget(self._target, calls=under_way),
            residency=TritonResidency(control, under_way),
            clock=clock,
            metrics=metrics,
            guard=guard,
            caller=f"{socket.gethostname()} {server} {name}",  # stays the same when its process is revived
            secret=control.secret,
            costs=named_costs(chosen),
            traces=traces,
        )
        self.service = Start(builder, self._drafter, facts, control, life, self._presence.end).service
        self._watches = [
            Watch("calls that hang", under_way.look, calls.LOOK_SECONDS),
            Watch("processes of models that come and go", self._look_around, presence.LOOK_SECONDS),
        ]

    def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        self._presence.close()

    def _look_around(self) -> None:
        if self._life.settled.is_set():
            self._presence.look()

    def _ask(self, model: str) -> DrafterInfo | None:
        """Return a drafter's facts; None for the target, which the engine's thread asks."""
        return None if model == self._target else self._drafter(model).info()


def _processes(model: str) -> dict[int, float]:
    """Return the process ids of a model of this server, which share one parent, and the age of each in seconds."""
    return {pid: processes.age(pid) for pid in processes.by_model(os.getppid()).get(model, ())}
