"""Client library and command line for a Covey server: `Client` for threads, `AsyncClient` for an event loop."""

from covey_client.async_client import AsyncClient, AsyncStream
from covey_client.client import Client, Stream
from covey_client.errors import (
    Cancelled,
    ConnectionLost,
    CoveyClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServerError,
)
from covey_client.response import Chunk, Completion, Usage

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionLost",
    "CoveyClientError",
    "DeadlineExceeded",
    "InvalidRequest",
    "Overloaded",
    "ServerError",
    "Stream",
    "Usage",
]
