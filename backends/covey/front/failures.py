"""Turns errors of the client library into each protocol's status and a text with a code. From that text the library
restores the same error."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import grpc  # type: ignore[import-untyped]

from covey_client.errors import (
    Cancelled,
    ConnectionLost,
    CoveyClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServerError,
)

log = logging.getLogger("covey.front")
MOST_SHOWN = 80
LONGEST_TEXT = 500


class Gone(Exception):
    """The caller has left and gets no answer."""


class TooLong(InvalidRequest):
    """The message is longer than `front.message_bytes`."""


class NotServed(InvalidRequest):
    """The front has no such route, model or version."""


class NoKey(InvalidRequest):
    """The server requires a key, and the caller sent no valid one."""


class TooMany(Overloaded):
    """This caller sends too often, or too much at once. Other callers are not affected."""


@dataclass(frozen=True)
class FailureKind:
    http: int
    grpc: grpc.StatusCode
    code: str


Status = grpc.StatusCode
KINDS: tuple[tuple[type[CoveyClientError], FailureKind], ...] = (  # the first match counts
    (TooLong, FailureKind(413, Status.RESOURCE_EXHAUSTED, "INVALID_ARG")),
    (NoKey, FailureKind(401, Status.UNAUTHENTICATED, "INVALID_ARG")),
    (NotServed, FailureKind(404, Status.NOT_FOUND, "INVALID_ARG")),
    (InvalidRequest, FailureKind(400, Status.INVALID_ARGUMENT, "INVALID_ARG")),
    (TooMany, FailureKind(429, Status.RESOURCE_EXHAUSTED, "UNAVAILABLE")),
    (Overloaded, FailureKind(503, Status.UNAVAILABLE, "UNAVAILABLE")),
    (ConnectionLost, FailureKind(503, Status.UNAVAILABLE, "UNAVAILABLE")),
    (Cancelled, FailureKind(503, Status.CANCELLED, "CANCELLED")),
    (DeadlineExceeded, FailureKind(504, Status.DEADLINE_EXCEEDED, "INTERNAL")),
    (ServerError, FailureKind(500, Status.INTERNAL, "INTERNAL")),
)


def kind(error: CoveyClientError) -> FailureKind:
    return next(found for cls, found in KINDS if isinstance(error, cls))


def text(error: CoveyClientError) -> str:
    """Return the error's text after its code, in the form of Covey's models, with lone surrogates escaped."""
    said = f"[{kind(error).code}] {str(error)[:LONGEST_TEXT]}"
    return said.encode(errors="backslashreplace").decode()


def public(doing: str, error: Exception) -> CoveyClientError:
    """Return the error to tell the caller. An unexpected error reveals nothing; its kind and place are logged."""
    if isinstance(error, CoveyClientError):
        return error
    log.error("%s failed", doing, exc_info=error)
    return ServerError("an internal error; the server's log says where")


def retry_after(error: CoveyClientError) -> int | None:
    """Return the seconds after which the same request may succeed; None if it will not."""
    if kind(error).http not in (429, 503):
        return None
    asked = error.retry_after if isinstance(error, Overloaded) else None
    return max(1, math.ceil(asked or 1))


def refused(field: str, value: object, allowed: str) -> InvalidRequest:
    """Return the error for one field. It shows only the beginning of the value, and is cheap for long values."""
    if isinstance(value, (list, dict)):
        shown = f"{type(value).__name__} of {len(value)}"
    elif isinstance(value, (str, bytes)):
        shown = repr(value[:MOST_SHOWN])
    elif isinstance(value, int) and value.bit_length() > 4 * MOST_SHOWN:
        shown = "a huge number"
    else:
        shown = repr(value)
    if len(shown) > MOST_SHOWN:
        shown = shown[: MOST_SHOWN - 3] + "..."
    return InvalidRequest(f"{field}: got {shown}, allowed: {allowed}", field)
