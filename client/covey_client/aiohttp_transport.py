"""Requests over HTTP in an event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

import aiohttp

from covey_client import errors, sse
from covey_client.address import Address
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk, from_json


class AsyncHttpTransport:
    """HTTP in one event loop; made inside it."""

    def __init__(self, address: Address) -> None:
        self._url = f"{'https' if address.tls else 'http'}://{address.target}"
        context = address.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context if context is not None else True),
            headers=dict(address.headers) | {"Content-Type": "application/json"},
            trust_env=not address.loopback,
            read_bufsize=1 << 20,
        )
        self._calls: weakref.WeakSet[AsyncHttpCall] = weakref.WeakSet()

    def call(self, request: Request, deadline: Deadline) -> AsyncHttpCall:
        call = AsyncHttpCall(self._session, self._url, request, deadline)
        self._calls.add(call)
        return call

    async def close(self) -> None:
        for call in list(self._calls):  # the session closes connections, and tells nobody who waits for one
            call.cancel()
        await self._session.close()


class AsyncHttpCall:
    """An HTTP request and its answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str, request: Request, deadline: Deadline) -> None:
        self._session = session
        self._url = url
        self._request = request
        self._deadline = deadline
        self._response: aiohttp.ClientResponse | None = None
        self._given_up = asyncio.get_running_loop().create_future()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        streams = bool(self._request.tensors["stream"][0])
        try:
            async with await self._answer(sse.path(self._request, streams)) as response:
                self._response = response
                if response.status != 200:
                    raise sse.refusal(response.status, await response.read())
                if not streams:
                    yield from_json(await response.read())
                    return
                while line := await response.content.readline():
                    chunk = sse.event(line)
                    if chunk is not None:
                        yield chunk
            self._go_on()
        except (asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError, errors.CoveyClientError) as error:
            raise self._lost(error) from None

    def cancel(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)
        if self._response is not None:
            self._response.close()

    async def _answer(self, path: str) -> aiohttp.ClientResponse:
        """Send the request and return the response once its headers are here, unless cancelled."""
        self._go_on()
        posting = asyncio.ensure_future(
            self._session.post(
                self._url + path,
                data=self._request.to_json(),
                timeout=aiohttp.ClientTimeout(total=self._deadline.left()),
            )
        )
        try:
            await asyncio.wait((posting, self._given_up), return_when=asyncio.FIRST_COMPLETED)
            self._go_on()
            return posting.result()
        except BaseException:
            posting.cancel()
            posting.add_done_callback(_let_go)
            raise

    def _go_on(self) -> None:
        """Raise Cancelled if the call was cancelled."""
        if self._given_up.done():
            raise errors.Cancelled("the request was cancelled")

    def _lost(self, error: Exception) -> errors.CoveyClientError:
        if self._given_up.done():
            return errors.Cancelled("the request was cancelled")
        if isinstance(error, errors.CoveyClientError):
            return error
        if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
            return self._deadline.error()
        return errors.ConnectionLost(f"{self._url}: {str(error) or type(error).__name__}")


def _let_go(posting: asyncio.Future[aiohttp.ClientResponse]) -> None:
    """Close the response of a call that was cancelled before it came."""
    if not posting.cancelled() and posting.exception() is None:
        posting.result().close()
