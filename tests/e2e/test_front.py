"""The front before the real server: the same texts as on Triton's own ports, at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from covey.launcher import Server, log
from covey.launcher.front import Front
from covey.launcher.progress import ready_message
from covey_client import Client, status
from covey_client.cli import main
from covey_client.request import Request
from covey_client.wire import OUTPUTS
from tests.e2e.serving import post
from tests.fronts import call
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


def test_counts_come_with_the_last_response_or_where_named(server: Server, front: Front) -> None:
    """On Triton's own port and through the front, and the same outputs in each response of both."""

    def responses(url: str, outputs: tuple[str, ...]) -> list[list[str]]:
        asked = Request.build(PROMPTS[0], {**SETTINGS, "seed": 7, "tenant": f"{url}{len(outputs)}"}, stream=True)
        with grpc.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            said = list(stub.ModelStreamInfer(iter([replace(asked, outputs=outputs).to_grpc()])))
        assert not any(each.error_message for each in said)
        return [sorted(tensor.name for tensor in each.infer_response.outputs) for each in said]

    everything = sorted(field.name for field in OUTPUTS)
    early = sorted(["text_output", "output_ids", "output_log_probs", "finish_reason", "used_seed", "emulated"])
    chosen = ("num_output_tokens", "text_output")
    for url in (server.grpc_url, front.grpc_url):
        for outputs, first, last in ((), early, everything), (chosen, sorted(chosen), sorted(chosen)):
            found = [names for names in responses(url, outputs) if names]
            assert len(found) > 3
            assert found == [first] * (len(found) - 1) + [last]


def test_bodies_of_tensorrt_llm_s_clients_are_taken(server: Server, front: Front) -> None:
    """A single token, so that every list of the answer has one value or none."""
    theirs = {"bad_words": "", "stop_words": "", "pad_id": 2, "beam_width": 1, "return_context_logits": False}
    body = {"text_input": PROMPTS[0], "max_tokens": 1, **theirs}
    triton, ours = (
        json.loads(post(f"{where}/v2/models/covey/generate", body)[1]) for where in (server.http_url, front.http_url)
    )
    assert ours["text_output"] == triton["text_output"] != ""
    assert len(ours["output_ids"]) == 1
    assert isinstance(ours["acceptance_histogram"], list)


def test_the_longest_request_is_told_wherever_one_looks(server: Server, front: Front) -> None:
    told = status.read(server.http_url, server.metrics_url.split("/")[2]).served
    models = json.loads(call(front, "GET", "/v1/models")[1])["data"]
    assert {told["longest"], *(str(model["max_model_len"]) for model in models)} == {"2048"}
    message = ready_message(server.options, "log", serving=log.serving(server.log_text()))
    assert f"up to 2048 tokens in a request, {told['pool_tokens']} in the KV pool." in message


def test_questions_about_the_server_are_not_for_strangers(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drafters", "--url", front.http_url]) == 2
    assert "allowed: Triton's own HTTP port" in capsys.readouterr().err
