"""Streams over gRPC: one channel, one ModelStreamInfer per request, so that cancelling one leaves the others alone."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from covey_client import errors
from covey_client.address import NOT_GRPC, Address
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk, from_grpc

OTHER_PROTOCOL = "Failed parsing HTTP/2"  # in gRPC's words for what answers by HTTP/1


class _Channel:
    """A channel of either of gRPC's libraries."""

    def __init__(self, address: Address, library: Any) -> None:
        self._metadata = tuple((name.lower(), value) for name, value in address.headers.items())
        options = _channel_options(address)
        if address.tls:
            self._channel = library.secure_channel(
                address.target, grpc.ssl_channel_credentials(address.root_certificates), options
            )
        else:
            self._channel = library.insecure_channel(address.target, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def _stream(self, request: Request, deadline: Deadline) -> Any:
        message = iter((request.to_grpc(),))
        return self._stub.ModelStreamInfer(message, timeout=deadline.left(), metadata=self._metadata)


class GrpcTransport(_Channel):
    """gRPC for threads."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, grpc)

    def call(self, request: Request, deadline: Deadline) -> GrpcCall:
        return GrpcCall(self._stream(request, deadline), deadline)

    def close(self) -> None:
        self._channel.close()


class GrpcCall:
    """A request on its own gRPC stream."""

    def __init__(self, stream: Any, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def chunks(self) -> Iterator[Chunk]:
        try:
            for message in self._stream:
                chunk = _chunk(message)
                if chunk is not None:
                    yield chunk
        except grpc.RpcError as error:
            error.__traceback__ = None  # it is the call itself, which its own traceback would hold: `Stream._broke`
            raise _translated(error.code(), error.details() or "", self._deadline) from None

    def cancel(self) -> None:
        self._stream.cancel()


class AsyncGrpcTransport(_Channel):
    """gRPC in one event loop; made inside it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, grpc.aio)
        self._calls: weakref.WeakSet[AsyncGrpcCall] = weakref.WeakSet()

    def call(self, request: Request, deadline: Deadline) -> AsyncGrpcCall:
        call = AsyncGrpcCall(self._stream(request, deadline), deadline)
        self._calls.add(call)
        return call

    async def close(self) -> None:
        for call in list(self._calls):  # one that the channel ends would look as if its reader's task were cancelled
            call.cancel()
        await self._channel.close()


class AsyncGrpcCall:
    """A request on its own gRPC stream."""

    def __init__(self, stream: Any, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline
        self._given_up = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            while True:
                message = await self._stream.read()
                if message is grpc.aio.EOF:
                    break
                chunk = _chunk(message)
                if chunk is not None:
                    yield chunk
            code = await self._stream.code()
            if code is not grpc.StatusCode.OK:
                raise _translated(code, await self._stream.details() or "", self._deadline)
        except grpc.aio.AioRpcError as error:
            raise _translated(error.code(), error.details() or "", self._deadline) from None
        except asyncio.CancelledError:
            if self._given_up:  # grpc raises this in the reader of a call that another task cancelled
                raise errors.Cancelled("the request was cancelled") from None
            raise

    def cancel(self) -> None:
        self._given_up = True
        self._stream.cancel()


def _chunk(message: service_pb2.ModelStreamInferResponse) -> Chunk | None:
    if message.error_message:
        raise errors.from_message(message.error_message)
    return from_grpc(message.infer_response)


def _translated(code: Any, details: str, deadline: Deadline) -> errors.CoveyClientError:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return deadline.error()
    if code is grpc.StatusCode.CANCELLED:
        return errors.Cancelled("the request was cancelled")
    if OTHER_PROTOCOL in details:
        return errors.ServerError(f"{NOT_GRPC} [{details}]")
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.ConnectionLost(details or "the server cannot be reached")
    return errors.from_message(f"{details} ({code.name})" if details else str(code.name))


def _channel_options(address: Address) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),  # a server that is back is found at once, not after two minutes
    ]
    return [*options, ("grpc.enable_http_proxy", 0)] if address.loopback else options
