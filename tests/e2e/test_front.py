"""The front before the real server: the same texts as on Triton's own ports, at once, and nothing left behind."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from covey.server import Server
from covey.server.front import Front
from covey_client import Client, status

pytestmark = pytest.mark.e2e

PROMPTS = ("User: Do you like films?\nAssistant:", "def read_lines(path):\n", "English: Good night.\nGerman:")
SETTINGS: dict[str, Any] = {"max_tokens": 32, "temperature": 1.0, "return_log_probs": True}


def test_every_door_gives_the_same_answers(server: Server, front: Front) -> None:
    asked = [(prompt, seed) for prompt in PROMPTS for seed in (1, 2)]
    ways = {
        "triton": Client(server.grpc_url),
        "grpc": Client(front.grpc_url),
        "http": Client(front.http_url, transport="http"),
        "unary": Client(front.grpc_url, model="covey_unary"),
    }

    def ask(way: str, prompt: str, seed: int, stream: bool) -> tuple[Any, ...]:
        found = ways[way]
        if stream:
            parts = list(found.stream(prompt, seed=seed, **SETTINGS))
            assert parts[-1].finish_reason
            return "".join(part.text for part in parts), tuple(token for part in parts for token in part.tokens)
        whole = found.generate(prompt, seed=seed, **SETTINGS)
        assert len(whole.log_probs) == len(whole.tokens) == whole.usage.output_tokens
        return whole.text, whole.tokens

    try:
        jobs = [(way, prompt, seed, stream) for way in ways for prompt, seed in asked for stream in (False, True)]
        with ThreadPoolExecutor(16) as pool:
            found = dict(zip(jobs, pool.map(lambda job: ask(*job), jobs)))
    finally:
        for client in ways.values():
            client.close()
    for (_way, prompt, seed, stream), said in found.items():
        assert said == found["triton", prompt, seed, False], (_way, stream)


def running(server: Server) -> float:
    samples = status.read(server.http_url, server.metrics_url.split("/")[2]).samples
    return sum(sample.value for sample in samples if sample.name == "covey_requests_running")


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_caller_that_leaves_over_http_frees_its_place(server: Server, front: Front, path: str) -> None:
    """Not so on Triton's own port, where the rest would be generated."""
    host, _, port = front.http_url.partition(":")
    body = {"text_input": "Once upon a time", "max_tokens": 900, "min_tokens": 900, "stream": path != "generate"}
    raw = json.dumps(body).encode()
    deadline = time.monotonic() + 60
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v2/models/covey/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        while not running(server):
            assert time.monotonic() < deadline
    left = time.monotonic()
    while running(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert time.monotonic() - left < 5, "900 tokens take longer"


def test_questions_about_the_server_are_not_for_strangers(front: Front) -> None:
    host, _, port = front.http_url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("POST", "/v2/models/covey/generate", b'{"inspect": "decisions"}')
    answer = connection.getresponse()
    assert (answer.status, b"inspect" in answer.read()) == (400, True)
    connection.close()
