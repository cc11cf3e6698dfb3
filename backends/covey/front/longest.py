"""The length of the longest request, which the server's metrics tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from covey_client.errors import CoveyClientError
from covey_client.status import INFO, parse

REUSED_SECONDS = 10.0  # of one reading or failure
WAIT_SECONDS = 1.0  # of a caller while no length is known


class Longest:
    """Owns the last length that was read. One reading serves all callers, so a port that hangs delays them little."""

    def __init__(self, metrics: Callable[[], Awaitable[bytes]], now: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._now = metrics, now
        self._tokens: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = 0.0

    async def tokens(self) -> int | None:
        """Return the most tokens of a request, prompt and output together; None if the server has not told it."""
        if self._reading is None or (self._reading.done() and self._now() - self._began >= REUSED_SECONDS):
            self._began = self._now()
            self._reading = asyncio.create_task(self._read())
        if self._tokens is None:
            await asyncio.wait([self._reading], timeout=WAIT_SECONDS)
        return self._tokens

    async def _read(self) -> None:
        with suppress(CoveyClientError):
            samples = parse((await self._metrics()).decode(errors="replace"), INFO)
            self._tokens = next((int(each.labels["longest"]) for each in samples if "longest" in each.labels), None)
