"""Servers of a test's own, and what a server's metrics say."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
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
