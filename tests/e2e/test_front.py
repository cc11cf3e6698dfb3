"""The front before the real server: the same texts as on Triton's own ports, at once."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from covey.launcher import Server
from covey.launcher.front import Front
from covey_client import Client
from covey_client.cli import main
from tests.over_http import Door

pytestmark = pytest.mark.e2e

PROMPTS = ("User: Do you like films?\nAssistant:", "def read_lines(path):\n", "English: Good night.\nGerman:")
SETTINGS: dict[str, Any] = {"max_tokens": 32, "temperature": 1.0, "return_log_probs": True}


def test_every_door_gives_the_same_answers(server: Server, front: Front) -> None:
    asked = [(prompt, seed) for prompt in PROMPTS for seed in (1, 2)]
    ways: dict[str, Any] = {
        "triton": Client(server.grpc_url),
        "grpc": Client(front.grpc_url),
        "http": Door(front.http_url),
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


def test_questions_about_the_server_are_not_for_strangers(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drafters", "--url", front.http_url]) == 2
    assert "allowed: Triton's own HTTP port" in capsys.readouterr().err
