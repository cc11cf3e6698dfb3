"""The deployment `Server`: a replica owns one server on its node, and passes answers on as they come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
from ray import serve
from yarl import URL

from covey.contracts import profile
from covey.process.within import within
from covey_client.status import INFO
from covey_ray.asked import BEAT_SECONDS, HEALTH, Another, Asked, Head, Lost
from covey_ray.engine import Engine
from covey_ray.settings import Settings


class Server:
    """A replica, with its server."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        """Return when the server is ready; a large model takes minutes to load."""
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._engine = Engine()
        await self._engine.start(settings.command or covey(settings.profile, settings.model), HEALTH)
        info = (each.labels for each in await self._engine.samples() if each.name == INFO)
        self._identity = next(info, {}).get("identity", "")

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the data that Ray gives to all routers."""
        return {"identity": self._identity}

    async def check_health(self) -> None:
        await self._engine.check()

    async def answer(self, asked: Asked) -> AsyncIterator[Head | bytes]:
        """Yield the answer's head, then its bytes. In silence, yield b"" every BEAT_SECONDS. Raises Another or Lost."""
        if asked.identity not in ("", self._identity):
            raise Another("no server is left with the weights, settings and kind of machine that began this text")
        given = {"headers": asked.headers, "data": asked.body or None}
        asking = asyncio.ensure_future(
            self._engine.session.request(asked.method, URL(self._engine.url).with_path(asked.path), **given)
        )
        try:
            while not (await asyncio.wait({asking}, timeout=BEAT_SECONDS))[0]:
                yield b""
            response = asking.result()
            named = {name.lower(): value for name, value in response.headers.items()}
            yield Head(self._replica, self._identity, response.status, named)
            while True:
                try:
                    piece = await within(BEAT_SECONDS, response.content.readany())
                except asyncio.TimeoutError:
                    yield b""
                    continue
                if not piece:
                    return
                yield piece
        except aiohttp.ClientError as error:
            raise Lost(f"{type(error).__name__}: {error}", self._replica) from None
        finally:
            asking.cancel()
            if asking.done() and not asking.cancelled() and not asking.exception():
                asking.result().close()

    def __del__(self) -> None:
        """Stop the server. Ray calls this after the replica's answers have ended."""
        if hasattr(self, "_engine"):
            self._engine.stop()


def covey(own: str, model: str) -> list[str]:
    """Return the command that starts Covey's launcher with its front. Other machines cannot reach it."""
    words = [sys.executable, "-m", "covey.launcher", "--profile", str(profile.find(own).resolve())]
    words += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    words += ["--front-http-port", "{port}", "--front-grpc-port", "0"]
    return [*words, "--model", model] if model else words
