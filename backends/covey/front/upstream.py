"""tritonserver behind the front: whether it is there, answers of `covey` that go on when it dies, and its metrics.

Triton never ends the streams of a model whose process died. The launcher reloads the model, which is then not ready for
a moment: calls from before that moment which have been silent since are given up and asked for again.
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

from covey.front.asked import Asked
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.async_client import AsyncStream
from covey_client.deadline import Deadline
from covey_client.errors import Cancelled, ConnectionLost, CoveyClientError
from covey_client.grpc_transport import AsyncGrpcTransport
from covey_client.request import Request
from covey_client.response import Chunk
from covey_client.resumption import Resumption
from covey_client.transport import AsyncCall
from covey_client.wire import MODEL

LOOK_SECONDS = 0.1  # an outage between two looks is not seen: with 0.25 s those of a small model were not
PATIENT_SECONDS = 5.0  # for one look: one that gets no answer says nothing about the server
SILENT_SECONDS = 2.0  # of a call from before the server was away
# How often the server may go away without anything new from an answer before it is given up: it may be the reason.
OUTAGES, OUTAGES_BEFORE_ANYTHING = 2, 1
METRICS_SECONDS = 1.0  # that one reading of the metrics serves everybody


class Upstream:
    """One server; made in the event loop."""

    def __init__(self, grpc_url: str, metrics_url: str, draining: Callable[[], bool]) -> None:
        address = Address.parse(grpc_url, port=8001)
        self._metrics_address = Address.parse(metrics_url, port=8002)
        self._transport = AsyncGrpcTransport(address)
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)]
        self._channel = grpc.aio.insecure_channel(address.target, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._draining = draining
        self._metrics, self._read_at = b"", -METRICS_SECONDS
        self._reading = asyncio.Lock()
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._went = 0.0  # when it was last seen to have gone
        self.up = False  # by the last look
        self.outages = 0

    def answer(self, asked: Asked, seconds: float) -> AsyncStream:
        """Chunks of it; leaving the stream gives the rest up."""
        resumption = _Patience(asked.request, asked.settings, self, self._draining)
        deadline = Deadline.after(seconds)

        def ask_again() -> _Call:
            call = _Call(self._transport.call(resumption.request(), deadline))
            self._calls.add(call)
            return call

        return AsyncStream(ask_again, resumption)

    async def watch(self) -> None:
        """Look again and again whether `covey` can be asked."""
        while True:
            await self.look()
            if not self._draining():
                for call in list(self._calls):
                    call.judge(self._went, time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        try:
            said = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=PATIENT_SECONDS)
            up = bool(said.ready)
        except grpc.aio.AioRpcError as error:
            up = self.up and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if self.up and not up:
            self._went = time.monotonic()
            self.outages += 1
        self.up = up

    async def metrics(self) -> bytes:
        """What the metrics port says; raises CoveyClientError."""
        async with self._reading:
            if time.monotonic() - self._read_at >= METRICS_SECONDS:
                _, self._metrics = await asyncio.to_thread(
                    ask, self._metrics_address, "GET", "/metrics", headers={}, seconds=PATIENT_SECONDS
                )
                self._read_at = time.monotonic()
            return self._metrics

    async def close(self) -> None:
        await self._transport.close()
        await self._channel.close()


class _Call:
    """One call, which is lost where the server went away without a word."""

    def __init__(self, inner: AsyncCall) -> None:
        self._inner = inner
        self._heard = time.monotonic()
        self._lost = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(self._inner.chunks()) as chunks:
                async for chunk in chunks:
                    self._heard = time.monotonic()
                    yield chunk
        except Cancelled:
            if self._lost:
                raise ConnectionLost("the server went away and left the answer open") from None
            raise

    def cancel(self) -> None:
        self._inner.cancel()

    def judge(self, went: float, now: float) -> None:
        if not self._lost and self._heard <= went < now - SILENT_SECONDS:
            self._lost = True
            self._inner.cancel()


class _Patience(Resumption):
    """Goes on with an answer as the client's library does, but on no server that is ending, and not for ever with one
    that may be what the server dies of."""

    def __init__(
        self,
        build: Callable[[Mapping[str, object]], Request],
        settings: Mapping[str, object],
        upstream: Upstream,
        draining: Callable[[], bool],
    ) -> None:
        super().__init__(build, settings)
        self._upstream, self._draining = upstream, draining
        self._outages, self._most = upstream.outages, OUTAGES_BEFORE_ANYTHING

    def rest(self, error: CoveyClientError) -> float | None:
        if self._draining() or self._upstream.outages - self._outages > self._most:
            return None
        return super().rest(error)

    def new(self, chunk: Chunk) -> Chunk | None:
        found = super().new(chunk)
        if found is not None:
            self._outages, self._most = self._upstream.outages, OUTAGES
        return found
