"""Outlets of answers over a decoupled Triton response sender. Builds the responses.

Requests that are answered through a sender must come in through `take_each`. If `execute` raises, Triton closes its
senders without telling their holders, and asking a closed one whether it is cancelled crashes tritonserver.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from covey.contracts.errors import BadField, CoveyError, RequestError
from covey.process.log_about import PARAMETER, about, safe
from covey.text.streaming import Chunk
from covey.tritonio.tensors import ASKS_FOR_STATE, REPORT, outputs
from covey_client.wire import OUTPUT_BY_NAME

log = logging.getLogger("covey.outlets")


def response(arrays: Mapping[str, Any], wanted: frozenset[str] | set[str]) -> Any:
    """Return a Triton response with the outputs that the client asked for; no names mean all."""
    names = [name for name in arrays if not wanted or name in wanted]
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, arrays[name]) for name in names])


def error_response(error: Exception) -> Any:
    """Return an error response whose text starts with the code: on 24.10 a code is lost between models."""
    code = error.code if isinstance(error, RequestError) else "INTERNAL"
    text = f"[{code}] {error}".encode(errors="replace").decode()  # Triton sends only text that it can encode
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code)))


@dataclass(frozen=True)
class TritonRequest:
    """A Triton request, read and copied whole: it shares no memory with Triton."""

    tensors: dict[str, Any]  # name -> array
    parameters: dict[str, Any]
    wanted: frozenset[str]  # the outputs that the client asked for

    @classmethod
    def read(cls, request: Any) -> TritonRequest:
        """Return the request. Raises BadField if a tensor or the parameters cannot be read."""
        tensors = {}
        for tensor in request.inputs():
            try:
                tensors[tensor.name()] = tensor.as_numpy().copy()
            except ValueError as error:
                raise BadField(tensor.name(), error, "values that fit its datatype and shape") from None
        try:
            parameters = json.loads(request.parameters() or "{}")
        except UnicodeDecodeError as error:
            raise BadField("parameters", error.object[error.start :], "names and values in UTF-8") from None
        except ValueError as error:
            raise BadField("parameters", error, "names and values in JSON") from None
        name = safe(request.request_id())
        parameters |= {PARAMETER: name} if name else {}
        return cls(tensors, parameters, frozenset(request.requested_output_names()))


class Sender:
    """A request's response sender. Triton's own crashes the server when two threads use it at once, or when it is asked
    whether it is cancelled after its last response. This one prevents both."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._using = threading.Lock()
        self._ended = False

    def send(self, response: Any, *, last: bool) -> None:
        """Send a response. After the last one, further ones are dropped."""
        with self._using:
            if not self._ended:
                self._sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
                self._ended = last  # not reached if sending failed: an error may follow

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled a request that has not had its last response."""
        with self._using:
            return not self._ended and bool(self._sender.is_cancelled())


def take_each(requests: list[Any], take: Callable[[TritonRequest, Sender], None]) -> None:
    """Do the work of an `execute`: read each request, then hand it with its sender to `take`.

    Never raises. A request that cannot be read or taken is answered with the error. If `take` has passed its sender on,
    the new holder then sees it as not cancelled."""
    for request in requests:
        name = safe(request.request_id())
        with about((name,).__iter__ if name else tuple):
            _take(request, take)


def _take(request: Any, take: Callable[[TritonRequest, Sender], None]) -> None:
    sender = Sender(request)
    try:
        take(TritonRequest.read(request), sender)
    except Exception as error:
        if not isinstance(error, CoveyError):
            log.exception("cannot take a request")
        try:
            sender.send(error_response(error), last=True)
        except Exception:  # for example because shared memory is full
            log.exception("cannot answer a request")


class SenderOutlet:
    """Answers a decoupled request through its response sender; the last response is marked as final."""

    streams = True

    def __init__(self, asked: TritonRequest, sender: Sender) -> None:
        self._sender = sender
        self._wanted = asked.wanted
        self.needs_state = ASKS_FOR_STATE in asked.tensors
        # A client that names outputs gets these in every response. For a client that names none, Triton names all.
        self._names_outputs = not asked.wanted >= OUTPUT_BY_NAME.keys()

    def send(self, chunk: Chunk) -> None:
        last = chunk.finish is not None
        self._sender.send(response(outputs(chunk, whole=last or self._names_outputs), self._wanted), last=last)

    def report(self, text: str) -> None:
        """Send the only response to an `inspect` request."""
        self._sender.send(response({REPORT: np.array([text.encode()], np.object_)}, self._wanted), last=True)

    def fail(self, error: Exception) -> None:
        self._sender.send(error_response(error), last=True)

    def gone(self) -> bool:
        return self._sender.is_cancelled()
