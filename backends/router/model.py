"""The public model `covey` of a server with several targets: hands each request to the orchestrator of one of them.

`covey.routing` says which. Requests, their answers and cancellations go over the private line
(`covey.tritonio.link`), as those of `covey_unary` do. A target that cannot be reached is passed over. A server with one
target has none of this: there `covey` is the orchestrator itself.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from covey.errors import CoveyError, PortError
from covey.routing import Router
from covey.streaming import Cancelled
from covey.tritonio import link, outlets
from covey.tritonio.log import to_triton

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Open:
    """One request: who serves it, and where its answers go."""

    target: str
    answer: Callable[[link.Message], None]
    fail: Callable[[Exception], None]
    gone: Callable[[], bool]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        to_triton("covey")
        names = json.loads(args["model_config"])["parameters"]["targets"]["string_value"].split(",")
        self._name = args["model_name"]
        self._models = {name: f"{self._name}_{name}" for name in names}
        self._router = Router(names)
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lines: dict[str, link.Peer] = {}
        self._asked: dict[tuple[int, int], int] = {}  # by line and exchange of who asks over one: the request's id
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._poller.start()
        self._exchange = link.Exchange(self._name, self._heard, self._left)

    def execute(self, requests: list[Any]) -> None:
        outlets.take_each(requests, self._taken)

    def finalize(self) -> None:
        self._stopped.set()
        self._poller.join()
        self._exchange.close()
        for line in list(self._lines.values()):
            line.close()

    # ---- those who ask ----------------------------------------------------------------------------------------------

    def _taken(self, asked: outlets.Asked, sender: outlets.Sender) -> None:
        """A request from Triton."""

        def answer(message: link.Message) -> None:
            if message.kind == "report":
                report = outlets.reported(message.value)
                sender.send(outlets.response(report, asked.wanted), last=True)
            else:
                chunk = outlets.answered(message)
                sender.send(outlets.response(outlets.outputs(chunk), asked.wanted), last=chunk.finish is not None)

        def fail(error: Exception) -> None:
            sender.send(outlets.error_response(error), last=True)

        self._hand_on("stream", asked.tensors, asked.parameters, answer, fail, sender.is_cancelled)

    def _heard(self, peer: link.Peer, message: link.Message) -> None:
        """A request from `covey_unary`, or a question of the launcher's."""
        exchange, entry = message.exchange, (id(peer), message.exchange)
        if message.kind == "submit":

            def answer(reply: link.Message) -> None:
                self._asked.pop(entry, None)
                peer.send(reply._replace(exchange=exchange))

            def fail(error: Exception) -> None:
                self._asked.pop(entry, None)
                with suppress(PortError):
                    peer.send(link.Message(exchange, "error", outlets.told(error)))

            try:
                made = self._hand_on("submit", message.arrays, message.value, answer, fail, lambda: False)
            except CoveyError as error:
                fail(error)
                return
            with self._lock:
                if made in self._open:
                    self._asked[entry] = made
        elif message.kind == "cancel":
            self._cancel(self._asked.pop(entry, 0))
        elif message.kind == "serves":
            peer.send(link.Message(exchange, message.kind, self._all_serve()))
        elif message.kind == "drain":
            peer.send(link.Message(exchange, "draining", self._drained()))

    def _left(self, peer: link.Peer) -> None:
        for (owner, exchange), made in list(self._asked.items()):
            if owner == id(peer):
                del self._asked[owner, exchange]
                self._cancel(made)

    def _hand_on(
        self,
        kind: str,
        tensors: Any,
        parameters: dict[str, Any],
        answer: Callable[[link.Message], None],
        fail: Callable[[Exception], None],
        gone: Callable[[], bool],
    ) -> int:
        """The request's id. Raises CoveyError where nobody takes it."""
        named, tenant = (_text(tensors.get(name)) for name in ("target", "tenant"))
        ids = tensors.get("input_ids")
        prompt = ids.tobytes() if ids is not None else _text(tensors.get("text_input"))
        problem: CoveyError = PortError("no target is up")
        with self._lock:
            order = self._router.order(named.decode(errors="replace"), prompt, tenant)
        for target in order:
            with self._lock:
                made = next(self._ids)
                self._open[made] = _Open(target, answer, fail, gone)
                self._router.begun(target, prompt, tenant)
            try:
                self._line(target).send(link.Message(made, kind, parameters, tensors))
                return made
            except BaseException as error:
                if self._ended(made) is None:
                    return made  # its line was cut, and it has been told
                if not isinstance(error, PortError):
                    raise
                problem = error
        raise problem

    # ---- the targets ------------------------------------------------------------------------------------------------

    def _line(self, target: str) -> link.Peer:
        with self._lock:
            if target not in self._lines:

                def lost(peer: link.Peer) -> None:
                    self._lost(target, peer)

                self._lines[target] = link.connect(self._models[target], self._answered, lost)
            return self._lines[target]

    def _answered(self, _peer: link.Peer, message: link.Message) -> None:
        entry = self._open.get(message.exchange)
        if entry is None:
            return  # it was cancelled meanwhile
        failed = message.kind == "error"
        if failed or message.kind == "report" or message.value["finish"] is not None:
            self._ended(message.exchange)
        try:
            if failed:
                entry.fail(outlets.raised(*message.value))
            else:
                entry.answer(message)
        except Exception as error:  # of one request; the line is the others', too
            pb_utils.Logger.log_error(f"{self._name}: {type(error).__name__}: {error}")
            self._cancel(message.exchange)

    def _lost(self, target: str, peer: link.Peer) -> None:
        with self._lock:
            if self._lines.get(target) is peer:
                del self._lines[target]
            self._router.lost(target)
            lost = [(made, entry) for made, entry in self._open.items() if entry.target == target]
        for made, entry in lost:
            self._ended(made)
            entry.fail(PortError(f"model {self._models[target]} is gone"))

    def _ended(self, made: int) -> _Open | None:
        with self._lock:
            entry = self._open.pop(made, None)
            if entry is not None:
                self._router.ended(entry.target)
            return entry

    def _cancel(self, made: int) -> None:
        entry = self._ended(made)
        if entry is not None:
            with suppress(PortError):
                self._line(entry.target).send(link.Message(made, "cancel"))

    def _all_serve(self) -> bool:
        try:
            return all(link.serves(model, os.getppid()) for model in self._models.values())
        except PortError:
            return False

    def _drained(self) -> int | None:
        """Every target takes no more requests; how many it has left, None where one does not say."""
        left = []
        for model in self._models.values():
            try:
                left.append(link.refuse_requests(model, os.getppid()))
            except PortError:
                left.append(0)  # it is gone
        return None if None in left else sum(each for each in left if each is not None)

    def _poll(self) -> None:
        """Pass cancellations on."""
        while not self._stopped.wait(POLL_SECONDS):
            for made, entry in list(self._open.items()):
                try:
                    if entry.gone():
                        self._cancel(made)
                        entry.fail(Cancelled("cancelled by the client"))
                except Exception as error:  # of one request; the others must still be watched
                    pb_utils.Logger.log_error(f"{self._name}: {type(error).__name__}: {error}")


def _text(array: Any) -> bytes:
    """The first of a tensor of texts."""
    value = array.reshape(-1)[0] if array is not None and array.size else b""
    return value if isinstance(value, bytes) else str(value).encode()
