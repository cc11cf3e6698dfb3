"""Serves Triton's gRPC protocol for the public models. Messages arrive as bytes and are parsed here, so a malformed one
is refused like any other bad request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf import json_format  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from covey.front import answers, failures, grpc_bodies, proxies
from covey.front.admission import Caller
from covey.front.connection_limit import ConnectionLimit, Slot
from covey.front.failures import Gone, TooMany
from covey.front.gateway import Gateway
from covey.front.inference_request import MOST_ID, NOT_IN_PARTS, UNARY, VERSION, served
from covey.process.log_about import begin_drawn
from covey.process.traces import PARENT
from covey.process.within import within
from covey_client.errors import CoveyClientError, DeadlineExceeded, InvalidRequest

SERVICE = "inference.GRPCInferenceService"
NOT_HERE = (
    "not on this port, which has health, metadata, config and inference of the public models; model control, shared "
    "memory, statistics, tracing and logs are only on Triton's own ports"
)
METADATA_BYTES = 16 << 10
MOST_PENDING = 1 << 16  # calls; each is accepted within milliseconds
MOST_AT_ONCE = 64  # requests in flight of one stream
ROOM_BYTES = 1 << 10  # added to the longest body
IDLE_SECONDS = 300.0  # until an unused connection is closed; its owner's library reopens it silently
CONNECTIONS_A_CALL = 4  # connections per allowed call, as idle ones count as well
Act = Callable[[bytes, Any], Awaitable[Any]]


def server(gateway: Gateway) -> grpc.aio.Server:
    """Return a server that is not bound to a port yet."""
    return grpc.aio.server(
        handlers=(_handlers(Service(gateway)), _Rest()),
        options=[
            ("grpc.max_receive_message_length", gateway.settings.message_bytes + ROOM_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", METADATA_BYTES),
            ("grpc.max_concurrent_streams", 256),
            # Of calls not yet accepted, gRPC would drop some from any address, and one address may open thousands.
            ("grpc.server.max_pending_requests", MOST_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", int(gateway.settings.read_seconds * 1000)),
            ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
            ("grpc.max_allowed_incoming_connections", CONNECTIONS_A_CALL * gateway.settings.connections),
            ("grpc.keepalive_time_ms", 60_000),  # detects callers that vanished
            ("grpc.keepalive_timeout_ms", 20_000),
        ],
        maximum_concurrent_rpcs=2 * gateway.settings.connections,  # `Admission.calls` chooses which of them stay
    )


class Service:
    """Implements the protocol's methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def live(self, _data: bytes, _context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ready(self, _data: bytes, _context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._gateway.ready)

    async def model_ready(self, data: bytes, _context: Any) -> Any:
        message = grpc_bodies.parsed(service_pb2.ModelReadyRequest, data)
        served(message.name, message.version)
        return service_pb2.ModelReadyResponse(ready=self._gateway.ready)

    async def metadata(self, _data: bytes, context: Any) -> Any:
        self._gateway.admission.charge(self.address(context))
        return service_pb2.ServerMetadataResponse(
            name=answers.NAME, version=VERSION, extensions=list(answers.EXTENSIONS)
        )

    async def model_metadata(self, data: bytes, context: Any) -> Any:
        self._gateway.admission.charge(self.address(context), len(data))
        message = grpc_bodies.parsed(service_pb2.ModelMetadataRequest, data)
        described = answers.metadata(served(message.name, message.version))
        return json_format.ParseDict(described, service_pb2.ModelMetadataResponse())

    async def model_config(self, data: bytes, context: Any) -> Any:
        self._gateway.admission.charge(self.address(context), len(data))
        message = grpc_bodies.parsed(service_pb2.ModelConfigRequest, data)
        described = answers.config(served(message.name, message.version))
        return json_format.ParseDict({"config": described}, service_pb2.ModelConfigResponse())

    async def infer(self, data: bytes, context: Any) -> Any:
        caller = self._who(context)
        with self._span("ModelInfer", context), self._gateway.admitted(caller, len(data)):
            self._gateway.admission.refund_read(caller.name)
            message = grpc_bodies.parsed(service_pb2.ModelInferRequest, data)
            request = grpc_bodies.inference(message, self._gateway.prompt_bytes)
            if request.model != UNARY:
                raise failures.refused("model", request.model, NOT_IN_PARTS)
            return grpc_bodies.answer(await self._gateway.whole(request, caller, context.time_remaining()), request)

    async def stream(self, messages: AsyncIterator[bytes], context: Any, slot: Slot) -> None:
        """Answer requests as they come, several at once. If the caller leaves, all are cancelled."""
        running: set[asyncio.Task[None]] = set()
        room, writing = asyncio.Semaphore(MOST_AT_ONCE), asyncio.Lock()

        def ended(task: asyncio.Task[None]) -> None:
            running.discard(task)
            room.release()
            if not running:
                slot.wait()

        try:
            async for data in messages:
                await self.turn(context)
                slot.serve()
                await room.acquire()
                task = asyncio.ensure_future(self._one(data, context, writing))
                running.add(task)
                task.add_done_callback(ended)
            while running:
                await asyncio.wait(set(running))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def turn(self, context: Any) -> None:
        await self._gateway.admission.turn(self.address(context), _authorization(context))

    def address(self, context: Any) -> str:
        """Return the client's address, also if it calls through a trusted proxy."""
        said = [value for key, value in context.invocation_metadata() or () if key == proxies.HEADER]
        return self._gateway.admission.proxies.client(_peer(context), map(str, said))

    def _who(self, context: Any) -> Caller:
        """Return the caller. Raises NoKey."""
        return self._gateway.admission.caller(self.address(context), _authorization(context))

    def _span(self, method: str, context: Any) -> AbstractContextManager[None]:
        return self._gateway.spans.serving(f"{SERVICE}/{method}", _metadata(context, PARENT))

    async def _one(self, data: bytes, context: Any, writing: asyncio.Lock) -> None:
        """Send all responses of one request in a stream."""

        async def write(response: Any, *, final: bool, error: str = "") -> None:
            response.parameters[grpc_bodies.FINAL].bool_param = final
            said = service_pb2.ModelStreamInferResponse(error_message=error, infer_response=response)
            async with writing:
                try:
                    await context.write(said.SerializeToString())
                except Exception as problem:  # gRPC has no public name for it
                    raise Gone from problem

        identity = ""
        begin_drawn()
        with suppress(Gone):
            try:
                caller = self._who(context)
                with self._span("ModelStreamInfer", context), self._gateway.admitted(caller, len(data)):
                    self._gateway.admission.refund_read(caller.name)
                    message = grpc_bodies.parsed(service_pb2.ModelInferRequest, data)
                    identity = message.id[:MOST_ID]
                    request = grpc_bodies.inference(message, self._gateway.prompt_bytes)
                    async with self._gateway.stream(request, caller, context.time_remaining()) as stream:
                        async for chunk in stream:
                            await write(grpc_bodies.answer(chunk, request), final=bool(chunk.finish_reason))
            except Gone:
                raise
            except Exception as problem:
                named = service_pb2.ModelInferResponse(id=identity)
                await write(named, final=True, error=failures.text(failures.public("a request of a stream", problem)))


class _Rest(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every other method without waiting for a message."""

    def service(self, details: Any) -> Any:
        async def refuse(_messages: AsyncIterator[bytes], context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{details.method[:100]}: {NOT_HERE}")

        return grpc.stream_stream_rpc_method_handler(refuse)


@asynccontextmanager
async def _slot(limit: ConnectionLimit, address: str) -> AsyncIterator[Slot]:
    """Hold a slot while a call is open. Raises TooMany, also if the slot is taken back."""
    task, told = asyncio.current_task(), list[str]()

    def cut(text: str) -> None:
        told.append(text)
        assert task is not None
        task.cancel()

    slot = limit.acquire(address, cut)
    try:
        yield slot
    except asyncio.CancelledError:
        if told:
            raise TooMany(told[0]) from None
        raise
    finally:
        slot.release()


def _handlers(service: Service) -> grpc.GenericRpcHandler:
    calls, seconds = service._gateway.admission.calls, service._gateway.settings.read_seconds

    def unary(act: Act) -> Any:
        async def answer(messages: AsyncIterator[bytes], context: Any) -> bytes:
            begin_drawn()
            try:
                async with _slot(calls, service.address(context)) as slot:
                    data = await _first(messages, seconds)
                    await service.turn(context)
                    slot.serve()
                    return bytes((await act(data, context)).SerializeToString())
            except Exception as problem:
                error = failures.public("a gRPC call", problem)
                await context.abort(failures.kind(error).grpc, failures.text(error))
                raise

        return grpc.stream_unary_rpc_method_handler(answer)  # a stream's call starts before its message has arrived

    async def stream(messages: AsyncIterator[bytes], context: Any) -> None:
        try:
            async with _slot(calls, service.address(context)) as slot:
                await service.stream(messages, context, slot)
        except CoveyClientError as error:
            await context.abort(failures.kind(error).grpc, failures.text(error))

    methods = {
        "ServerLive": unary(service.live),
        "ServerReady": unary(service.ready),
        "ModelReady": unary(service.model_ready),
        "ServerMetadata": unary(service.metadata),
        "ModelMetadata": unary(service.model_metadata),
        "ModelConfig": unary(service.model_config),
        "ModelInfer": unary(service.infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


async def _first(messages: AsyncIterator[bytes], seconds: float) -> bytes:
    try:
        return await within(seconds, anext(messages))
    except StopAsyncIteration:
        raise InvalidRequest("the call has no message") from None
    except (TimeoutError, asyncio.TimeoutError):
        raise DeadlineExceeded(f"request not received within {seconds:g} s") from None


def _authorization(context: Any) -> str:
    return _metadata(context, "authorization")


def _metadata(context: Any, name: str) -> str:
    """Return the call's text of this name; "" if it has none."""
    said = dict(context.invocation_metadata() or ()).get(name, "")
    return said if isinstance(said, str) else ""


def _peer(context: Any) -> str:
    """Return the address of "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5"."""
    return unquote(context.peer().partition(":")[2]).rpartition(":")[0].strip("[]")
