"""Messages between the public models of one server: answers on their way over the link to `covey_unary`, errors, and
the names of tensors that no client knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from covey.contracts.errors import PortError, RequestError
from covey.contracts.types import Finish
from covey.text.streaming import Chunk
from covey.tritonio.link import Message, Peer

# Between the ensemble's steps only: its tokeniser asks for an output that its detokeniser needs.
ASKS_FOR_STATE = "detokenized_elsewhere"
STATE = "detokenizer_state"
# A question about the server instead of a generation, and its answer (`covey.tritonio.reports`).
INSPECT = "inspect"
REPORT = "report"

# Of a chunk on its way from one model to another, which has no state.
_OF_PROMPT = ("prompt_ids", "prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs")
ARRAYS = ("ids", "logprobs", "top_ids", "top_logprobs", *_OF_PROMPT)
VALUES = tuple(field.name for field in fields(Chunk) if field.name not in (*ARRAYS, "state"))


class PeerOutlet:
    """The other end of the link from `covey_unary`, one exchange of it."""

    streams = needs_state = False

    def __init__(self, peer: Peer, exchange: int) -> None:
        self._peer = peer
        self._exchange = exchange
        self.cancelled = False
        self.closed: Callable[[], object] = lambda: None  # called when the last response has been sent

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
    """Return an error as it goes from one model to another; `raised` takes its two parts."""
    return [error.code if isinstance(error, RequestError) else "INTERNAL", str(error)]


def raised(code: str, text: str) -> Exception:
    """Return the error that `PeerOutlet.fail` sent, as one that `error_response` gives the same code."""
    error = RequestError(text) if code != "INTERNAL" else PortError(text)
    if isinstance(error, RequestError):
        error.code = code
    return error
