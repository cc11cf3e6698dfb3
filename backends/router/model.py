"""The public model `covey` of a server with several targets: hands each request to the orchestrator of one of them.

`covey.requests.routing` says which. Requests, their answers and cancellations go over the private link
(`covey.tritonio.link`), as those of `covey_unary` do. A target that cannot be reached, or takes no more, is passed over
where the request names none. A server with one target has none of this: there `covey` is the orchestrator itself.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from covey.contracts.errors import CoveyError, Overloaded, PortError, RequestError, SettingError
from covey.requests.routing import Router
from covey.text.streaming import Cancelled
from covey.tritonio import link, outlets, peers
from covey.tritonio.log import to_triton

POLL_SECONDS = 0.05
NOBODY = ""  # no target's name


@dataclass(frozen=True, slots=True)
class _Asker:
    """The receiver of the answers to one request."""

    answer: Callable[[link.Message], None]
    fail: Callable[[Exception], None]
    gone: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class _Request:
    """The request that a target is sent, and what the target is chosen by."""

    kind: str
    tensors: Mapping[str, Any]
    parameters: dict[str, Any]
    prompt: bytes
    tenant: bytes


@dataclass(slots=True)
class _Open:
    """A request and who serves it. Until there is an answer: what was asked, and who else may be."""

    target: str
    asker: _Asker
    asked: _Request | None
    others: list[str]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        to_triton()
        names = json.loads(args["model_config"])["parameters"]["targets"]["string_value"].split(",")
        self._name = args["model_name"]
        self._models = {name: f"{self._name}_{name}" for name in names}
        self._router = Router(names)
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._links: dict[str, link.Peer] = {}
        self._asked: dict[tuple[int, int], int] = {}  # by link and exchange of who asks over one: the request's id
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._poller.start()
        self._exchange = link.Exchange(self._name, self._received, self._left)

    def execute(self, requests: list[Any]) -> None:
        outlets.take_each(requests, self._taken)

    def finalize(self) -> None:
        self._stopped.set()
        self._poller.join()
        self._exchange.close()
        for peer in list(self._links.values()):
            peer.close()

    # ---- those who ask ----------------------------------------------------------------------------------------------

    def _taken(self, asked: outlets.TritonRequest, sender: outlets.Sender) -> None:
        """Take a request from Triton."""

        def answer(message: link.Message) -> None:
            if message.kind == "report":
                report = outlets.reported(message.value)
                sender.send(outlets.response(report, asked.wanted), last=True)
            else:
                chunk = peers.answered(message)
                sender.send(outlets.response(outlets.outputs(chunk), asked.wanted), last=chunk.finish is not None)

        def fail(error: Exception) -> None:
            sender.send(outlets.error_response(error), last=True)

        self._hand_on("stream", asked.tensors, asked.parameters, _Asker(answer, fail, sender.is_cancelled))

    def _received(self, peer: link.Peer, message: link.Message) -> None:
        """Take a request from `covey_unary`, or a question of the launcher's."""
        exchange, entry = message.exchange, (id(peer), message.exchange)
        if message.kind == "submit":

            def answer(reply: link.Message) -> None:
                self._asked.pop(entry, None)
                peer.send(reply._replace(exchange=exchange))

            def fail(error: Exception) -> None:
                self._asked.pop(entry, None)
                with suppress(PortError):
                    peer.send(link.Message(exchange, "error", peers.told(error)))

            try:
                made = self._hand_on("submit", message.arrays, message.value, _Asker(answer, fail, lambda: False))
            except Exception as error:  # of one request; the link is the others', too
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

    def _hand_on(self, kind: str, tensors: Mapping[str, Any], parameters: dict[str, Any], asker: _Asker) -> int:
        """Hand a request on and return its id. Raises CoveyError where nobody takes it."""
        named, tenant = (_text(tensors.get(name)) for name in ("target", "tenant"))
        ids = tensors.get("input_ids")
        prompt = ids.tobytes() if ids is not None else _text(tensors.get("text_input"))
        with self._lock:
            order = self._router.order(named.decode(errors="replace"), prompt, tenant)
        made = next(self._ids)
        asked = _Request(kind, tensors, parameters, prompt, tenant)
        self._try(made, NOBODY, asker, asked, order, Overloaded("no target is up"))
        return made

    def _try(self, made: int, held: str, asker: _Asker, asked: _Request, order: list[str], problem: Exception) -> None:
        """Send a request that is `held` by this target to the first of those that can be reached. Raises what kept the
        last one, or else the `problem`."""
        for at, target in enumerate(order):
            with self._lock:
                if not self._holds(made, held):
                    return  # it was cancelled, or handed on by who saw its link cut
                self._ended(made)
                self._open[made], held = _Open(target, asker, asked, order[at + 1 :]), target
                self._router.begun(target, asked.prompt, asked.tenant)
            try:
                self._link(target).send(link.Message(made, asked.kind, asked.parameters, asked.tensors))
                return
            except PortError as error:
                problem = Overloaded(str(error))
                with self._lock:
                    self._router.lost(target)
            except BaseException:
                self._ended(made)
                raise
        with self._lock:
            if not self._holds(made, held):
                return
            self._ended(made)
        raise problem

    def _holds(self, made: int, target: str) -> bool:
        entry = self._open.get(made)
        return (NOBODY if entry is None else entry.target) == target

    # ---- the targets ------------------------------------------------------------------------------------------------

    def _link(self, target: str) -> link.Peer:
        with self._lock:
            if target not in self._links:

                def lost(peer: link.Peer) -> None:
                    self._lost(target, peer)

                self._links[target] = link.connect(self._models[target], self._answered, lost)
            return self._links[target]

    def _answered(self, _peer: link.Peer, message: link.Message) -> None:
        made, entry = message.exchange, self._open.get(message.exchange)
        if entry is None:
            return  # it was cancelled meanwhile
        try:
            if message.kind == "error":
                self._refused(made, entry, peers.raised(*message.value))
                return
            entry.asked = None
            if message.kind == "report" or message.value["finish"] is not None:
                self._ended(made)
            entry.asker.answer(message)
        except Exception as error:  # of one request; the link is the others', too
            pb_utils.Logger.log_error(f"{self._name}: {type(error).__name__}: {error}")
            self._cancel(made)

    def _refused(self, made: int, entry: _Open, error: Exception) -> None:
        """Fail a request that its target does not serve, unless nothing was said yet and another target takes it."""
        busy = isinstance(error, RequestError) and error.code == Overloaded.code
        if busy and entry.asked is not None and entry.others:
            try:
                self._try(made, entry.target, entry.asker, entry.asked, entry.others, error)
                return
            except CoveyError as last:
                error = last
        self._ended(made)
        entry.asker.fail(error)

    def _lost(self, target: str, peer: link.Peer) -> None:
        with self._lock:
            if self._links.get(target) is peer:
                del self._links[target]
            self._router.lost(target)
            lost = [(made, entry) for made, entry in self._open.items() if entry.target == target]
        for made, entry in lost:
            self._refused(made, entry, Overloaded(f"model {self._models[target]} is gone"))

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
                self._link(entry.target).send(link.Message(made, "cancel"))

    def _all_serve(self) -> bool | str:
        """Return whether all targets serve, or why not where one of them never will."""
        try:
            return all(link.serves(model, os.getppid()) for model in self._models.values())
        except PortError:
            return False
        except SettingError as error:
            return str(error)

    def _drained(self) -> int | None:
        """Have every target take no more requests; return how many they have left, None where one does not say."""
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
                    if entry.asker.gone():
                        self._cancel(made)
                        entry.asker.fail(Cancelled("cancelled by the client"))
                except Exception as error:  # of one request; the others must still be watched
                    pb_utils.Logger.log_error(f"{self._name}: {type(error).__name__}: {error}")


def _text(array: Any) -> bytes:
    """Return the first of a tensor of texts."""
    value = array.reshape(-1)[0] if array is not None and array.size else b""
    return value if isinstance(value, bytes) else str(value).encode()
