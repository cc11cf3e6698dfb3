"""Reads answers of Triton's HTTP generate extension: server-sent events, and errors as JSON."""

from __future__ import annotations

import json

from covey_client.errors import CoveyClientError, from_message
from covey_client.request import Request
from covey_client.response import Chunk, from_json


def path(request: Request, stream: bool) -> str:
    """Return the path that this request goes to."""
    return f"/v2/models/{request.model}/{'generate_stream' if stream else 'generate'}"


def event(line: bytes) -> Chunk | None:
    """Return the chunk in one line of a stream; None for a line without data. Raises what an error event says."""
    data = line.strip()
    if not data.startswith(b"data:"):
        return None
    data = data[len(b"data:") :].strip()
    if data.startswith(b'{"error"'):
        raise refusal(0, data)
    return from_json(data)


def refusal(status: int, body: bytes) -> CoveyClientError:
    """Return the error in a response that is no answer."""
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        said = body[:200].decode(errors="replace") or f"HTTP status {status}"
    return from_message(said, status)
