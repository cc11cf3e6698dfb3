"""The protocol-independent interface of a client's transport. Each answer arrives as chunks; a call ends by itself, by
an error of `errors`, or by `cancel()`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Protocol

from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk


class Call(Protocol):
    """A request under way."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks, and block for each; raises CoveyClientError."""
        ...

    def cancel(self) -> None:
        """Cancel the call from any thread; `chunks()` then raises Cancelled. Does nothing on a call that has ended."""
        ...


class Transport(Protocol):
    """A way to one server over one protocol; safe for many threads."""

    def call(self, request: Request, deadline: Deadline) -> Call: ...

    def close(self) -> None: ...


class AsyncCall(Protocol):
    """A request under way, in one event loop."""

    def chunks(self) -> AsyncGenerator[Chunk, None]: ...

    def cancel(self) -> None: ...


class AsyncTransport(Protocol):
    """A way to one server over one protocol, in one event loop."""

    def call(self, request: Request, deadline: Deadline) -> AsyncCall: ...

    async def close(self) -> None: ...
