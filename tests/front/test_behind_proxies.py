"""Whom a front takes for the caller behind proxies, its turns and connections, and how long a body may be, without a
server behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from covey.contracts.profile import FrontSettings
from covey.front import grpc_service
from covey.front.admission import Admission
from covey.front.connection_limit import WAITING_MESSAGES
from covey.front.failures import TooMany
from covey.front.http_protocol import FREE_CHUNKS
from covey.front.keys import hashed
from covey.front.proxies import Proxies
from tests.fronts import Answering, over_grpc, over_http

BEHIND = FrontSettings(rate=10.0, proxies=("127.0.0.0/8",))
FORWARDED = ("1.1.1.1", "8.8.8.8", "127.0.0.9")  # in headers of their own: the client is the second
LIVE = f"/{grpc_service.SERVICE}/ServerLive"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("9.9.9.9", ["1.1.1.1"], "9.9.9.9"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.5", ["1.1.1.1, 8.8.8.8"], "8.8.8.8"),
        ("10.0.0.5", ["1.1.1.1", "8.8.8.8,10.0.0.9"], "8.8.8.8"),
        ("10.0.0.5", ["10.0.0.7"], "10.0.0.7"),
        ("10.0.0.5", ["1.1.1.1, unknown"], "10.0.0.5"),
        ("10.0.0.5", ["1.1.1.1:4711"], "1.1.1.1"),
        ("::ffff:10.0.0.5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::2", ["1.1.1.1"], "1.1.1.1"),
        ("fd00::3", ["1.1.1.1"], "fd00::3"),
        ("", ["1.1.1.1"], ""),
        ("::ffff:9.9.9.9", [], "9.9.9.9"),
        ("10.0.0.5", ["1.1.1.1", *["10.0.0.7"] * 15], "1.1.1.1"),
        ("10.0.0.5", ["1.1.1.1", *["10.0.0.7"] * 16], "10.0.0.7"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_s_is_the_client(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert Proxies(["10.0.0.0/8", "fd00::2"]).client(peer, forwarded) == client


def test_a_trusted_proxy_may_have_all_connections_and_all_bytes_of_unfinished_requests() -> None:
    settings = FrontSettings(connections=4, message_bytes=1000, proxies=("10.0.0.5",))
    limit, cut = Admission(settings).connections, list[str]()
    slots = [limit.acquire("10.0.0.5", cut.append) for _ in range(4)]
    slots[0].came(WAITING_MESSAGES * 1000)
    assert not cut
    for slot in slots:
        slot.serve()
    with pytest.raises(TooMany, match="more than 4 connections"):
        limit.acquire("10.0.0.5", cut.append)


def through(*addresses: str) -> bytes:
    return b"".join(b"X-Forwarded-For: %s\r\n" % address.encode() for address in addresses)


async def asked(where: tuple[str, int], headers: bytes, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection(*where)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n" + body)
    found = await reader.read()
    writer.close()
    return found


async def test_over_http_a_client_behind_proxies_has_turns_of_its_own() -> None:
    async with over_http(Answering(), BEHIND) as (where, made):
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


def metadata(*addresses: str) -> tuple[tuple[str, str], ...]:
    return tuple(("x-forwarded-for", address) for address in addresses)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


@pytest.mark.parametrize(
    ("reader", "own", "other"),
    [
        ("8.8.8.8", metadata("1.1.1.1, 8.8.8.8, 127.0.0.9"), metadata("9.9.9.9")),
        ("key one", bearer("one"), bearer("two")),
    ],
)
async def test_over_grpc_a_client_behind_proxies_and_the_owner_of_a_key_have_turns_of_their_own(
    reader: str, own: Any, other: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name} {hashed(name)}\n" for name in ("one", "two")))
    keys.chmod(0o600)
    settings = replace(BEHIND, keys=str(keys))
    async with over_grpc(settings) as (address, admission), grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary(LIVE)
        for _ in range(2000):
            admission.charge_read(reader)
        late = ask(b"", metadata=own)
        assert await ask(b"", metadata=other, timeout=10)
        await asyncio.sleep(0.3)
        assert not late.done(), "its turn comes in 20 s"
        late.cancel()


async def test_over_grpc_a_client_behind_a_proxy_has_half_of_the_calls_and_another_one_its_own() -> None:
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


CHUNKED, MOST = b"Transfer-Encoding: chunked\r\n", 5000


@pytest.mark.parametrize("more", [0, 1])
async def test_bodies_of_the_most_bytes_and_of_the_most_chunks_are_read_and_longer_ones_refused(more: int) -> None:
    size = MOST + more
    bodies = (
        (b"Content-Length: %d\r\n" % size, bytes(size)),
        (CHUNKED, b"%x\r\n%s\r\n1\r\n0\r\n0\r\n\r\n" % (size - 1, bytes(size - 1))),
        (CHUNKED, b"1\r\nx\r\n" * (FREE_CHUNKS + more) + b"0\r\n\r\n"),
    )
    async with over_http(Answering(), FrontSettings(message_bytes=MOST)) as (where, _):
        said = [await asked(where, *body) for body in bodies]
    assert [each[9:12] for each in said] == [b"413" if more else b"200"] * 3
