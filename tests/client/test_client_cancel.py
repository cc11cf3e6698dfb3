"""Giving calls up over HTTP, at every moment of one: against a socket that says no more than it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from covey_client import AsyncClient, AsyncStream, Cancelled, Client

SOON = 20.0  # far below the calls' own deadline
HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"text_output": "w0 ", "output_ids": [0], "finish_reason": ""}\n\n'
CHUNK = f"{len(EVENT):x}\r\n".encode() + EVENT + b"\r\n"


class Mute:
    """A server that reads a request, sends `words` and then keeps silent."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = threading.Semaphore(0)  # once a request
        self.left = threading.Semaphore(0)  # once a connection that its client closed
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            read = b""
            while b"\r\n\r\n" not in read or not read.endswith(b"}"):
                read += connection.recv(1 << 16)
            connection.sendall(self._words)
            self.asked.release()
            while connection.recv(1 << 16):
                pass
        self.left.release()


@pytest.fixture(params=[b"", HEADERS, HEADERS + CHUNK], ids=["silent", "headers", "chunk"])
def mute(request: pytest.FixtureRequest) -> Iterator[Mute]:
    server = Mute(request.param)
    yield server
    server.close()


async def drained(stream: AsyncStream) -> list[Any]:
    return [chunk async for chunk in stream]


def once_asked(mute: Mute, act: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        assert mute.asked.acquire(timeout=SOON)
        time.sleep(0.1)  # what was sent is read, and the client waits for more
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_thread_that_waits_gets_cancelled(mute: Mute, how: str) -> None:
    with Client(mute.url, transport="http", timeout=60) as client:
        stream = client.stream("x")
        began = time.monotonic()
        thread = once_asked(mute, stream.cancel if how == "cancel" else client.close)
        with pytest.raises(Cancelled):
            list(stream)
        assert time.monotonic() - began < SOON
        thread.join()
        assert mute.left.acquire(timeout=SOON)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_task_that_waits_gets_cancelled(mute: Mute, how: str) -> None:
    async def run() -> None:
        async with AsyncClient(mute.url, transport="http", timeout=60) as client:
            stream = client.stream("x")
            waiting = asyncio.create_task(drained(stream))
            assert await asyncio.to_thread(mute.asked.acquire, timeout=SOON)
            await asyncio.sleep(0.1)
            if how == "cancel":
                stream.cancel()
            else:
                await client.close()
            with pytest.raises(Cancelled):
                await asyncio.wait_for(waiting, SOON)
            assert await asyncio.to_thread(mute.left.acquire, timeout=SOON)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_what_is_cancelled_before_it_begins_is_never_sent(mute: Mute, how: str) -> None:
    with Client(mute.url, transport="http", timeout=2) as client:
        stream = client.stream("x")
        if how == "cancel":
            stream.cancel()
        else:
            client.close()
        with pytest.raises(Cancelled):
            list(stream)

    async def run() -> None:
        async with AsyncClient(mute.url, transport="http", timeout=2) as client:
            stream = client.stream("x")
            if how == "cancel":
                stream.cancel()
            else:
                await client.close()
            with pytest.raises(Cancelled):
                await drained(stream)

    asyncio.run(run())
    assert not mute.asked.acquire(timeout=0.2)


def test_a_task_that_is_cancelled_stays_cancelled(mute: Mute) -> None:
    """The task's own end is not the request's: it must not come out as an answer that was given up."""

    async def run() -> None:
        async with AsyncClient(mute.url, transport="http", timeout=60) as client:
            waiting = asyncio.create_task(drained(client.stream("x")))
            assert await asyncio.to_thread(mute.asked.acquire, timeout=SOON)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, SOON)
            assert await asyncio.to_thread(mute.left.acquire, timeout=SOON)

    asyncio.run(run())
