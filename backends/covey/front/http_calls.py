"""Serves one POST over HTTP: admits it, reads it, and answers it whole or as events until the caller leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from covey.front import failures
from covey.front.admission import Caller
from covey.front.failures import Gone
from covey.front.fair_queue import Job
from covey.front.gateway import Gateway
from covey.process.log_about import begin_drawn
from covey.process.traces import PARENT
from covey_client.errors import CoveyClientError

# Without this header nginx would hold events back until it has a page of them.
EVENTS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
JSON = {"content-type": "application/json"}
ID = "x-request-id"  # header of answers, and key in a request's scope: the request's name in logs
Answering = Callable[["HttpCall", bytes], Coroutine[Any, Any, None]]


class HttpCall:
    """One POST, and whether its answer has begun."""

    def __init__(self, gateway: Gateway, request: Request, send: Send) -> None:
        """Raises NoKey."""
        self.gateway, self.request, self._send = gateway, request, send
        request.scope[ID] = begin_drawn()
        self.caller = caller_of(gateway, request)
        self.job = Job(self.caller.name, int(request.headers.get("content-length", 0)))
        self.begun = False  # the status is sent, so an error can no longer set it
        self.admitted = ExitStack()  # closed after the last byte: the caller may send its next request then

    async def answer(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.begun = True
        scope = self.request.scope
        await Response(body, headers={**headers, ID: scope[ID]})(scope, self.request.receive, self._send)
        self.admitted.close()

    async def json(self, value: Any) -> None:
        await self.answer(json.dumps(value).encode(), JSON)

    async def event(self, data: bytes, name: str = "") -> None:
        """Send one event of a stream and, before the first, the status. `name` is its kind if the protocol has
        several."""
        if not self.begun:
            self.begun = True
            own = {**EVENTS, ID: self.request.scope[ID]}
            raw = [(key.encode(), value.encode()) for key, value in own.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        body = (b"event: %s\n" % name.encode() if name else b"") + b"data: %s\n\n" % data
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    @asynccontextmanager
    async def events(self, failed: Callable[[CoveyClientError], Awaitable[None]]) -> AsyncIterator[None]:
        """Send the events of an answer. `failed` reports errors after the status is sent."""
        try:
            yield
        except Gone:
            raise
        except Exception as problem:
            if not self.begun:
                raise
            self.gateway.spans.failed(problem)
            await failed(failures.public("an answer over HTTP", problem))

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.admitted.close()


class Posted:
    """A route that answers POST bodies."""

    def __init__(self, gateway: Gateway, answering: Answering) -> None:
        self._gateway, self._answering = gateway, answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(self._gateway, Request(scope, receive), send)
        route = getattr(scope.get("route"), "path", "")
        span = self._gateway.spans.serving(f"POST {route}", call.request.headers.get(PARENT, ""))
        with suppress(Gone), span, call.admitted as admitted:
            self._gateway.announced(call.caller, call.job.size)
            body = await _body(receive)
            if len(body) != call.job.size:  # a chunked body's length is known only now
                call.job = replace(call.job, size=len(body))
                self._gateway.admission.charge(call.caller.name, len(body), requests=0)
            self._gateway.admission.refund_read(call.caller.name)
            admitted.enter_context(self._gateway.admitted(call.caller))
            await _unless_gone(receive, self._answering(call, body))


def address(request: Request) -> str:
    return request.client.host if request.client else ""


def caller_of(gateway: Gateway, request: Request) -> Caller:
    """Return the caller. Raises NoKey."""
    return gateway.admission.caller(address(request), request.headers.get("authorization", ""))


async def _body(receive: Receive) -> bytes:
    """Read the whole body. The protocol bounds its length and time. Raises Gone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; cancel it if the caller leaves. Raises Gone."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
