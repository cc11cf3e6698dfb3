"""Outlets of answers over a decoupled Triton response sender. Builds the responses.

Requests that are answered through a sender must come in through `take_each`. If `execute` raises, Triton closes its
senders without telling their holders, and asking a closed one whether it is cancelled crashes tritonserver.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from covey.contracts.errors import BadField, CoveyError, RequestError
from covey.process.log_about import PARAMETER, about, safe
from covey.text.streaming import Chunk
from covey.tritonio.peers import ASKS_FOR_STATE, REPORT, STATE

log = logging.getLogger("covey.outlets")


def outputs(chunk: Chunk) -> dict[str, Any]:
    """Return the chunk as the public response's arrays, by the names of `covey_client.wire.OUTPUTS`."""
    rate = chunk.accepted / chunk.drafted if chunk.drafted else 0.0
    drafts = sum(chunk.acceptance)
    arrays = {
        "text_output": np.array([chunk.text.encode()], np.object_),
        "output_ids": chunk.ids,
        "output_log_probs": chunk.logprobs,
        "output_top_ids": chunk.top_ids,
        "output_top_log_probs": chunk.top_logprobs,
        "prompt_ids": chunk.prompt_ids,
        "prompt_log_probs": chunk.prompt_logprobs,
        "prompt_top_ids": chunk.prompt_top_ids,
        "prompt_top_log_probs": chunk.prompt_top_logprobs,
        "finish_reason": np.array([chunk.finish.value.encode() if chunk.finish else b""], np.object_),
        "used_seed": np.array([chunk.seed], np.uint64),
        "num_input_tokens": np.array([chunk.num_input], np.int32),
        "num_output_tokens": np.array([chunk.num_output], np.int32),
        "num_reused_tokens": np.array([chunk.reused], np.int32),
        "acceptance_rate": np.array([rate], np.float32),
        "total_accepted_draft_tokens": np.array([chunk.accepted], np.int32),
        "total_draft_tokens": np.array([chunk.drafted], np.int32),
        "mean_acceptance_length": np.array([1 + chunk.accepted / drafts if drafts else 0.0], np.float32),
        "acceptance_histogram": np.array(chunk.acceptance, np.int32),
        "drafters": np.array([name.encode() for name, _, _ in chunk.drafters], np.object_),
        "draft_tokens_by_drafter": np.array([drafted for _, drafted, _ in chunk.drafters], np.int32),
        "accepted_draft_tokens_by_drafter": np.array([accepted for _, _, accepted in chunk.drafters], np.int32),
        "measured_ttft_ms": np.array([1000 * (chunk.ttft or 0.0)], np.float32),
        "measured_tpot_ms": np.array([1000 * (chunk.tpot or 0.0)], np.float32),
        "slo_attainment": np.array([chunk.attainment.encode()], np.object_),
        "emulated": np.array([chunk.emulated], np.bool_),
    }
    if chunk.state is not None:
        arrays[STATE] = np.array([json.dumps(asdict(chunk.state)).encode()], np.object_)
    return arrays


def response(arrays: dict[str, Any], wanted: frozenset[str] | set[str]) -> Any:
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

    def send(self, chunk: Chunk) -> None:
        self._sender.send(response(outputs(chunk), self._wanted), last=chunk.finish is not None)

    def report(self, text: str) -> None:
        """Send the only response to an `inspect` request."""
        self._sender.send(response({REPORT: np.array([text.encode()], np.object_)}, self._wanted), last=True)

    def fail(self, error: Exception) -> None:
        self._sender.send(error_response(error), last=True)

    def gone(self) -> bool:
        return self._sender.is_cancelled()
