"""Fronts whose callers come through trusted proxies, and how long a body may be, without a server behind them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from covey.contracts.profile import FrontSettings
from covey.front import grpc_service
from covey.front.http_protocol import FREE_CHUNKS
from tests.fronts import over_grpc, over_http

BEHIND = FrontSettings(rate=10.0, proxies=("127.0.0.0/8",))
FORWARDED = ("1.1.1.1", "8.8.8.8", "127.0.0.9")  # in headers of their own: the client is the second
LIVE = f"/{grpc_service.SERVICE}/ServerLive"


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """Return the client's address."""
    while (await receive()).get("more_body"):
        pass
    said = scope["client"][0].encode()
    length = (b"content-length", str(len(said)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": said})


def through(*addresses: str) -> bytes:
    return b"".join(b"X-Forwarded-For: %s\r\n" % address.encode() for address in addresses)


async def asked(where: tuple[str, int], headers: bytes, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection(*where)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n" + body)
    found = await reader.read()
    writer.close()
    return found


def test_over_http_a_client_behind_proxies_has_turns_of_its_own() -> None:
    async def run() -> None:
        async with over_http(answering, BEHIND) as (where, made):
            assert (await asked(where, through(*FORWARDED))).endswith(b"\r\n\r\n8.8.8.8")
            for _ in range(2000):
                made[0].admission.charge_read("8.8.8.8")
            late = asyncio.ensure_future(asked(where, through(*FORWARDED)))
            assert (await asked(where, through("9.9.9.9"))).endswith(b"9.9.9.9")
            await asyncio.sleep(0.3)
            assert not late.done(), "its turn comes in 20 s"
            for each in made:
                each.transport.abort()
            await asyncio.gather(late, return_exceptions=True)

    asyncio.run(run())


def metadata(*addresses: str) -> tuple[tuple[str, str], ...]:
    return tuple(("x-forwarded-for", address) for address in addresses)


def test_over_grpc_a_client_behind_proxies_has_turns_of_its_own() -> None:
    async def run() -> None:
        async with over_grpc(BEHIND) as (address, admission), grpc.aio.insecure_channel(address) as channel:
            ask = channel.unary_unary(LIVE)
            for _ in range(2000):
                admission.charge_read("8.8.8.8")
            late = ask(b"", metadata=metadata("1.1.1.1, 8.8.8.8, 127.0.0.9"))
            assert await ask(b"", metadata=metadata("9.9.9.9"), timeout=10)
            await asyncio.sleep(0.3)
            assert not late.done(), "its turn comes in 20 s"
            late.cancel()

    asyncio.run(run())


def test_over_grpc_a_client_behind_a_proxy_has_half_of_the_calls_and_another_one_its_own() -> None:
    async def run() -> None:
        settings = FrontSettings(connections=4, proxies=BEHIND.proxies)
        async with over_grpc(settings) as (address, _), grpc.aio.insecure_channel(address) as channel:
            stream, ask = channel.stream_stream(f"/{grpc_service.SERVICE}/ModelStreamInfer"), channel.unary_unary(LIVE)
            held = [stream(metadata=metadata("8.8.8.8")) for _ in range(2)]
            for each in held:
                await each.wait_for_connection()
            await asyncio.sleep(0.2)
            assert await ask(b"", metadata=metadata("9.9.9.9"), timeout=10)
            assert not any(each.done() for each in held)
            assert await ask(b"", metadata=metadata("8.8.8.8"), timeout=10)
            await asyncio.sleep(0.2)
            assert sorted(each.done() for each in held) == [False, True], "it made room itself"
            for each in held:
                each.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_the_most_bytes_is_read_and_a_longer_one_refused(chunked: bool, more: int) -> None:
    async def run() -> bytes:
        settings = FrontSettings(message_bytes=5000)
        async with over_http(answering, settings) as (where, _):
            body = bytes(5000 + more)
            if chunked:
                whole = b"%x\r\n%s\r\n1\r\n0\r\n0\r\n\r\n" % (len(body) - 1, body[:-1])
                return await asked(where, b"Transfer-Encoding: chunked\r\n", whole)
            return await asked(where, b"Content-Length: %d\r\n" % len(body), body)

    assert asyncio.run(run())[9:12] == (b"413" if more else b"200")


@pytest.mark.parametrize("more", [0, 1])
def test_a_body_of_the_most_chunks_is_read_and_one_of_more_refused(more: int) -> None:
    async def run() -> bytes:
        async with over_http(answering, FrontSettings()) as (where, _):
            chunks = b"1\r\nx\r\n" * (FREE_CHUNKS + more) + b"0\r\n\r\n"
            return await asked(where, b"Transfer-Encoding: chunked\r\n", chunks)

    assert asyncio.run(run())[9:12] == (b"413" if more else b"200")
