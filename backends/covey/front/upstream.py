"""tritonserver behind the front: whether it is there, answers of `covey` that go on when it dies, and its metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from covey.front.asked import Asked
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.async_client import AsyncStream
from covey_client.deadline import Deadline
from covey_client.errors import CoveyClientError
from covey_client.grpc_transport import AsyncGrpcTransport
from covey_client.resumption import Resumption
from covey_client.wire import MODEL

LOOK_SECONDS = 0.25
PATIENT_SECONDS = 5.0  # for one look: one that gets no answer says nothing about the server
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
        self.up = False  # by the last look

    def answer(self, asked: Asked, seconds: float) -> AsyncStream:
        """Chunks of it; leaving the stream gives the rest up."""
        resumption = _UntilDrained(asked.request, asked.settings, self._draining)
        deadline = Deadline.after(seconds)
        return AsyncStream(lambda: self._transport.call(resumption.request(), deadline), resumption)

    async def watch(self) -> None:
        """Look again and again whether `covey` can be asked."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        try:
            said = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=PATIENT_SECONDS)
            self.up = bool(said.ready)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self.up = False

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


class _UntilDrained(Resumption):
    """Goes on with an answer as the client's library does, but on no server that is ending."""

    def __init__(self, build: Callable[..., object], settings: object, draining: Callable[[], bool]) -> None:
        super().__init__(build, settings)  # type: ignore[arg-type]
        self._draining = draining

    def rest(self, error: CoveyClientError) -> float | None:
        return None if self._draining() else super().rest(error)
