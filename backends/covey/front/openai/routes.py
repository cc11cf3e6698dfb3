"""OpenAI's routes, and those of vLLM that its clients and benchmarks use."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from covey.front.failures import refused
from covey.front.gateway import Gateway
from covey.front.http_bodies import json_object
from covey.front.http_calls import JSON, HttpCall, Posted, caller_of
from covey.front.openai import generation
from covey.front.openai.responses import responses
from covey.front.openai.tools import taken


async def tokenize(call: HttpCall, body: bytes) -> None:
    parsed = json_object(body)
    texts = call.gateway.texts
    call.gateway.served(parsed.get("model"))
    if parsed.get("messages") is not None:
        tools, parsed = taken(parsed)
        found = (await generation.rendered(call.job, texts, parsed, tools)).ids
        count, tokens = len(found), json.dumps(found).encode()
    else:
        text, special = parsed.get("prompt"), parsed.get("add_special_tokens")
        if not isinstance(text, str):
            raise refused("prompt", text, "a text, or messages")
        if not isinstance(special, (bool, type(None))):
            raise refused("add_special_tokens", special, "true or false")
        count, tokens = await texts.encode(call.job, text, special=special is not False)
    told = json.dumps({"count": count, "max_model_len": await call.gateway.longest()}).encode()
    await call.answer(b'%s, "tokens": %s}' % (told[:-1], tokens), JSON)


async def detokenize(call: HttpCall, body: bytes) -> None:
    parsed = json_object(body)
    call.gateway.served(parsed.get("model"))
    ids = parsed.get("tokens")
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 1 << 31 for each in ids):
        raise refused("tokens", ids, "a list of token ids")
    await call.json({"prompt": await call.gateway.texts.decode(call.job, ids)})


def routes(gateway: Gateway, health: Callable[[Request], Awaitable[Response]]) -> list[BaseRoute]:
    started = int(time.time())

    def described(name: str, length: int | None) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "covey", "max_model_len": length}

    async def models(request: Request) -> Response:
        gateway.admission.charge(caller_of(gateway, request).name)
        length = await gateway.longest()
        return JSONResponse({"object": "list", "data": [described(name, length) for name in gateway.names]})

    async def model(request: Request) -> Response:
        gateway.admission.charge(caller_of(gateway, request).name)
        named = gateway.served(request.path_params["model"])
        return JSONResponse(described(named, await gateway.longest()))

    return [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/v1/chat/completions", Posted(gateway, generation.chat), methods=["POST"]),
        Route("/v1/completions", Posted(gateway, generation.completions), methods=["POST"]),
        Route("/v1/responses", Posted(gateway, responses), methods=["POST"]),
        Route("/tokenize", Posted(gateway, tokenize), methods=["POST"]),
        Route("/detokenize", Posted(gateway, detokenize), methods=["POST"]),
    ]
