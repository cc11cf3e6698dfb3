"""Fronts before a server that runs or before none, and what is asked of them over plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.server import ServerState

from covey.contracts.profile import FrontSettings, Profile
from covey.front import grpc_service, http_protocol
from covey.front.admission import Admission
from covey.front.gateway import Gateway
from covey.launcher import FREE, Server
from covey.launcher.front import Front

if TYPE_CHECKING:
    import openai


@contextmanager
def fronting(server: Server, **options: Any) -> Iterator[Front]:
    """A front of its own, with these options beside the server's."""
    options = {"front_http_port": FREE, "front_grpc_port": FREE, **options}
    front = Front(replace(server.options, **options), server.deaths)
    front.start()
    try:
        yield front
    finally:
        front.stop()


def library(front: Front, key: str = "none") -> openai.OpenAI:
    import openai  # takes seconds

    return openai.OpenAI(base_url=f"http://{front.http_url}/v1", api_key=key, max_retries=0)


def call(front: Front, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
    """The status, body and headers of an answer; a body that is no bytes is sent as JSON."""
    host, _, port = front.http_url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


class Answering:
    """An application that answers each request with its client's address, and notes who was answered."""

    def __init__(self) -> None:
        self.clients = list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.clients.append(scope["client"][0])
        said = self.clients[-1].encode()
        length = (b"content-length", str(len(said)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def over_http(app: Any, settings: FrontSettings) -> AsyncIterator[tuple[tuple[str, int], list[Any]]]:
    """Its address, and the connections that were made."""
    admission, state, made = Admission(settings), ServerState(), list[Any]()
    bounded = http_protocol.bounded(admission, settings)
    config = uvicorn.Config(app, lifespan="off", http=bounded)
    config.load()

    def protocol() -> Any:
        made.append(bounded(config=config, server_state=state, app_state={}))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with asyncio.timeout(30):
        yield server.sockets[0].getsockname(), made
        while state.connections:
            await asyncio.sleep(0.02)
    server.close()


@asynccontextmanager
async def over_grpc(settings: FrontSettings) -> AsyncIterator[tuple[str, Admission]]:
    """The address of a front with no server behind it, and its limits."""
    profile, nowhere = Profile("alone", front=settings), "127.0.0.1:9"
    gateway = Gateway(profile, nowhere, nowhere, os.memfd_create("deaths"), "")
    server = grpc_service.server(gateway)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", gateway.admission
    await server.stop(0)
    await gateway.upstream.close()
