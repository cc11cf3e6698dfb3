"""Attacks a tenant's neighbours in a process of its own, `python -m loadtest.attack.tenant`, until it is ended. Prints
`begun` when it has begun."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from covey_client import AsyncClient, CoveyClientError
from loadtest.attack.messages import GRAMMARS
from loadtest.attack.streams import QUESTION

BOMB = "word " * 200_000  # a million bytes, refused
BLANKS = " " * 1_000_000  # and what tokenizers are slowest with
FLOOD, BOMBS, STREAMS, HOSTILE = "flood", "bombs", "streams", "grammars"
TOKENIZE, SLOW, SILENT = "tokenize", "slow senders", "silent calls"
CALLERS = {FLOOD: 64, BOMBS: 4, STREAMS: 400, HOSTILE: 4, TOKENIZE: 24, SLOW: 600, SILENT: 200}
KINDS = ("grammar_json", "grammar_regex", "grammar_lark")
ADDRESSES = tuple(f"127.0.0.{last}" for last in (2, 3, 4))  # of slow senders
REST_SECONDS = 0.05  # after a refusal
SETTLE_SECONDS = 3.0
BYTE_SECONDS = 2.0  # between two bytes of a slow sender
NICE = 10  # a tenth of a processor that others want: what it computes would be another machine's


class Attacker:
    """Attacks as one tenant with its key; the URLs say where the front listens for gRPC and HTTP."""

    def __init__(self, grpc_url: str, http_url: str, key: str) -> None:
        self._grpc, self._http = grpc_url, http_url
        self._headers = {"authorization": f"Bearer {key}"}
        self._hostile = itertools.cycle(itertools.product(GRAMMARS, KINDS))

    async def attack(self, way: str) -> None:
        async with AsyncClient(self._grpc, headers=self._headers) as client:
            ways: dict[str, Callable[[int], Awaitable[object]]] = {
                FLOOD: lambda _: client.generate(QUESTION, max_tokens=4),
                BOMBS: lambda _: client.generate(BOMB, max_tokens=4),
                STREAMS: lambda _: self._stream(client),
                HOSTILE: lambda _: self._constrained(client),
                TOKENIZE: lambda _: self._tokenize(),
                SLOW: self._sends_slowly,
                SILENT: lambda _: self._says_nothing(),
            }
            callers = [asyncio.create_task(_again_and_again(ways[way], place)) for place in range(CALLERS[way])]
            await asyncio.sleep(SETTLE_SECONDS)
            print("begun", flush=True)
            await asyncio.gather(*callers)

    async def _stream(self, client: AsyncClient) -> None:
        async for _chunk in client.stream(QUESTION, max_tokens=256, min_tokens=256, temperature=1.0):
            pass

    async def _constrained(self, client: AsyncClient) -> None:
        grammar, kind = next(self._hostile)
        await client.generate(QUESTION, max_tokens=4, **{kind: grammar})

    async def _tokenize(self) -> None:
        body = json.dumps({"prompt": BLANKS}).encode()
        reader, writer = await self._connect("127.0.0.1")
        try:
            writer.write(self._head("/tokenize", len(body)) + body)
            await reader.read()
        finally:
            writer.close()

    async def _sends_slowly(self, place: int) -> None:
        reader, writer = await self._connect(ADDRESSES[place % len(ADDRESSES)])
        try:
            writer.write(self._head("/v2/models/covey/generate", 100))
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(BYTE_SECONDS)
        finally:
            writer.close()

    async def _connect(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._http.partition(":")
        return await asyncio.open_connection(host, int(port), local_addr=(source, 0))

    def _head(self, path: str, length: int) -> bytes:
        lines = {"Host": "x", "Content-Type": "application/json", "Content-Length": length, "Connection": "close"}
        said = "".join(f"{name}: {value}\r\n" for name, value in (lines | self._headers).items())
        return f"POST {path} HTTP/1.1\r\n{said}\r\n".encode()

    async def _says_nothing(self) -> None:
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            await call(metadata=tuple(self._headers.items())).code()


async def _again_and_again(call: Callable[[int], Awaitable[object]], place: int) -> None:
    while True:
        with suppress(CoveyClientError, OSError, grpc.RpcError):
            await call(place)
            continue
        await asyncio.sleep(REST_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Run an attack on a front's gRPC and HTTP port; the key comes on the standard input."""
    os.nice(NICE)
    with suppress(OSError):  # where sessions share processors and not processes; this one has its own
        Path("/proc/self/autogroup").write_text(str(NICE))
    grpc_url, http_url, way = arguments
    with suppress(KeyboardInterrupt):
        asyncio.run(Attacker(grpc_url, http_url, sys.stdin.readline().strip()).attack(way))


if __name__ == "__main__":
    main(sys.argv[1:])
