"""The way from a target's server to the draft server that Ray gave it, wherever that is now.

Its profile says that the draft server is on a port of this machine. Who connects there is led on to where Ray's router
found room; when that server or its node is no more, the connections break and the next ones lead to another. Texts do
not depend on any of this (docs/star.md).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

from ray.serve.handle import DeploymentHandle

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.process.within import within
from covey_client.files import replace
from covey_ray.asked import SILENT_SECONDS
from covey_ray.engine import PRIVATE

REST_SECONDS = 1.0  # before Ray is asked again
PIECE = 1 << 16
log = logging.getLogger("ray.serve")


class Way:
    """The way of one replica to its draft server. Must be made in the replica's event loop."""

    def __init__(self, drafters: DeploymentHandle, name: str) -> None:
        """`name` is what the draft server calls this one."""
        self._drafters = drafters.options(method_name="draft_for", stream=True, _by_reference=False)
        self._name, self._secret = name, secrets.token_hex(16)
        self._there: tuple[str, int] | None = None
        self._joined: set[asyncio.StreamWriter] = set()

    async def profile(self, own: str, folder: Path) -> str:
        """Return a copy of the profile in that folder by which the way is taken, which is open from now on."""
        self._listener = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self._finding = asyncio.ensure_future(self._find())
        port = self._listener.sockets[0].getsockname()[1]
        tables, path = profile.read(own)
        star = tables.get("star", {})
        if not star.get("servers"):
            raise SettingError(
                f"{path}: star.servers: none of its drafters is on a draft server, as ENTRY=HOST:PORT/MODEL"
            )
        moved = (entry.split("=", 1)[0] + f"=127.0.0.1:{port}/" + entry.rpartition("/")[2] for entry in star["servers"])
        secret = folder / "secret"
        replace(secret, self._secret, PRIVATE)
        tables["star"] = star | {"servers": list(dict.fromkeys(moved)), "secret": str(secret)}
        copy = folder / path.name
        replace(copy, profile.written(tables))
        return str(copy)

    async def _find(self) -> None:
        """Have one draft for us, as long as it is there; then another."""
        while True:
            stream = self._drafters.remote(self._name, self._secret)
            try:
                self._there = await anext(stream)
                while True:
                    await within(SILENT_SECONDS, anext(stream))
            except Exception as error:  # whatever it is, texts go on without drafts
                log.warning("the draft server is gone: %s: %s", type(error).__name__, error)
            finally:
                self._there = None
                stream.cancel()
                for writer in self._joined:
                    writer.close()
            await asyncio.sleep(REST_SECONDS)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        try:
            if self._there is not None:
                back, on = await asyncio.open_connection(*self._there)
                ends.add(on)
                self._joined |= ends
                await asyncio.gather(_pass(reader, on), _pass(back, writer))
        except OSError:
            pass
        finally:
            self._joined -= ends
            for each in ends:
                each.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    writer.close()
