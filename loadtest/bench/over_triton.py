"""Asks a competitor: the real server over gRPC, unary or streaming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2_grpc

from covey.server import Server
from covey_client.request import Request
from covey_client.response import Chunk, Completion, from_grpc
from loadtest.bench.closed_loop import Came, Raw, closed_loop
from loadtest.bench.work import Answer, Ask, Run

UNARY, STREAM = "covey_unary", "covey"
TIMEOUT = 300.0
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))


class OverTriton:
    """Asks the server. `settings` go into every request beside what the Ask says."""

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        stream: bool,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self._url = server.grpc_url
        self._stream = stream
        self._model = STREAM if stream else UNARY
        self._settings = dict(settings or {})

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        messages = [self._message(ask, tenant) for ask in asks]
        seconds, raw = asyncio.run(self._ask_all(messages, concurrency))
        return Run(tuple(_answer(*parts) for parts in raw), seconds)

    def _message(self, ask: Ask, tenant: str) -> Any:
        given = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, "seed": ask.seed, "tenant": tenant}
        given |= {"drafter": ask.drafter} if ask.drafter else {}
        given |= {**ask.settings, **self._settings}
        message = Request.build(ask.ids or ask.text, given, stream=self._stream, model=self._model).to_grpc()
        if not self._stream:
            message.parameters.clear()  # they are about streams
        return message

    async def _ask_all(self, messages: Sequence[Any], concurrency: int) -> tuple[float, list[Raw[Any]]]:
        async with grpc.aio.insecure_channel(self._url, options=_OPTIONS) as channel:
            await channel.channel_ready()
            ask = partial(_streamed if self._stream else _whole, service_pb2_grpc.GRPCInferenceServiceStub(channel))
            return await closed_loop(messages, [ask] * concurrency)


async def _whole(stub: Any, message: Any) -> Came[Any]:
    response = await stub.ModelInfer(message, timeout=TIMEOUT)
    return [(time.perf_counter(), response)]


async def _streamed(stub: Any, message: Any) -> Came[Any]:
    responses: Came[Any] = []
    call = stub.ModelStreamInfer(iter((message,)), timeout=TIMEOUT)
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.error_message:
                raise RuntimeError(response.error_message)
            responses.append((time.perf_counter(), response.infer_response))
    finally:
        call.cancel()  # nothing where it has ended
    return responses


def _answer(started: float, responses: Sequence[tuple[float, Any]]) -> Answer:
    chunks: list[tuple[float, Chunk]] = []
    for when, response in responses:
        chunk = from_grpc(response)
        if chunk is not None:
            chunks.append((when, chunk))
    whole = Completion.join(chunk for _, chunk in chunks)
    return Answer(
        whole.tokens,
        chunks[-1][0] - started,
        whole.usage.draft_tokens,
        whole.usage.accepted_draft_tokens,
    )
