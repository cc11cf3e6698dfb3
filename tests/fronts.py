"""Fronts before a server that runs, and what is asked of them over plain HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
