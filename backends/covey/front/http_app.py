"""Serves Triton's HTTP protocol for the public models, and OpenAI's routes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from covey.front import answers, failures, http_bodies
from covey.front.gateway import Gateway
from covey.front.http_calls import ID, HttpCall, Posted, address
from covey.front.inference_request import NOT_IN_PARTS, STREAM, UNARY, VERSION, served
from covey.front.openai import errors
from covey.front.openai.routes import routes as openai_routes
from covey_client.errors import CoveyClientError

NOWHERE = (
    "no such route here: /v2 has health, metadata, config and inference of the public models; model control, shared "
    "memory, statistics, tracing and logs are only on Triton's own ports; /v1 has chat/completions, completions, "
    "models and responses, which are not stored (send the whole conversation); beside them are /metrics, /tokenize, "
    "/detokenize"
)
AGAIN = {"retry-after": "2"}


async def generate(call: HttpCall, body: bytes) -> None:
    request = http_bodies.generation(_model(call.request), body, call.gateway.prompt_bytes)
    if request.stream:
        raise failures.refused(STREAM, True, "false, or true for generate_stream")
    found = await call.gateway.whole(request, call.caller)
    await call.json(answers.event(found, request.model, request.outputs))


async def infer(call: HttpCall, body: bytes) -> None:
    model = _model(call.request)
    if model != UNARY:
        raise failures.refused("model", model, NOT_IN_PARTS)
    header = call.request.headers.get(http_bodies.BINARY_LENGTH)
    request, binary = http_bodies.inference(model, body, header, call.gateway.prompt_bytes)
    found = await call.gateway.whole(request, call.caller)
    said, length = http_bodies.answer(found, request, binary)
    kind = "application/json" if length is None else "application/octet-stream"
    headers = {"content-type": kind} | ({} if length is None else {http_bodies.BINARY_LENGTH: str(length)})
    await call.answer(said, headers)


async def generate_stream(call: HttpCall, body: bytes) -> None:
    request = http_bodies.generation(_model(call.request), body, call.gateway.prompt_bytes)

    async def failed(error: CoveyClientError) -> None:
        await call.event(json.dumps({"error": failures.text(error)}).encode())

    async with call.events(failed), call.gateway.stream(request, call.caller) as stream:
        async for chunk in stream:
            await call.event(json.dumps(answers.event(chunk, request.model, request.outputs)).encode())
    await call.end()


def app(gateway: Gateway) -> Starlette:
    """Return the application with all routes."""

    def said(value: Any) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            gateway.admission.charge(address(request))
            return JSONResponse(value(request) if callable(value) else value)

        return endpoint

    def health(state: Callable[[Request], bool]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return Response(status_code=200 if state(request) else 503, headers={} if state(request) else AGAIN)

        return endpoint

    async def metrics(request: Request) -> Response:
        gateway.admission.charge(address(request))
        return Response(await gateway.upstream.metrics(), media_type="text/plain; version=0.0.4")

    server = {"name": answers.NAME, "version": VERSION, "extensions": list(answers.EXTENSIONS)}
    routes: list[BaseRoute] = [
        Route("/v2", said(server)),
        Route("/v2/health/live", health(lambda _request: True)),
        Route("/v2/health/ready", health(lambda _request: gateway.ready)),
        Route("/metrics", metrics),
        *openai_routes(gateway, health(lambda _request: gateway.ready)),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(path, said(lambda request: answers.metadata(_model(request)))),
            Route(f"{path}/config", said(lambda request: answers.config(_model(request)))),
            Route(f"{path}/ready", health(lambda request: bool(_model(request)) and gateway.ready)),
            Route(f"{path}/generate", Posted(gateway, generate), methods=["POST"]),
            Route(f"{path}/generate_stream", Posted(gateway, generate_stream), methods=["POST"]),
            Route(f"{path}/infer", Posted(gateway, infer), methods=["POST"]),
        ]
    pages = Middleware(
        CORSMiddleware,
        allow_origins=gateway.settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["retry-after", ID],
    )
    made = Starlette(
        routes=routes,
        middleware=[pages] if gateway.settings.origins else [],
        exception_handlers={Exception: _refusal, CoveyClientError: _refusal, HTTPException: _no_route},
    )
    made.router.redirect_slashes = False  # with a TLS proxy, redirects would lead to plain HTTP, keys included
    return made


def _model(request: Request) -> str:
    return served(request.path_params["model"], request.path_params.get("version", ""))


async def _refusal(request: Request, problem: Exception) -> Response:
    error = failures.public("an HTTP request", problem)
    again = failures.retry_after(error)
    headers = {} if again is None else {"retry-after": str(again)}
    headers |= {ID: request.scope[ID]} if ID in request.scope else {}
    body = {"error": failures.text(error)} if errors.tritons(request.url.path) else errors.body(error)
    return JSONResponse(body, failures.kind(error).http, headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, text = error.status_code, NOWHERE
    if status != 404:
        text = f"{error.detail}: {request.method}, allowed: {(error.headers or {}).get('Allow', 'another')}"
    body = {"error": f"[INVALID_ARG] {text}"} if errors.tritons(request.url.path) else errors.shaped(status, text)
    return JSONResponse(body, status, error.headers)
