"""Servers of a test's own, what they are asked over HTTP and in streams, and what their metrics say."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.launcher import FREE_PORTS, Options, Server
from covey_client import Client, CoveyClientError


@contextmanager
def served(profile: str, folder: Path, **changes: Any) -> Iterator[Server]:
    """A server of this profile, which is text. It is killed in the end: in order that takes long, and `test_drain` sees
    it."""
    (folder / "server.toml").write_text(profile)
    options = {"profile": str(folder / "server.toml"), "log_file": folder / "log", **FREE_PORTS, **changes}
    with Server(Options(**options)) as server:  # type: ignore[arg-type]
        yield server
        server.kill()


def post(url: str, body: Any, seconds: float = 60.0) -> tuple[int, str]:
    """Return the status and the text of an answer or an error. A body that is no bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{url}", raw, timeout=seconds) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


def generate(server: Server, model: str, **fields: Any) -> dict[str, Any]:
    """Return what Triton's `generate` answers."""
    return dict(json.loads(post(f"{server.http_url}/v2/models/{model}/generate", fields)[1]))


def total(server: Server, name: str, **labels: str) -> float:
    """The sum over the series of a metric that carry the labels."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        text = response.read().decode()
    series = re.findall(rf"^{name}{{(.*?)}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for found, value in series if all(f'{key}="{labels[key]}"' in found for key in labels))


def works(server: Server, model: str) -> bool:
    """Whether a model answers a request."""
    try:
        with Client(server.grpc_url, model=model, timeout=20) as client:
            return bool(client.generate("Once upon a time", max_tokens=3, speculation="off").tokens)
    except CoveyClientError:
        return False


@contextmanager
def streams(server: Server, prompt: str, settings: dict[str, Any], own: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Requests run meanwhile, one after the other in a thread for each of `own`, and say what they said without it."""
    ended, found = threading.Event(), list[tuple[int, ...]]()
    with Client(server.grpc_url, timeout=180) as client:
        alone = client.generate(prompt, **settings).tokens

        def run(more: dict[str, Any]) -> None:
            while not ended.is_set():
                found.append(client.generate(prompt, **settings, **more).tokens)

        running = [threading.Thread(target=run, args=(more,)) for more in own]
        for thread in running:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in running:
                thread.join()
    assert set(found) == {alone}
    assert len(found) >= len(own)
