"""The errors of a request without an answer.

CoveyClientError
 +- ConnectionLost    no connection, or it ended before the answer did
 +- DeadlineExceeded  the answer was not complete within `timeout`
 +- InvalidRequest    the request is wrong: `field` names the field if it is known
 +- Overloaded        the server takes no more work now: queue full, or draining
 +- Cancelled         this side, or the server, gave the request up
 +- ServerError       anything else the server says
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"\[(INVALID_ARG|UNAVAILABLE|CANCELLED|INTERNAL)\] (.*)", re.DOTALL)
_AGAIN = re.compile(r"try again in (\d+) s")
_FIELD = re.compile(r"(\w+): got ")
_UNEXPECTED = re.compile(
    r"(?:unexpected inference input|inference input data-type is|unexpected shape for input) '(\w+)'"
)
_CLOSED = ("has no available versions", "is not ready", "Server not ready", "is exiting")


class CoveyClientError(Exception):
    """Base of every error that this package raises on purpose."""


class ConnectionLost(CoveyClientError):
    """The server cannot be reached, or the connection ended before the answer did."""


class DeadlineExceeded(CoveyClientError):
    """The answer was not complete in time."""


class InvalidRequest(CoveyClientError):
    """The request is wrong."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Overloaded(CoveyClientError):
    """The server takes no more work now; try again after `retry_after` seconds, if the server says so."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        found = _AGAIN.search(message)
        self.retry_after = float(found[1]) if found else None


class Cancelled(CoveyClientError):
    """The request was cancelled."""


class ServerError(CoveyClientError):
    """The server failed."""


def from_message(message: str, status: int = 0) -> CoveyClientError:
    """Return the error for a server's message. Codes get lost inside Triton, so the message's prefix decides; then
    Triton's own wording and, over HTTP, the status."""
    coded = _PREFIX.search(message)
    if coded:
        code, said = coded[1], coded[2].strip()
        field = _FIELD.match(said)
        if code == "INVALID_ARG":
            return InvalidRequest(said, field[1] if field else "")
        kinds: dict[str, type[CoveyClientError]] = {"UNAVAILABLE": Overloaded, "CANCELLED": Cancelled}
        return kinds.get(code, ServerError)(said)
    if status == 503 or any(words in message for words in _CLOSED):
        return Overloaded(message)
    unexpected = _UNEXPECTED.search(message)
    if unexpected:
        return InvalidRequest(message, unexpected[1])
    if "unknown model" in message:
        return InvalidRequest(message, "model")
    if status == 400 and ("parse" in message.lower() or "expected" in message or "shape" in message):
        return InvalidRequest(message)
    return ServerError(message or f"HTTP status {status}")
