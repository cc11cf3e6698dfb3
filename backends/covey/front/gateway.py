"""The part shared by both protocols: admission, texts and the upstream server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from covey.contracts.profile import Profile
from covey.front.admission import DOWN, Admission, Caller
from covey.front.failures import NotServed, refused
from covey.front.inference_request import InferenceRequest
from covey.front.openai.texts import Texts
from covey.front.openai.workers import Workers
from covey.front.spans import RequestSpans
from covey.front.upstream import Upstream
from covey.process import traces
from covey.text import model_folder
from covey_client.async_client import AsyncStream
from covey_client.errors import CoveyClientError, Overloaded
from covey_client.response import Completion
from covey_client.status import INFO, parse
from covey_client.wire import MODEL

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


class Gateway:
    """Holds the parts of one front. Must be created in the event loop."""

    def __init__(
        self,
        profile: Profile,
        grpc_url: str,
        metrics_url: str,
        deaths: int,
        folder: str,
        names: Sequence[str] = (),
    ) -> None:
        """`folder` is the target's. OpenAI's routes accept `names` for the model; without any, `covey`."""
        self.names = tuple(names) or (MODEL,)
        self.settings = profile.front
        self.prompt_bytes = profile.limits.prompt_bytes
        self.most_tokens = profile.limits.max_tokens  # of a request that sets none
        self.sampling = model_folder.read(folder).sampling
        self.workers = Workers(self.prompt_bytes, self.settings.message_bytes)
        self.texts = Texts(folder, self.workers)
        self.admission = Admission(profile.front)
        self.upstream = Upstream(grpc_url, metrics_url, deaths, lambda: self.admission.draining)
        self.spans = RequestSpans(traces.opened())
        self._longest = Longest(self.upstream.metrics)

    def served(self, name: Any) -> str:
        """Return the model name that a caller gives, or the first known one if it gives none. Raises NotServed."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            raise NotServed(str(refused("model", name, ", ".join(self.names))), "model")
        return str(name)

    async def longest(self) -> int | None:
        """Return the most tokens of a request, prompt and output together; None while the server is away."""
        return await self._longest.tokens() if self.upstream.up else None

    @property
    def ready(self) -> bool:
        return self.upstream.up and not self.admission.draining

    def announced(self, caller: Caller, size: int) -> None:
        """Announce a request of `size` bytes, which may still be arriving. Raises Overloaded."""
        self.admission.announce(caller.name, size)
        if not self.upstream.up:
            raise Overloaded(DOWN)

    @contextmanager
    def admitted(self, caller: Caller, size: int | None = None) -> Iterator[None]:
        """Count one request while it is in flight. Announces it first if `size` is given. Raises Overloaded."""
        if size is not None:
            self.announced(caller, size)
        with self.admission.in_flight(caller.name):
            yield

    def stream(self, request: InferenceRequest, caller: Caller, seconds: float | None = None) -> AsyncStream:
        """Send the request on. Raises InvalidRequest or TooMany if the caller may not use its tenant."""
        named = self.admission.tenant(caller, str(request.settings.get("tenant", "")))
        request = replace(request, settings={**request.settings, "tenant": named}, trace=self.spans.current())
        most = self.settings.answer_seconds
        return self.upstream.answer(request, most if seconds is None else min(seconds, most))

    async def whole(self, request: InferenceRequest, caller: Caller, seconds: float | None = None) -> Completion:
        async with self.stream(request, caller, seconds) as stream:
            return Completion.join([chunk async for chunk in stream])
