"""The non-decoupled public model: one request, one response, for `infer()` over HTTP and unary gRPC.

It forwards each request to the orchestrator over a private link (`covey.tritonio.link`) and returns its answer.
"""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import suppress
from typing import Any

import triton_python_backend_utils as pb_utils

from covey.contracts.errors import PortError
from covey.text.streaming import Cancelled
from covey.tritonio import link, outlets, peers

POLL_SECONDS = 0.05


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self._orchestrator = parameters["orchestrator"]["string_value"]
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[outlets.Sender, frozenset[str]]] = {}
        self._lock = threading.Lock()
        self._peer: link.Peer | None = None
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._poller.start()

    def execute(self, requests: list[Any]) -> None:
        outlets.take_each(requests, self._take)

    def finalize(self) -> None:
        self._stopped.set()
        self._poller.join()
        if self._peer is not None:
            self._peer.close()

    def _take(self, asked: outlets.TritonRequest, sender: outlets.Sender) -> None:
        exchange = next(self._ids)
        with self._lock:
            self._open[exchange] = (sender, asked.wanted)
        try:
            self._line().send(link.Message(exchange, "submit", asked.parameters, asked.tensors))
        except Exception as error:
            self._answer(exchange, outlets.error_response(error))
            if not isinstance(error, PortError):
                raise

    def _line(self) -> link.Peer:
        with self._lock:
            if self._peer is None:
                self._peer = link.connect(self._orchestrator, self._received, self._lost)
            return self._peer

    def _received(self, _peer: link.Peer, message: link.Message) -> None:
        exchange = message.exchange
        if message.kind == "error":
            self._answer(exchange, outlets.error_response(peers.raised(*message.value)))
        else:
            with self._lock:
                entry = self._open.get(exchange)
            if entry is not None:  # None after a cancellation
                self._answer(exchange, outlets.response(message.arrays, entry[1]))

    def _lost(self, peer: link.Peer) -> None:
        with self._lock:
            if self._peer is peer:
                self._peer = None
            lost = list(self._open)
        for exchange in lost:
            self._answer(exchange, outlets.error_response(PortError(f"model {self._orchestrator} is gone")))

    def _answer(self, exchange: int, response: Any) -> None:
        with self._lock:
            entry = self._open.pop(exchange, None)
        if entry is not None:
            entry[0].send(response, last=True)

    def _poll(self) -> None:
        """Forward cancellations."""
        while not self._stopped.wait(POLL_SECONDS):
            with self._lock:
                watched = list(self._open.items())
            for exchange, (sender, _wanted) in watched:
                try:
                    self._watch(exchange, sender)
                except Exception as error:  # of one request; keep watching the others
                    pb_utils.Logger.log_error(f"covey.unary: {type(error).__name__}: {error}")

    def _watch(self, exchange: int, sender: outlets.Sender) -> None:
        if sender.is_cancelled():
            with suppress(PortError):
                self._line().send(link.Message(exchange, "cancel"))
            self._answer(exchange, outlets.error_response(Cancelled("cancelled by the client")))
