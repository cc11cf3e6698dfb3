"""Calls a model of another server over one gRPC connection that is kept open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from covey.contracts.errors import PortError, PortTimeout
from covey.contracts.types import Ints
from covey.wire import codec

# Reconnect this soon after a connection breaks, and notice when the other end is silent.
CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 1 << 26),
]
# Triton's phrase for a dead model process. Repeated in our error, it would make the calling model look dead.
DEAD, GONE = "not healthy", "its process there is gone"


class Unreachable(PortError):
    """The server could not be reached: it did nothing, or its reply was lost."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for a TLS connection; "" means the usual root certificates, or no client certificate."""

    root_certificates: str = ""
    certificate: str = ""
    private_key: str = ""


class GrpcModel:
    """Makes calls from any thread."""

    def __init__(self, address: str, model: str, tls: Tls | None = None) -> None:
        self.name = f"{address}/{model}"
        self._model = model
        files = tls or Tls()
        self._client = triton.InferenceServerClient(
            address,
            ssl=tls is not None,
            root_certificates=files.root_certificates or None,
            private_key=files.private_key or None,
            certificate_chain=files.certificate or None,
            channel_args=CHANNEL,
        )

    def exchange(self, message: Ints, seconds: float) -> Ints:
        """Send a sealed message and wait for its reply."""
        tensor = triton.InferInput(codec.REQUEST_TENSOR, [len(message)], "INT32")
        tensor.set_data_from_numpy(message)
        try:
            answer = self._client.infer(self._model, [tensor], client_timeout=max(0.001, seconds))
        except InferenceServerException as error:
            status, said = str(error.status()), str(error.message())
            text = f"{self.name}: {GONE if DEAD in said else said}"
            if "DEADLINE" in status:
                raise PortTimeout(text) from None
            # A starting or stopping server also says UNAVAILABLE, and NOT_FOUND for a model that is not loaded.
            if "UNAVAILABLE" in status or "CANCELLED" in status:
                raise Unreachable(text) from None
            raise PortError(text) from None
        reply = answer.as_numpy(codec.REPLY_TENSOR)
        if reply is None or reply.dtype != np.int32:
            raise PortError(f"{self.name}: the reply is not a message")
        made: Ints = reply
        return made

    def close(self) -> None:
        self._client.close()
