"""The answer to one request, from one replica after another until it is complete."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from covey.front.openai.errors import shaped
from covey.process.within import within
from covey_client.backoff import Backoff
from covey_client.resumption import FIRST_REST, LONGEST_REST, PATIENCE
from covey_ray.again import CannotGoOn, Told
from covey_ray.asked import BROKEN, SILENT_SECONDS, Another, Asked, Head, Lost

BUSY = 503
DONE = b"[DONE]"
log = logging.getLogger("ray.serve")


class Answer:
    """Asks replicas, and knows no HTTP of the ingress."""

    def __init__(self, servers: DeploymentHandle, asked: Asked) -> None:
        self._servers, self._asked = servers, asked
        self._pieces: AsyncGenerator[Head | bytes, None] | None = None
        self._broke: float | None = None  # time since which nothing new has come
        self._backoff = Backoff(FIRST_REST, LONGEST_REST)

    async def head(self) -> Head:
        """Have a replica begin an answer, and return its head. If one is busy or lost, tries others for a while, then
        raises the last error."""
        while True:
            await self.close()
            self._pieces = self._ask()
            try:
                head = await anext(self._pieces)
            except BROKEN as error:
                if isinstance(error, Lost):
                    self._avoid(error.replica)
                await self._rest(error)
                continue
            except RayServeException as error:  # Ray's queue is full
                if not self._asked.identity:
                    raise
                await self._rest(error)
                continue
            assert isinstance(head, Head)
            if head.status != BUSY:
                return head
            if head.replica not in self._asked.avoid:
                self._avoid(head.replica)
            elif not self._asked.identity:
                return head  # all replicas are busy
            else:
                await self._rest(Lost("all servers that could go on are busy"))
                self._asked = dataclasses.replace(self._asked, avoid=frozenset())

    async def whole(self, head: Head) -> tuple[Head, bytes]:
        """Return the rest of an answer that began with `head`. If its replica is lost, return another answer."""
        while True:
            try:
                return head, b"".join([piece async for piece in self._bytes()])
            except BROKEN as error:
                self._avoid(head.replica)
                await self._rest(error)
                head = await self.head()

    async def events(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the answer that began with `head`, in events. If its replica is lost, it continues on another one, or
        ends with an error."""
        told = Told()
        try:
            while True:
                try:
                    async for data in _data(self._bytes()):
                        if data == DONE:
                            yield _event(DONE)
                            return
                        new = told.new(json.loads(data))
                        if new is not None:
                            self._broke = None
                            self._backoff.succeeded()
                            yield _event(json.dumps(new).encode() if told.repeating else data)
                    raise Lost("the server stopped before the end of the answer")
                except BROKEN as error:
                    log.warning("an answer of replica %s broke off: %s", head.replica, error)
                    head = await self._elsewhere(head, error)
                    told.again()
        except (*BROKEN, RayError, RayServeException, Another, CannotGoOn) as error:
            said = shaped(BUSY, f"the server was lost, and the text cannot go on: {error}")
            yield _event(json.dumps(said).encode())
            yield _event(DONE)
        finally:
            await self.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the rest of the answer as it comes. If its replica is lost, the stream breaks off."""
        try:
            async for piece in self._bytes():
                yield piece
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop the replica's work on this answer."""
        if self._pieces is not None:
            await self._pieces.aclose()

    async def _elsewhere(self, head: Head, problem: Exception) -> Head:
        """Return the head of an answer from another replica that can continue the one that began with `head`. Raises an
        error if there is none."""
        if not head.identity:
            raise Another("no other server is known to write the same")
        self._asked = dataclasses.replace(self._asked, identity=head.identity)
        self._avoid(head.replica)
        await self._rest(problem)
        found = await self.head()
        if found.status != 200:
            raise Lost(f"the next server answered with status {found.status}")
        return found

    def _avoid(self, replica: str) -> None:
        self._asked = dataclasses.replace(self._asked, avoid=self._asked.avoid | {replica})

    async def _rest(self, error: Exception) -> None:
        now = time.monotonic()
        self._broke = now if self._broke is None else self._broke
        if now - self._broke > PATIENCE:
            raise error
        await asyncio.sleep(self._backoff.failed())

    async def _ask(self) -> AsyncGenerator[Head | bytes, None]:
        stream = self._servers.remote(self._asked)
        try:
            while True:
                try:
                    piece = await within(SILENT_SECONDS, anext(stream))
                except StopAsyncIteration:
                    return
                if piece:
                    yield piece
        finally:
            stream.cancel()

    async def _bytes(self) -> AsyncIterator[bytes]:
        """Yield the pieces after the head."""
        assert self._pieces is not None
        async for piece in self._pieces:
            assert isinstance(piece, bytes)
            yield piece


async def _data(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event."""
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                yield event[len(b"data:") :].strip()


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
