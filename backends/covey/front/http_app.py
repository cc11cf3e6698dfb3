"""Triton's HTTP protocol for the public models. Other routes, such as OpenAI's, stand beside `routes`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from covey.front import answers, failures, http_bodies
from covey.front.asked import NOT_IN_PARTS, STREAM, UNARY, VERSION, served
from covey.front.door import Door, Gone
from covey_client.errors import CoveyClientError

NOWHERE = (
    "no such route here: this port has health, metadata, config, metrics and inference of the public models; "
    "model control, shared memory, statistics, tracing and logs are only on Triton's own ports"
)
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
AGAIN = {"retry-after": "2"}
Answering = Callable[["Call", bytes], Coroutine[Any, Any, None]]


class Call:
    """One POST to a model."""

    def __init__(self, door: Door, request: Request, send: Send) -> None:
        self.door, self.request, self.send = door, request, send
        self.model = served(request.path_params["model"], request.path_params.get("version", ""))

    async def answer(self, body: bytes, headers: dict[str, str]) -> None:
        await Response(body, headers=headers)(self.request.scope, self.request.receive, self.send)


class Model:
    """A route of a model that answers a body."""

    def __init__(self, door: Door, answering: Answering) -> None:
        self._door, self._answering = door, answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._door, Request(scope, receive), send)
        with suppress(Gone), self._door.admitted(_caller(scope), int(call.request.headers.get("content-length", 0))):
            body = await _body(receive)
            await _unless_gone(receive, self._answering(call, body))


async def generate(call: Call, body: bytes) -> None:
    asked = http_bodies.generation(call.model, body, call.door.prompt_bytes)
    if asked.stream:
        raise failures.refused(STREAM, True, "false, or true for generate_stream")
    found = await call.door.whole(asked)
    await _json(call, answers.event(found, asked.model, asked.outputs))


async def infer(call: Call, body: bytes) -> None:
    if call.model != UNARY:
        raise failures.refused("model", call.model, NOT_IN_PARTS)
    header = call.request.headers.get(http_bodies.BINARY_LENGTH)
    asked, binary = http_bodies.inference(call.model, body, header, call.door.prompt_bytes)
    found = await call.door.whole(asked)
    said, length = http_bodies.answer(found, asked, binary)
    kind = "application/json" if length is None else "application/octet-stream"
    headers = {"content-type": kind} | ({} if length is None else {http_bodies.BINARY_LENGTH: str(length)})
    await call.answer(said, headers)


async def generate_stream(call: Call, body: bytes) -> None:
    asked = http_bodies.generation(call.model, body, call.door.prompt_bytes)
    begun = False
    try:
        async with call.door.stream(asked) as stream:
            async for chunk in stream:
                if not begun:
                    begun = True
                    await call.send({"type": "http.response.start", "status": 200, "headers": EVENTS})
                await _event(call, answers.event(chunk, asked.model, asked.outputs))
    except Gone:
        raise
    except Exception as problem:
        if not begun:
            raise
        await _event(call, {"error": failures.text(failures.told("an answer over HTTP", problem))})
    await call.send({"type": "http.response.body", "body": b"", "more_body": False})


def app(door: Door) -> Starlette:
    """The whole of HTTP."""

    def said(value: Any) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            door.admission.charge(_caller(request.scope))
            return JSONResponse(value(request) if callable(value) else value)

        return endpoint

    def health(state: Callable[[Request], bool]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return Response(status_code=200 if state(request) else 503, headers={} if state(request) else AGAIN)

        return endpoint

    async def metrics(request: Request) -> Response:
        door.admission.charge(_caller(request.scope))
        return Response(await door.upstream.metrics(), media_type="text/plain; version=0.0.4")

    def model(request: Request) -> str:
        return served(request.path_params["model"], request.path_params.get("version", ""))

    server = {"name": answers.NAME, "version": VERSION, "extensions": list(answers.EXTENSIONS)}
    routes: list[BaseRoute] = [
        Route("/v2", said(server)),
        Route("/v2/health/live", health(lambda _request: True)),
        Route("/v2/health/ready", health(lambda _request: door.ready)),
        Route("/metrics", metrics),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(path, said(lambda request: answers.metadata(model(request)))),
            Route(f"{path}/config", said(lambda request: answers.config(model(request)))),
            Route(f"{path}/ready", health(lambda request: bool(model(request)) and door.ready)),
            Route(f"{path}/generate", Model(door, generate), methods=["POST"]),
            Route(f"{path}/generate_stream", Model(door, generate_stream), methods=["POST"]),
            Route(f"{path}/infer", Model(door, infer), methods=["POST"]),
        ]
    return Starlette(
        routes=routes, exception_handlers={Exception: _refusal, CoveyClientError: _refusal, HTTPException: _no_route}
    )


async def _refusal(_request: Request, problem: Exception) -> Response:
    error = failures.told("an HTTP request", problem)
    again = failures.retry_after(error)
    headers = {} if again is None else {"retry-after": str(again)}
    return JSONResponse({"error": failures.text(error)}, failures.kind(error).http, headers)


async def _no_route(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = NOWHERE if error.status_code == 404 else error.detail
    return JSONResponse({"error": f"[INVALID_ARG] {text}"}, error.status_code, error.headers)


def _caller(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


async def _body(receive: Receive) -> bytes:
    """Whole; the protocol bounds its length and the time it takes."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and give it up when the caller leaves."""
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


async def _json(call: Call, value: Any) -> None:
    await call.answer(json.dumps(value).encode(), {"content-type": "application/json"})


async def _event(call: Call, value: Any) -> None:
    await call.send(
        {"type": "http.response.body", "body": b"data: %s\n\n" % json.dumps(value).encode(), "more_body": True}
    )
