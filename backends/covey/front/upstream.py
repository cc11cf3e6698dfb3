"""The front's tritonserver: whether it is ready, answers of `covey` that are resumed after its death, and its metrics.

Triton never ends the streams of a model whose process died. The launcher counts such deaths
(`covey.supervision.deaths`) and reloads the model. The front then gives up calls that have been silent since the last
death, and sends them again.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from covey.front import vllm_metrics
from covey.front.inference_request import InferenceRequest
from covey.supervision.deaths import read
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.async_client import AsyncCall, AsyncStream
from covey_client.deadline import Deadline
from covey_client.errors import Cancelled, ConnectionLost, CoveyClientError, ServerError
from covey_client.grpc_transport import AsyncGrpcTransport
from covey_client.request import Request
from covey_client.response import Chunk
from covey_client.resumption import CannotGoOn, Resumption
from covey_client.wire import MODEL

LOOK_SECONDS = 0.25
PATIENT_SECONDS = 5.0  # for one look; without an answer, the last state holds
SILENT_SECONDS = 2.0  # silence of a call that was open at a death
# Deaths of the server without anything new from an answer, before it is given up: its request may be the cause.
DEATHS, DEATHS_BEFORE_ANYTHING = 2, 1
METRICS_SECONDS = 1.0  # for which one reading of the metrics is reused


class Upstream:
    """The front's tritonserver. Must be created in the event loop."""

    def __init__(self, grpc_url: str, metrics_url: str, deaths_fd: int, draining: Callable[[], bool]) -> None:
        address = Address.parse(grpc_url, port=8001)
        self._metrics_address = Address.parse(metrics_url, port=8002)
        self._transport = AsyncGrpcTransport(address)
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)]
        self._channel = grpc.aio.insecure_channel(address.target, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.draining = draining
        self._metrics, self._read_at = b"", -METRICS_SECONDS
        self._reading = asyncio.Lock()
        self._calls: weakref.WeakSet[_UpstreamCall] = weakref.WeakSet()
        self._deaths_fd = deaths_fd
        self._ready, self._ready_after = False, 0  # from the last look, and the number of deaths before it

    @property
    def up(self) -> bool:
        """Return whether the server was ready at the last look and has not died since."""
        seen = read(self._deaths_fd)
        return self._ready and seen.serving and seen.deaths == self._ready_after

    @property
    def deaths(self) -> int:
        return read(self._deaths_fd).deaths

    def answer(self, request: InferenceRequest, seconds: float) -> AsyncStream:
        """Return a stream of the answer's chunks, which calls again after a break (`AsyncStream`). Leaving it cancels
        the rest."""
        resumption = _BoundedResumption(request.upstream_request, request.settings, self)
        deadline = Deadline.after(seconds)

        def call_server() -> _UpstreamCall:
            next_request = resumption.request()
            serving = read(self._deaths_fd).serving  # else another process may have the port
            call = _UpstreamCall(self._transport.call(next_request, deadline) if serving else None)
            self._calls.add(call)
            return call

        return AsyncStream(call_server, resumption)

    async def watch(self, drained: Callable[[], bool]) -> None:
        """Look at `covey` every LOOK_SECONDS, and give up calls that its death left open. Returns when a drain has
        ended."""
        while not drained():
            await self.look()
            if not self.draining():
                died = read(self._deaths_fd).last
                for call in list(self._calls):
                    call.give_up_if_lost(died, time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        deaths = self.deaths
        try:
            said = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=PATIENT_SECONDS)
            self._ready = bool(said.ready)
        except grpc.aio.AioRpcError as error:
            self._ready = self._ready and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        self._ready_after = deaths

    async def metrics(self) -> bytes:
        """Return the text of the metrics port, with vLLM's names added. Raises CoveyClientError."""
        async with self._reading:
            if time.monotonic() - self._read_at >= METRICS_SECONDS:
                _, said = await asyncio.to_thread(
                    ask, self._metrics_address, "GET", "/metrics", headers={}, seconds=PATIENT_SECONDS
                )
                self._metrics = said + vllm_metrics.of(said)
                self._read_at = time.monotonic()
            return self._metrics

    async def close(self) -> None:
        await self._transport.close()
        await self._channel.close()


class _UpstreamCall:
    """A call to the server. It is given up if the server dies without closing it."""

    def __init__(self, inner: AsyncCall | None) -> None:
        """`inner` is None if no server can be called."""
        self._inner = inner
        self._last_chunk_at = time.monotonic()
        self._lost = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        if self._inner is None:
            raise ConnectionLost("the server is restarting")
        try:
            async with aclosing(self._inner.chunks()) as chunks:
                async for chunk in chunks:
                    self._last_chunk_at = time.monotonic()
                    yield chunk
        except Cancelled:
            if self._lost:
                raise ConnectionLost("the server died and left the answer open") from None
            raise

    def cancel(self) -> None:
        if self._inner is not None:
            self._inner.cancel()

    def give_up_if_lost(self, died: float, now: float) -> None:
        """Cancel the call if the death at `died` left it open."""
        if not self._lost and self._last_chunk_at <= died < now - SILENT_SECONDS:
            self._lost = True
            self.cancel()


class _BoundedResumption(Resumption):
    """Resumes an answer as the client library does, but not on a draining server, and not for ever: the request may be
    what kills the server."""

    def __init__(
        self,
        build: Callable[[Mapping[str, object]], Request],
        settings: Mapping[str, object],
        upstream: Upstream,
    ) -> None:
        super().__init__(build, settings)
        self._upstream = upstream
        self._deaths, self._most = upstream.deaths, DEATHS_BEFORE_ANYTHING

    def rest(self, error: CoveyClientError) -> float | None:
        if self._upstream.draining():
            if isinstance(error, ConnectionLost) and not isinstance(error, CannotGoOn):
                raise ConnectionLost("the server was stopped before the answer ended: ask again later") from None
            return None
        return super().rest(error)

    def request(self) -> Request:
        """Return the request to send. Raises ServerError if the server has died over it too often."""
        if self._upstream.deaths - self._deaths > self._most:  # do not ask another server either
            raise ServerError("the server died repeatedly while it served this request")
        return super().request()

    def new(self, chunk: Chunk) -> Chunk | None:
        found = super().new(chunk)
        if found is not None:
            self._deaths, self._most = self._upstream.deaths, DEATHS
        return found
