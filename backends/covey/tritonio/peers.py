"""Messages between the public models of one server: answers and errors over the link to `covey_unary`, and tensor names
that clients do not use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from covey.contracts.errors import PortError, RequestError
from covey.contracts.types import Finish
from covey.text.streaming import Chunk
from covey.tritonio.link import Message, Peer

# Only between the ensemble's steps: its tokenizer asks for an output that its detokenizer needs.
ASKS_FOR_STATE = "detokenized_elsewhere"
STATE = "detokenizer_state"
# A question about the server in place of a generation, and the answer (`covey.tritonio.reports`).
INSPECT = "inspect"
REPORT = "report"

# The fields of a chunk that is sent from one model to another; `state` is left out.
_OF_PROMPT = ("prompt_ids", "prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs")
ARRAYS = ("ids", "logprobs", "top_ids", "top_logprobs", *_OF_PROMPT)
VALUES = tuple(field.name for field in fields(Chunk) if field.name not in (*ARRAYS, "state"))


class PeerOutlet:
    """Answers a request of `covey_unary` over the link; each request is one exchange."""

    streams = needs_state = False

    def __init__(self, peer: Peer, exchange: int) -> None:
        self._peer = peer
        self._exchange = exchange
        self.cancelled = False
        self.closed: Callable[[], object] = lambda: None  # called before the last response is sent

    def send(self, chunk: Chunk) -> None:
        if chunk.finish is not None:
            self.closed()
        arrays = {name: getattr(chunk, name) for name in ARRAYS}
        values = {name: getattr(chunk, name) for name in VALUES}
        self._peer.send(Message(self._exchange, "answer", values, arrays))

    def report(self, text: str) -> None:
        self.closed()
        self._peer.send(Message(self._exchange, "report", text))

    def fail(self, error: Exception) -> None:
        self.closed()
        self._peer.send(Message(self._exchange, "error", told(error)))

    def gone(self) -> bool:
        return self.cancelled


def answered(message: Message) -> Chunk:
    """Return the chunk that `PeerOutlet.send` sent."""
    value: dict[str, Any] = {**message.value, **message.arrays}
    value["finish"] = None if value["finish"] is None else Finish(value["finish"])
    value["acceptance"] = tuple(value["acceptance"])
    value["drafters"] = tuple(map(tuple, value["drafters"]))
    return Chunk(**value)


def told(error: Exception) -> list[str]:
    """Return an error as two texts to send to another model; `raised` takes them."""
    return [error.code if isinstance(error, RequestError) else "INTERNAL", str(error)]


def raised(code: str, text: str) -> Exception:
    """Return the error that `PeerOutlet.fail` sent, with the same code."""
    error = RequestError(text) if code != "INTERNAL" else PortError(text)
    if isinstance(error, RequestError):
        error.code = code
    return error
