"""What the ingress reads of strangers, without a cluster: none of these reaches a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from starlette.requests import Request

from covey_ray.ingress import Ingress

MOST, SECONDS = 1000, 0.05


def status(path: str, receive: Callable[[], Awaitable[Any]], headers: list[tuple[bytes, bytes]]) -> int:
    servers = MagicMock()
    servers.options.return_value = servers
    servers.remote.side_effect = AssertionError("a server was asked")
    ingress = Ingress(servers, (MOST, SECONDS), seeds=True)
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    scope |= {"scheme": "http", "server": ("127.0.0.1", 8000)}

    async def run() -> int:
        return (await ingress(Request(scope, receive))).status_code

    return asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"2000")]])
def test_a_body_that_is_too_long_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """One that says so before anything of it is read, one in chunks before it ends."""
    left = [b"a" * 600] * 2

    async def receive() -> Any:
        assert not headers, "it was read"
        return {"type": "http.request", "body": left.pop(), "more_body": True}

    assert status("/v1/completions", receive, headers) == 413


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    assert status("/v1/completions", receive, []) == 408


@pytest.mark.parametrize("path", ["/metrics", "/v1/../metrics", "/v1/./models/../../v2", "/v1/.."])
def test_paths_that_lead_elsewhere_are_nowhere(path: str) -> None:
    async def receive() -> Any:
        raise AssertionError("its body was read")

    assert status(path, receive, []) == 404
