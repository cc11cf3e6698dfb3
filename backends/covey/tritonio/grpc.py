"""A model of another server, over one gRPC connection that is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from covey.contracts.errors import PortError, PortTimeout
from covey.contracts.types import Ints
from covey.wire import codec

# A connection that broke is made anew this soon, and one whose other end is silent is found out.
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
# Triton's word of a model whose process is gone. Said again here it would have the model that asks taken for dead.
DEAD, GONE = "not healthy", "its process there is gone"


class Unreachable(PortError):
    """The server could not be asked: nothing was done there, or its answer was lost."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a connection; "": the usual root certificates, and no certificate of our own."""

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
        """Send a sealed message and wait for its answer."""
        tensor = triton.InferInput(codec.REQUEST_TENSOR, [len(message)], "INT32")
        tensor.set_data_from_numpy(message)
        try:
            answer = self._client.infer(self._model, [tensor], client_timeout=max(0.001, seconds))
        except InferenceServerException as error:
            status, said = str(error.status()), str(error.message())
            text = f"{self.name}: {GONE if DEAD in said else said}"
            if "DEADLINE" in status:
                raise PortTimeout(text) from None
            # A server that is starting or stopping says UNAVAILABLE, too, and NOT_FOUND of a model that is not loaded.
            if "UNAVAILABLE" in status or "CANCELLED" in status:
                raise Unreachable(text) from None
            raise PortError(text) from None
        reply = answer.as_numpy(codec.REPLY_TENSOR)
        if reply is None or reply.dtype != np.int32:
            raise PortError(f"{self.name}: the answer is no message")
        made: Ints = reply
        return made

    def close(self) -> None:
        self._client.close()
