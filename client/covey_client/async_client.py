"""Client for an event loop; it has the calls of `Client`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from covey_client.caller import BaseClient, Timeout, Usual
from covey_client.deadline import Deadline
from covey_client.errors import Cancelled, ConnectionLost, CoveyClientError
from covey_client.response import Chunk, Completion
from covey_client.resumption import Resumption
from covey_client.wire import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from covey_client.grpc_transport import AsyncGrpcTransport


class AsyncCall(Protocol):
    """A request under way, in one event loop."""

    def chunks(self) -> AsyncGenerator[Chunk, None]: ...

    def cancel(self) -> None: ...


class AsyncClient(BaseClient):
    """A client for one event loop, with many streams at once. May be made outside the loop: connects at the first
    call."""

    def _prepare(self) -> None:
        self._opened: AsyncGrpcTransport | None = None

    async def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        resume: bool = False,
        **settings: Unpack[Settings],
    ) -> Completion:
        """Return the whole answer to a prompt (text or token ids). With `resume` the request is sent again if the
        connection breaks, until `timeout`. Raises CoveyClientError."""
        async with self._stream(prompt, settings, False, self._deadline(timeout), resume) as stream:
            return Completion.join([chunk async for chunk in stream])

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        resume: bool = False,
        **settings: Unpack[Settings],
    ) -> AsyncStream:
        """Return the answer as it comes: `async with client.stream(...) as stream: async for chunk in stream`. Leaving
        the `with`, or cancelling the task that iterates, cancels the request. Call it inside the event loop. With
        `resume` it continues after a broken connection, with the same text (`covey_client.resumption`)."""
        return self._stream(prompt, settings, True, self._deadline(timeout), resume)

    def _stream(
        self,
        prompt: str | Sequence[int],
        settings: Mapping[str, object],
        stream: bool,
        deadline: Deadline,
        resume: bool,
    ) -> AsyncStream:
        resumption = Resumption(lambda known: self._request(prompt, known, stream=stream), settings)
        return AsyncStream(
            lambda: self._transport().call(resumption.request(), deadline), resumption if resume else None
        )

    async def close(self) -> None:
        """End every call that is under way; iterating them raises Cancelled."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _transport(self) -> AsyncGrpcTransport:
        if self._opened is None:
            from covey_client.grpc_transport import AsyncGrpcTransport  # half a second

            self._opened = AsyncGrpcTransport(self._address)
        return self._opened


class AsyncStream:
    """An answer under way: an asynchronous iterator of chunks that can be cancelled."""

    def __init__(self, ask: Callable[[], AsyncCall], resumption: Resumption | None = None) -> None:
        """`ask` makes a call, and another one if there is a `resumption` and the first broke."""
        self._ask, self._resumption = ask, resumption
        self._finished = True  # if `ask` raises there is nothing to give up
        self._call = ask()
        self._chunks = self._call.chunks()
        self._finished = False
        self._given_up = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._finished:
            raise StopAsyncIteration
        chunk = None
        while chunk is None:
            try:
                chunk = await self._chunks.__anext__()
                if self._resumption is not None:
                    chunk = self._resumption.new(chunk)
            except StopAsyncIteration:
                await self._broke(ConnectionLost("the answer ended before it was complete"))
            except CoveyClientError as error:
                await self._broke(error)
            except BaseException:
                await self.close()
                raise
        if chunk.finish_reason:
            await self._finish()
        return chunk

    def cancel(self) -> None:
        """Cancel the call from any task of this loop; iterating raises Cancelled."""
        self._given_up.set()
        self._call.cancel()

    async def close(self) -> None:
        """Cancel the rest. Does nothing the second time."""
        if not self._finished:
            self._finished = True
            self._call.cancel()
            await self._chunks.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _broke(self, error: CoveyClientError) -> None:
        """Send the request again after a while, or raise the error."""
        rest = None if self._resumption is None else self._resumption.rest(error)
        if rest is None:
            await self.close()
            raise error from None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), rest)
            await self.close()
            raise Cancelled("the request was cancelled")
        self._call = self._ask()
        self._chunks = self._call.chunks()

    async def _finish(self) -> None:
        self._finished = True
        with contextlib.suppress(CoveyClientError):  # the answer is complete, even if the connection breaks now
            async for _ in self._chunks:  # the empty final response, and the protocol's own end
                pass
