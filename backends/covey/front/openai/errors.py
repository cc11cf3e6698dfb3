"""Writes errors in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from covey.front import failures
from covey_client.errors import CoveyClientError, InvalidRequest

PATHS = ("/v1", "/tokenize", "/detokenize")
TYPES = {401: "authentication_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def ours(path: str) -> bool:
    """Return whether a route is OpenAI's, or one that vLLM adds to them."""
    return any(path == each or path.startswith(f"{each}/") for each in PATHS)


def tritons(path: str) -> bool:
    """Return whether a route's errors are texts like Triton's. All others have OpenAI's shape."""
    return path == "/v2" or path.startswith("/v2/")


def shaped(status: int, message: str, param: str = "", code: str = "") -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code or CODES.get(status)}}


def body(error: CoveyClientError) -> dict[str, Any]:
    status, field = failures.kind(error).http, error.field if isinstance(error, InvalidRequest) else ""
    text = failures.text(error).partition("] ")[2]  # the status stands for its code
    code = ""
    if status == 404 and field == "model":
        code = "model_not_found"
    elif status == 400 and "the context" in text:
        code = "context_length_exceeded"
    return shaped(status, text, field, code)
