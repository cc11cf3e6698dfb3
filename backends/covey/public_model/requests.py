"""Prepares requests and submits them to the engine; answers questions about the server.

    take --> wait for an engine --> compile a new grammar --> tokenize a long prompt --> submit

Slow steps run apart from other requests (`covey.tritonio.slow_jobs`). The client is told of every failure.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from covey.contracts.errors import BadField, CoveyError, RequestError
from covey.contracts.ports import Clock
from covey.contracts.types import NO_OBJECTIVE, Objective
from covey.process.log_about import PARAMETER, about, safe
from covey.process.traces import PARENT
from covey.public_model.life import Life
from covey.public_model.service import Service
from covey.text.streaming import Outlet
from covey.tritonio.fields import tenant_of
from covey.tritonio.reports import SECRET
from covey.tritonio.slow_jobs import LONG
from covey.tritonio.tensors import INSPECT

log = logging.getLogger("covey.orchestrator")


class PublicOutlet(Outlet, Protocol):
    def report(self, text: str) -> None:
        """Send the only answer to a question."""
        ...


@dataclass(slots=True, eq=False)
class _Incoming:
    """A request that is not submitted yet. Its tensors are arrays by name."""

    key: int
    outlet: Outlet
    tensors: Mapping[str, Any]
    parameters: dict[str, Any]
    arrival: float
    id: str
    objective: Objective = NO_OBJECTIVE


Step = Callable[[_Incoming, Service], None]


class Requests:
    """Owns the keys of requests. Any thread may call."""

    def __init__(self, life: Life, clock: Clock, refused: Callable[[Objective], None]) -> None:
        """`refused` is called for requests that are invalid or find the queue full."""
        self._life, self._clock, self._refused = life, clock, refused
        self._keys = itertools.count(1)

    def new_key(self) -> int:
        return next(self._keys)

    def take(self, key: int, outlet: PublicOutlet, tensors: Mapping[str, Any], parameters: dict[str, Any]) -> None:
        """Take a request or a question. Waits until there is an engine."""
        if INSPECT in tensors:
            self._report(tensors[INSPECT], str(parameters.get(SECRET, "")), outlet)
            return
        self._life.asked.set()
        name = safe(parameters.get(PARAMETER, ""))
        self._do(_Incoming(key, outlet, tensors, parameters, self._clock.now(), name), self._begin)

    def cancel(self, key: int) -> None:
        """Cancel a request whose client has left."""
        if self._life.service is not None:
            self._life.service.engine.cancel(key)

    def _report(self, asked: Any, secret: str, outlet: PublicOutlet) -> None:
        """Answer a question."""
        question = asked.reshape(-1)[0].decode(errors="replace") if asked.size else ""
        try:
            outlet.report(self._life.wait().reports.answer(question, secret))
        except Exception as error:
            if not isinstance(error, CoveyError):
                log.exception("cannot answer a question about the server")
            outlet.fail(error)

    def _do(self, incoming: _Incoming, step: Step, problem: Exception | None = None) -> None:
        """Run one step of a request; it starts the next step. On a problem, tell the client instead."""
        try:
            if problem is not None:
                raise problem
            step(incoming, self._life.wait())
        except Exception as error:
            if not isinstance(error, CoveyError):
                with about(lambda: (incoming.id or str(incoming.key),)):
                    log.exception("request failed")
            if isinstance(error, RequestError):
                self._refused(incoming.objective)
            incoming.outlet.fail(error)

    def _begin(self, incoming: _Incoming, service: Service) -> None:
        tensor = incoming.tensors.get
        if service.parser.has_new_grammar(tensor):
            service.new_grammars.put(tenant_of(tensor), 1, partial(self._do, incoming, self._compile))
        else:
            self._submit_by_length(incoming, service)

    def _compile(self, incoming: _Incoming, service: Service) -> None:
        service.parser.check_grammar(incoming.tensors.get)
        self._submit_by_length(incoming, service)

    def _submit_by_length(self, incoming: _Incoming, service: Service) -> None:
        """Submit the request. A long prompt is tokenized apart from others."""
        tensor = incoming.tensors.get
        size = service.parser.prompt_bytes(tensor)
        if size >= LONG:
            service.long_prompts.put(tenant_of(tensor), size, partial(self._do, incoming, self._submit))
        else:
            self._submit(incoming, service)

    def _submit(self, incoming: _Incoming, service: Service) -> None:
        wanted = service.parser.parse(incoming.key, incoming.arrival, incoming.tensors.get, incoming.parameters)
        trace = str(incoming.parameters.get(PARENT, ""))
        request = replace(wanted.request, id=incoming.id, trace=trace)
        incoming.objective = request.objective
        if wanted.stream and not incoming.outlet.streams:
            raise BadField("stream", True, "false: this model answers once; stream from the decoupled one")
        service.streamer.begin(
            request, incoming.outlet, stream=wanted.stream, stop_words=wanted.stop_words, prefix=wanted.prefix
        )
        try:
            service.engine.submit(request)
            self._life.check()  # the engine may have ended, and told those that were open before this one was
        except Exception:
            service.streamer.abandon(incoming.key)
            raise
