"""Requests over HTTP in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from covey_client import errors, sse
from covey_client.address import Address
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk, from_json


class AsyncHttpTransport:
    """For one event loop; made inside it."""

    def __init__(self, address: Address) -> None:
        self._url = f"{'https' if address.tls else 'http'}://{address.target}"
        context = address.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context if context is not None else True),
            headers=dict(address.headers) | {"Content-Type": "application/json"},
            trust_env=not address.loopback,
            read_bufsize=1 << 20,
        )

    def call(self, request: Request, deadline: Deadline) -> AsyncHttpCall:
        return AsyncHttpCall(self._session, self._url, request, deadline)

    async def close(self) -> None:
        await self._session.close()


class AsyncHttpCall:
    """One request and its answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str, request: Request, deadline: Deadline) -> None:
        self._session = session
        self._url = url
        self._request = request
        self._deadline = deadline
        self._response: aiohttp.ClientResponse | None = None
        self._cancelled = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        streams = bool(self._request.tensors["stream"][0])
        try:
            async with self._session.post(
                self._url + sse.path(self._request, streams),
                data=self._request.to_json(),
                timeout=aiohttp.ClientTimeout(total=self._deadline.left()),
            ) as response:
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
        except (asyncio.TimeoutError, TimeoutError):
            raise self._deadline.error() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._lost(error) from None
        if self._cancelled:
            raise errors.Cancelled("the request was cancelled")

    def cancel(self) -> None:
        self._cancelled = True
        if self._response is not None:
            self._response.close()

    def _lost(self, error: Exception) -> errors.CoveyClientError:
        if self._cancelled:
            return errors.Cancelled("the request was cancelled")
        return errors.ConnectionLost(f"{self._url}: {str(error) or type(error).__name__}")
