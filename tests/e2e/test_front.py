"""The front before the real server: the same texts as on Triton's own ports, at once, and nothing left behind."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from covey.server import Server
from covey.server.front import Front
from covey_client import Client, status
from covey_client.cli import main
from tests.waiting import until

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


def test_bodies_of_tensorrt_llm_s_clients_are_taken(server: Server, front: Front) -> None:
    """A single token, so that every list of the answer has one value or none."""
    theirs = {"bad_words": "", "stop_words": "", "pad_id": 2, "beam_width": 1, "return_context_logits": False}
    raw = json.dumps({"text_input": PROMPTS[0], "max_tokens": 1, **theirs}).encode()
    said = {}
    for where in (server.http_url, front.http_url):
        with urllib.request.urlopen(f"http://{where}/v2/models/covey/generate", raw, timeout=60) as response:
            said[where] = json.load(response)
    assert said[front.http_url]["text_output"] == said[server.http_url]["text_output"] != ""
    assert len(said[front.http_url]["output_ids"]) == 1
    assert isinstance(said[front.http_url]["acceptance_histogram"], list)


def test_whole_numbers_of_other_types_and_shapes_are_the_front_s_alone(server: Server, front: Front) -> None:
    """Triton compares them with the model's configuration before any model sees them."""

    def answer(url: str, dtype: str, shape: list[int], model: str = "covey_unary") -> str:
        text = tritonclient.grpc.InferInput("text_input", shape, "BYTES")
        text.set_data_from_numpy(np.full(shape, PROMPTS[0].encode(), np.object_))
        length = tritonclient.grpc.InferInput("max_tokens", shape, dtype)
        length.set_data_from_numpy(np.full(shape, 3, dtype.lower()))
        with tritonclient.grpc.InferenceServerClient(url) as client:
            found = client.infer(model, [text, length], client_timeout=60).as_numpy("text_output")
        return str(found[0].decode())

    said = answer(server.grpc_url, "INT32", [1])
    for dtype, shape in (("INT32", [1, 1]), ("UINT32", [1]), ("INT64", [1]), ("UINT32", [1, 1])):
        assert answer(front.grpc_url, dtype, shape) == said
        with pytest.raises(InferenceServerException, match=r"data-type|shape"):
            answer(server.grpc_url, dtype, shape)
    with pytest.raises(InferenceServerException, match="covey_unary for infer"):
        answer(front.grpc_url, "INT32", [1], "covey")


def running(server: Server) -> float:
    samples = status.read(server.http_url, server.metrics_url.split("/")[2]).samples
    return sum(sample.value for sample in samples if sample.name == "covey_requests_running")


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_caller_that_leaves_over_http_frees_its_place(server: Server, front: Front, path: str) -> None:
    """Not so on Triton's own port, where the rest would be generated."""
    host, _, port = front.http_url.partition(":")
    body = {"text_input": "Once upon a time", "max_tokens": 900, "min_tokens": 900, "stream": path != "generate"}
    raw = json.dumps(body).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v2/models/covey/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        until(lambda: running(server))
    left = time.monotonic()
    until(lambda: not running(server))
    assert time.monotonic() - left < 5, "900 tokens take longer"


def test_questions_about_the_server_are_not_for_strangers(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    host, _, port = front.http_url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("POST", "/v2/models/covey/generate", b'{"inspect": "decisions"}')
    answer = connection.getresponse()
    assert (answer.status, b"inspect" in answer.read()) == (400, True)
    connection.close()
    assert main(["drafters", "--url", front.http_url]) == 2
    assert "allowed: Triton's own HTTP port" in capsys.readouterr().err
