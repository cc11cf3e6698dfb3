"""Triton's `generate_stream` and `generate` over plain HTTP, with answers and errors as the client has them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from covey_client import Chunk, Completion, Usage
from covey_client.errors import from_message
from covey_client.wire import CHUNK, OUTPUT_BY_NAME, USAGE


class Door:
    """An HTTP port, asked as `Client` asks a gRPC port."""

    def __init__(self, url: str, model: str = "covey") -> None:
        self._url = f"http://{url}/v2/models/{model}"

    def stream(self, prompt: str, **settings: Any) -> Iterator[Chunk]:
        with self._asked("generate_stream", prompt, settings | {"stream": True}) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    yield chunk(json.loads(line[len(b"data:") :]))

    def generate(self, prompt: str, **settings: Any) -> Completion:
        with self._asked("generate", prompt, settings) as answer:
            return Completion.join([chunk(json.load(answer))])

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _asked(self, path: str, prompt: str, settings: dict[str, Any]) -> Any:
        body = json.dumps({"text_input": prompt, **settings}).encode()
        try:
            return urllib.request.urlopen(f"{self._url}/{path}", body, timeout=120)
        except urllib.error.HTTPError as error:
            with error:
                raise from_message(json.load(error)["error"], error.code) from None


def chunk(event: dict[str, Any]) -> Chunk:
    """Return the chunk in one event. Raises what an event that is an error says."""
    if "error" in event:
        raise from_message(event["error"])
    parts: dict[str, dict[str, Any]] = {CHUNK: {"text": "", "tokens": (), "log_probs": ()}, USAGE: {}}
    for name, value in event.items():
        if field := OUTPUT_BY_NAME.get(name):
            many = value if isinstance(value, list) else [value]  # Triton makes a list of one value that value
            parts[field.part][field.attribute] = tuple(many) if field.many else value
    return Chunk(usage=Usage(**parts[USAGE]), **parts[CHUNK])
