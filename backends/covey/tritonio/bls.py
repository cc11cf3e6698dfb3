"""The engine's ports over Triton's BLS: one plain `exec()` per call, never `exec(decoupled=True)`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from covey.contracts.errors import PortError, PortTimeout, StubDead
from covey.contracts.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    Ints,
    Open,
    Resized,
    TargetInfo,
    TargetReply,
    TargetWork,
)
from covey.supervision.calls import DRAFTERS_SECONDS, GRAMMAR_SECONDS, LEAST_SECONDS, Calls
from covey.tritonio.log import RATE
from covey.wire import codec
from covey.wire.token import token

CONTEXT = 512  # tokens of context that count as much as one token of a pass: long contexts take time
log = logging.getLogger("covey.bls")


def call(model: str, message: Ints) -> Ints:
    """Send one message to another model of this server and wait for its reply."""
    codec.seal(message, token())
    tensor = pb_utils.Tensor(codec.REQUEST_TENSOR, message)
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=[codec.REPLY_TENSOR], inputs=[tensor])
    response = _done(request, model)
    reply: Ints = pb_utils.get_output_tensor_by_name(response, codec.REPLY_TENSOR).as_numpy()
    return reply


def _done(request: Any, what: str) -> Any:
    """Return the response if the request succeeded; else raise PortError about `what`."""
    try:
        response = request.exec()
    except Exception as error:  # the binding's errors, for example for full shared memory, have no common base
        raise PortError(f"{what}: {type(error).__name__}: {error}") from None
    if response.has_error():
        text = response.error().message()
        raise StubDead(f"{what}: {text}") if "not healthy" in text else PortError(f"{what}: {text}")
    return response


def deliver(model: str, message: Ints) -> Ints:
    """Call the model, and call again if the reply may have been lost: the model does no work twice
    (`covey.wire.ledger`). Raises the first error."""
    try:
        return call(model, message)
    except (StubDead, PortTimeout):
        raise
    except PortError as error:
        try:
            reply = call(model, message)
        except StubDead:
            raise
        except PortError:
            raise error from None
        log.warning("repeated a call, which succeeded, after: %s", error)
        return reply


class BlsTarget:
    """Implements `covey.contracts.ports.Target` by calls to another model of this server."""

    def __init__(self, model: str, calls: Calls) -> None:
        self.model = model
        self._calls = calls

    def info(self) -> TargetInfo:
        with self._calls.question(self.model):
            reply = call(self.model, codec.pack(codec.INFO_REQUEST))
        return codec.decode_target_info(reply)

    def step(self, work: TargetWork) -> TargetReply:
        tokens = work.chunk + work.trees.sizes
        size = int(tokens.sum()) + int(tokens.astype(np.int64) @ work.base) // CONTEXT
        with self._calls.call(self.model, size, least=_least(work.opens)):
            reply = deliver(self.model, codec.encode(work))
        return codec.decode_target_reply(reply, len(work.tags))

    def resize(self, blocks: int) -> Resized:
        with self._calls.question(self.model):
            reply = deliver(self.model, codec.encode_resize(blocks))
        return codec.decode_resized(reply)


class BlsDrafter:
    """Implements `covey.contracts.ports.Drafter` by calls to another model of this server."""

    def __init__(self, model: str, calls: Calls) -> None:
        self.model = model
        self._calls = calls

    def info(self) -> DrafterInfo:
        with self._calls.question(self.model):
            reply = call(self.model, codec.pack(codec.INFO_REQUEST))
        return codec.decode_drafter_info(reply)

    def draft(self, work: DraftWork) -> DraftReply:
        opened = sum(len(opening.tokens) for opening in work.opens)
        tokens = opened + len(work.tokens) + int(work.depth.sum())
        with self._calls.call(self.model, tokens, DRAFTERS_SECONDS, _least(work.opens)):
            reply = deliver(self.model, codec.encode(work))
        return codec.decode_draft_reply(reply, len(work.tags))


def _least(opens: Iterable[Open]) -> float:
    """Return the least timeout of a call that opens these requests. The first grammar waits until the vocabulary is
    read, which takes some 3 s for 256k tokens."""
    return GRAMMAR_SECONDS if any(opening.sampling.grammar for opening in opens) else LEAST_SECONDS


def serve(requests: list[Any], answer: Callable[[Ints], Ints]) -> list[Any]:
    """Answer each request's message with `answer(message)`: the other end of `call`. An error becomes the response's
    error and leaves the model up. A message without this server's token is refused."""
    responses, secret = [], token()
    for request in requests:
        try:
            message = message_of(request)
            codec.authenticate(message, secret)
            responses.append(response(answer(message)))
        except Exception as error:
            responses.append(failure(error))
    return responses


def message_of(request: Any) -> Ints:
    """Return a request's message."""
    message: Ints = pb_utils.get_input_tensor_by_name(request, codec.REQUEST_TENSOR).as_numpy()
    return message


def response(message: Ints) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(codec.REPLY_TENSOR, message)])


def send(sender: Any, response: Any) -> None:
    """Answer a request of a model that is not decoupled, once, after its `execute` has returned."""
    sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def failure(error: Exception) -> Any:
    """Log the error and return it as a response."""
    line = RATE.passes(type(error).__name__, f"{type(error).__name__}: {error}")
    if line is not None:
        pb_utils.Logger.log_error(line)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))
