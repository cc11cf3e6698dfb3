"""Client for threads. `AsyncClient` in async_client.py is the same for an event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from covey_client.address import Address
from covey_client.caller import Caller, Protocol, Timeout, Usual
from covey_client.errors import ConnectionLost, CoveyClientError
from covey_client.response import Chunk, Completion
from covey_client.transport import Call, Transport
from covey_client.wire import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(Caller):
    """Safe for many threads and many streams at once."""

    def _prepare(self) -> None:
        self._transport = _open(self._protocol, self._address)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        **settings: Unpack[Settings],
    ) -> Completion:
        """The whole answer to a prompt (text or token ids). Raises CoveyClientError."""
        request = self._request(prompt, settings, stream=False)
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
        request = self._request(prompt, settings, stream=True)
        return Stream(self._transport.call(request, self._deadline(timeout)))

    def close(self) -> None:
        """Ends every call that is under way: whoever iterates gets Cancelled."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
