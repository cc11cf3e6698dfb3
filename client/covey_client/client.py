"""Client for threads. `AsyncClient` in async_client.py is the same for an event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from covey_client.address import Address
from covey_client.deadline import Deadline
from covey_client.errors import ConnectionLost, CoveyClientError
from covey_client.request import Request
from covey_client.response import Chunk, Completion
from covey_client.transport import Call, Transport
from covey_client.wire import MODEL, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

Protocol = Literal["grpc", "http"]
USUAL_PORTS = {"grpc": 8001, "http": 8000}
TIMEOUT = 600.0  # seconds; a stub that died never answers, so that no call waits for ever unless it is told to


class Usual(Enum):
    """Stands for a call's `timeout` where None already means for ever."""

    TIMEOUT = "the client's"


Timeout = float | None | Usual


class Client:
    """One server, over one protocol. Safe for many threads and many streams at once."""

    def __init__(
        self,
        url: str = "127.0.0.1",
        *,
        transport: Protocol = "grpc",
        model: str = MODEL,
        timeout: float | None = TIMEOUT,
        tls: bool = False,
        root_certificates: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`url` is `host:port` of the port that speaks `transport`; `timeout` holds for every call that names none."""
        if transport not in USUAL_PORTS:
            raise ValueError(f"transport: got {transport!r}, allowed: {', '.join(USUAL_PORTS)}")
        address = Address.parse(
            url, port=USUAL_PORTS[transport], tls=tls, root_certificates=root_certificates, headers=headers
        )
        self._transport = _open(transport, address)
        self._model = model
        self._timeout = timeout

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        **settings: Unpack[Settings],
    ) -> Completion:
        """The whole answer to a prompt (text or token ids). Raises CoveyClientError."""
        request = Request.build(prompt, settings, stream=False, model=self._model)
        with Stream(self._transport.call(request, self._deadline(timeout))) as stream:
            return Completion.join(stream)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        **settings: Unpack[Settings],
    ) -> Stream:
        """The answer as it comes. Closing what this returns, or leaving its `with`, cancels the request."""
        request = Request.build(prompt, settings, stream=True, model=self._model)
        return Stream(self._transport.call(request, self._deadline(timeout)))

    def close(self) -> None:
        """Ends every call that is under way."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.after(self._timeout if isinstance(timeout, Usual) else timeout)


class Stream:
    """An answer under way: an iterator of chunks that knows how to give up."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._chunks = call.chunks()
        self._finished = False

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._finished:
            raise StopIteration
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._finished = True
            raise ConnectionLost("the answer ended before it was complete") from None
        except BaseException:
            self.close()
            raise
        if chunk.finish_reason:
            self._finish()
        return chunk

    def cancel(self) -> None:
        """From any thread: whoever iterates gets Cancelled."""
        self._call.cancel()

    def close(self) -> None:
        """From the thread that iterates: give the rest up. Does nothing the second time."""
        if not self._finished:
            self._finished = True
            self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _finish(self) -> None:
        self._finished = True
        with contextlib.suppress(CoveyClientError):  # the answer is complete whatever becomes of the connection
            for _ in self._chunks:  # the empty final response, and the protocol's own end
                pass


def _open(transport: Protocol, address: Address) -> Transport:
    if transport == "http":
        from covey_client.http_transport import HttpTransport

        return HttpTransport(address)
    from covey_client.grpc_transport import GrpcTransport

    return GrpcTransport(address)
