"""Messages between the public models of one server: answers and errors over the link to `covey_unary`."""

from __future__ import annotations

from collections.abc import Callable

from covey.contracts.errors import PortError, RequestError
from covey.text.streaming import Chunk
from covey.tritonio.link import Message, Peer
from covey.tritonio.tensors import outputs


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
        self._peer.send(Message(self._exchange, "answer", arrays=outputs(chunk)))

    def report(self, text: str) -> None:
        self.closed()
        self._peer.send(Message(self._exchange, "report", text))

    def fail(self, error: Exception) -> None:
        self.closed()
        self._peer.send(Message(self._exchange, "error", told(error)))

    def gone(self) -> bool:
        return self.cancelled


def told(error: Exception) -> list[str]:
    """Return an error as two texts to send to another model; `raised` takes them."""
    return [error.code if isinstance(error, RequestError) else "INTERNAL", str(error)]


def raised(code: str, text: str) -> Exception:
    """Return the error that `PeerOutlet.fail` sent, with the same code."""
    error = RequestError(text) if code != "INTERNAL" else PortError(text)
    if isinstance(error, RequestError):
        error.code = code
    return error
