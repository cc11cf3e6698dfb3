"""Competitor: the real server over gRPC, unary or streaming, driven by one event loop.

The client shares the server's cores, so it does as little as it can while the clock runs: messages are built before,
responses are kept as they come and read after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2_grpc

from covey.server import Server
from covey.server.front import Front
from covey_client.request import Request
from covey_client.response import Chunk, Completion, from_grpc
from loadtest.bench.processes import Meter, spent
from loadtest.bench.work import Answer, Ask, Run

UNARY, STREAM = "covey_unary", "covey"
TIMEOUT = 300.0
LEAVE_SECONDS = 0.5  # for cancelled requests to be gone, here and there
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))


class OverTriton:
    """`settings` go into every request beside what the Ask says."""

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        stream: bool,
        settings: Mapping[str, object] | None = None,
        model: str = "",
        front: Front | None = None,
    ) -> None:
        """`model`: a decoupled one, for streams; "": the public one. `front`: asked instead of the server itself."""
        self.name = name
        self._url = server.grpc_url if front is None else front.grpc_url
        self._stream = stream
        self._model = model or (STREAM if stream else UNARY)
        self._settings = dict(settings or {})
        self._meter = Meter(server.pid) if front is None else Meter(server.pid, door=front.pid)
        self._loop = asyncio.new_event_loop()

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        messages = [self._message(ask, tenant) for ask in asks]
        before = self._meter.read()
        seconds, raw = self._loop.run_until_complete(self._ask_all(messages, concurrency))
        used = spent(before, self._meter.read())
        return Run(tuple(_answer(*parts) for parts in raw), seconds, used)

    def offer(self, asks: Sequence[Ask], times: Sequence[float], tenant: str = "") -> Run:
        """An open loop: each request at its own time, in seconds after the start, whatever the server does meanwhile.
        Times of answers, and of the run, count from when they were due."""
        messages = [self._message(ask, tenant) for ask in asks]
        seconds, raw = self._loop.run_until_complete(self._ask_at(messages, times))
        return Run(tuple(_answer(*parts) for parts in raw), seconds)

    def flow(self, asks: Iterable[Ask], concurrency: int, seconds: float, tenant: str = "") -> list[tuple[float, int]]:
        """So many callers, each asking again when its last answer is complete, for so long; what is under way then is
        cancelled. When tokens came, in seconds from the start, and how many."""
        return self._loop.run_until_complete(self._flow(asks, concurrency, seconds, tenant))

    def close(self) -> None:
        self._loop.close()

    def _message(self, ask: Ask, tenant: str) -> Any:
        given = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, "seed": ask.seed, "tenant": tenant}
        given |= {"drafter": ask.drafter} if ask.drafter else {}
        given |= {**ask.settings, **self._settings}
        message = Request.build(ask.ids or ask.text, given, stream=self._stream, model=self._model).to_grpc()
        if not self._stream:
            message.parameters.clear()  # they are about streams
        return message

    async def _ask_all(self, messages: Sequence[Any], concurrency: int) -> tuple[float, list[_Raw]]:
        raw: list[_Raw] = [(0.0, [])] * len(messages)
        waiting = iter(enumerate(messages))
        async with grpc.aio.insecure_channel(self._url, options=_OPTIONS) as channel:
            await channel.channel_ready()
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            ask_one = _streamed if self._stream else _whole

            async def caller() -> None:
                for index, message in waiting:
                    started = time.perf_counter()
                    raw[index] = (started, await ask_one(stub, message))

            started = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(concurrency)))
            return time.perf_counter() - started, raw

    async def _ask_at(self, messages: Sequence[Any], times: Sequence[float]) -> tuple[float, list[_Raw]]:
        async with grpc.aio.insecure_channel(self._url, options=_OPTIONS) as channel:
            await channel.channel_ready()
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            ask_one = _streamed if self._stream else _whole
            begun = time.perf_counter() - times[0]

            async def caller(message: Any, due: float) -> _Raw:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                return due, await ask_one(stub, message)

            calls = [caller(message, begun + at) for message, at in zip(messages, times)]
            raw = list(await asyncio.gather(*calls))
            return time.perf_counter() - begun - times[0], raw

    async def _flow(
        self, asks: Iterable[Ask], concurrency: int, seconds: float, tenant: str
    ) -> list[tuple[float, int]]:
        raw: list[_Raw] = []
        waiting = iter(asks)
        async with grpc.aio.insecure_channel(self._url, options=_OPTIONS) as channel:
            await channel.channel_ready()
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

            async def caller() -> None:
                for ask in waiting:
                    came: list[tuple[float, Any]] = []
                    raw.append((0.0, came))
                    await _stream_into(came, stub, self._message(ask, tenant))

            started = time.perf_counter()
            callers = asyncio.gather(*(caller() for _ in range(concurrency)))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(callers, seconds)
            await asyncio.sleep(LEAVE_SECONDS)
        chunks = [(when - started, from_grpc(response)) for _, came in raw for when, response in came]
        return sorted((when, len(chunk.tokens)) for when, chunk in chunks if chunk is not None)


_Raw = tuple[float, list[tuple[float, Any]]]  # when asked; when each response came, and the response


async def _whole(stub: Any, message: Any) -> list[tuple[float, Any]]:
    response = await stub.ModelInfer(message, timeout=TIMEOUT)
    return [(time.perf_counter(), response)]


async def _streamed(stub: Any, message: Any) -> list[tuple[float, Any]]:
    responses: list[tuple[float, Any]] = []
    await _stream_into(responses, stub, message)
    return responses


async def _stream_into(responses: list[tuple[float, Any]], stub: Any, message: Any) -> None:
    call = stub.ModelStreamInfer(iter((message,)), timeout=TIMEOUT)
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.error_message:
                raise RuntimeError(response.error_message)
            responses.append((time.perf_counter(), response.infer_response))
    finally:
        call.cancel()  # nothing where it has ended


def _answer(started: float, responses: Sequence[tuple[float, Any]]) -> Answer:
    chunks: list[tuple[float, Chunk]] = []
    for when, response in responses:
        chunk = from_grpc(response)
        if chunk is not None:
            chunks.append((when, chunk))
    whole = Completion.join(chunk for _, chunk in chunks)
    first = next((when for when, chunk in chunks if chunk.tokens), None)
    return Answer(
        whole.tokens,
        chunks[-1][0] - started,
        None if first is None else first - started,
        tuple(len(chunk.tokens) for _, chunk in chunks if chunk.tokens),
        whole.usage.draft_tokens,
        whole.usage.accepted_draft_tokens,
    )
