"""Asks a competitor: the OpenAI door of a server's front, streaming, over plain sockets, one connection a
caller: a client library would take more of the machine than the door does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial

from covey_client.wire import MODEL
from loadtest.bench.closed_loop import Came, Raw, closed_loop
from loadtest.bench.work import Answer, Ask, Run

TIMEOUT = 300.0
LAST = b"\r\n0\r\n\r\n"  # of an answer in chunks
MOST_READ = 1 << 16


class OverOpenAI:
    """Asks the door. `settings` go into every request beside what the Ask says. `http_url` is host:port."""

    def __init__(self, http_url: str, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        self._host, _, port = http_url.partition(":")
        self._port, self._settings = int(port), dict(settings)

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        messages = [self._message(ask, tenant) for ask in asks]
        seconds, raw = asyncio.run(self._ask_all(messages, concurrency))
        return Run(tuple(_answer(*parts) for parts in raw), seconds)

    def _message(self, ask: Ask, tenant: str) -> bytes:
        given = {"model": MODEL, "prompt": ask.text, "max_tokens": ask.max_tokens, "temperature": ask.temperature}
        given |= {"seed": ask.seed, "tenant": tenant, "stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({**given, **self._settings}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def _ask_all(self, messages: Sequence[bytes], concurrency: int) -> tuple[float, list[Raw[bytes]]]:
        connections = [await asyncio.open_connection(self._host, self._port) for _ in range(concurrency)]
        found = await closed_loop(messages, [partial(_whole, *each) for each in connections])
        for _, writer in connections:
            writer.close()
        return found


async def _whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> Came[bytes]:
    writer.write(message)
    return await asyncio.wait_for(_read(reader), TIMEOUT)


async def _read(reader: asyncio.StreamReader) -> Came[bytes]:
    came: Came[bytes] = []
    end = b""
    while not end.endswith(LAST):
        part = await reader.read(MOST_READ)
        if not part:
            raise RuntimeError(f"the door closed the connection: {came[:1]}")
        came.append((time.perf_counter(), part))
        end = (end + part)[-len(LAST) :]
        if len(came) == 1 and not part.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(part[:300].decode(errors="replace"))
    return came


def _answer(started: float, came: Sequence[tuple[float, bytes]]) -> Answer:
    """Return an answer whose tokens are known only by their number: texts do not say theirs."""
    lines = b"".join(part for _, part in came).split(b"\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    count = events[-1]["usage"]["completion_tokens"]
    first = next(when for when, part in came if b"data: " in part)
    return Answer((0,) * count, came[-1][0] - started, first - started)
