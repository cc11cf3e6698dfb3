"""The deployment `Drafters`: a replica owns one draft server, for as many targets at once as `covey plan-star` says.

A target's replica holds a call for as long as it lives. So Ray's router gives each target the draft server with fewest,
never one more than N_max, and Serve's autoscaling by calls in flight keeps as many draft servers as they need.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator

import ray

from covey.contracts import profile
from covey_client import secret as admin
from covey_client.files import replace
from covey_ray.asked import BEAT_SECONDS
from covey_ray.engine import PRIVATE, Engine, free_port
from covey_ray.settings import Settings

HEALTH = "/v2/health/ready"


class Drafters:
    """A replica of the draft server."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        self._engine = Engine()
        self._host, self._port = ray.util.get_node_ip_address(), 0
        self._targets: dict[str, tuple[str]] = {}
        self._callers = self._engine.folder / "callers"
        self._write()
        tables, path = profile.read(settings.drafters)
        tables["star"] = tables.get("star", {}) | {"callers": str(self._callers)}
        copy = self._engine.folder / path.name
        replace(copy, profile.written(tables))
        self._port = free_port(self._host)
        words = [sys.executable, "-m", "covey.server", "--profile", str(copy), "--host", self._host]
        words += ["--http-port", "{port}", "--grpc-port", str(self._port), "--metrics-port", "0"]
        own = {admin.VARIABLE: secrets.token_hex(16)}  # without one no port is opened to other machines
        await self._engine.start(words, HEALTH, self._host, own)

    async def check_health(self) -> None:
        await self._engine.check()

    async def draft_for(self, name: str, secret: str) -> AsyncIterator[tuple[str, int] | None]:
        """Yield the address to send to, then None again and again. The caller is served until it ends the call."""
        own = self._targets[name] = (secret,)
        self._write()
        try:
            yield self._host, self._port
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                yield None
        finally:
            if self._targets.get(name) is own:  # else a later call is that target's
                del self._targets[name]
                self._write()

    def _write(self) -> None:
        replace(self._callers, "".join(f"{name} {secret}\n" for name, (secret,) in self._targets.items()), PRIVATE)

    def __del__(self) -> None:
        """Stop the server; Ray calls this when the replica is to go."""
        if hasattr(self, "_engine"):
            self._engine.stop()
