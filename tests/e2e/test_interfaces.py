"""Every way to ask gives the same answer: HTTP and gRPC, streaming or not, direct, unary and ensemble."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio

from covey.launcher import Server
from covey_client import Client
from covey_client.status import parse

pytestmark = pytest.mark.e2e

PROMPT = "Question: Anna has 12 pens and gives 5 to Ben. How many pens does she have?\nAnswer:"
SETTINGS: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "top_p": 0.95, "seed": 1234567890123456789}
TYPES = {"max_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "seed": np.uint64}


def post(server: Server, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]


def tensors(module: Any) -> list[Any]:
    text = module.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], np.object_))
    inputs = [text]
    for name, value in SETTINGS.items():
        array = np.array([value], TYPES[name])
        tensor = module.InferInput(
            name, [1], {"int32": "INT32", "float32": "FP32", "uint64": "UINT64"}[array.dtype.name]
        )
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


@pytest.fixture(scope="module")
def expected(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(post(server, "covey/generate", {"text_input": PROMPT, **SETTINGS}))
    assert answer["num_output_tokens"] == len(answer["output_ids"]) > 0
    assert answer["used_seed"] == SETTINGS["seed"]
    return answer


@pytest.mark.parametrize("model", ["covey", "ensemble"])
def test_streams_over_http(server: Server, expected: dict[str, Any], model: str) -> None:
    own = {"tenant": f"streams of {model}"}  # a text that its tenant has had before is foreseen whole: in few pieces
    pieces = events(post(server, f"{model}/generate_stream", {"text_input": PROMPT, **SETTINGS, **own, "stream": True}))
    assert len(pieces) > 3, "a stream must stream"
    assert "".join(piece["text_output"] for piece in pieces) == expected["text_output"]
    ids = [token for piece in pieces for token in np.atleast_1d(piece["output_ids"]).tolist()]
    assert ids == expected["output_ids"]
    assert [piece["finish_reason"] for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1]["finish_reason"] == expected["finish_reason"]


@pytest.mark.parametrize("model", ["covey", "ensemble", "covey_unary"])
def test_one_response_over_http(server: Server, expected: dict[str, Any], model: str) -> None:
    answer = json.loads(post(server, f"{model}/generate", {"text_input": PROMPT, **SETTINGS}))
    for name in ("text_output", "output_ids", "finish_reason", "num_input_tokens", "num_output_tokens", "used_seed"):
        assert answer[name] == expected[name], name


def test_infer_of_every_tritonclient(server: Server, expected: dict[str, Any]) -> None:
    def text(result: Any) -> str:
        return str(result.as_numpy("text_output")[0].decode())

    with triton_http.InferenceServerClient(server.http_url) as http:
        assert text(http.infer("covey_unary", tensors(triton_http))) == expected["text_output"]
        assert text(http.async_infer("covey_unary", tensors(triton_http)).get_result()) == expected["text_output"]
    with triton_grpc.InferenceServerClient(server.grpc_url) as grpc:
        assert text(grpc.infer("covey_unary", tensors(triton_grpc))) == expected["text_output"]

    async def both() -> list[str]:
        async with triton_http_aio.InferenceServerClient(server.http_url) as http:
            one = text(await http.infer("covey_unary", tensors(triton_http)))
        async with triton_grpc_aio.InferenceServerClient(server.grpc_url) as grpc:
            return [one, text(await grpc.infer("covey_unary", tensors(triton_grpc)))]

    assert asyncio.run(both()) == [expected["text_output"]] * 2


def test_ids_in_give_the_same_as_text_in(server: Server, expected: dict[str, Any]) -> None:
    ids = json.loads(post(server, "tokenize/generate", {"text_input": PROMPT}))["input_ids"]
    answer = json.loads(post(server, "covey/generate", {"input_ids": ids, **SETTINGS}))
    assert answer["text_output"] == expected["text_output"]
    assert answer["num_input_tokens"] == len(ids) == expected["num_input_tokens"]


@pytest.mark.parametrize("model", ["covey", "ensemble", "covey_unary"])
def test_stop_words_and_the_prompt_in_the_output(server: Server, expected: dict[str, Any], model: str) -> None:
    whole = expected["text_output"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    body = {"text_input": PROMPT, **SETTINGS, "stop_words": ["never said at all", stop]}
    answer = json.loads(post(server, f"{model}/generate", {**body, "exclude_input_in_output": False}))
    assert answer["text_output"] == PROMPT + whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    if model != "covey_unary":
        pieces = events(post(server, f"{model}/generate_stream", {**body, "stream": True}))
        assert "".join(piece["text_output"] for piece in pieces) == whole[: whole.index(stop)]


def test_log_probabilities_are_the_models_own(server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 12, "return_log_probs": True}
    cold = json.loads(post(server, "covey/generate", body))
    scores = np.asarray(cold["output_log_probs"])
    assert len(scores) == cold["num_output_tokens"]
    assert (scores <= 0).all()
    hot = json.loads(post(server, "covey/generate", {**body, "temperature": 0.01, "repetition_penalty": 1.0}))
    assert hot["output_ids"] == cold["output_ids"]
    np.testing.assert_allclose(hot["output_log_probs"], scores, atol=1e-5)
    assert json.loads(post(server, "covey/generate", {"text_input": PROMPT, "max_tokens": 2}))["output_log_probs"] == []


def test_end_token_is_not_given_out_as_text(server: Server) -> None:
    free = json.loads(post(server, "covey/generate", {"text_input": PROMPT, "max_tokens": 8}))
    end = free["output_ids"][4]
    first = free["output_ids"].index(end)
    answer = json.loads(post(server, "covey/generate", {"text_input": PROMPT, "max_tokens": 8, "end_id": end}))
    assert answer["finish_reason"] == "eos"
    assert answer["output_ids"] == free["output_ids"][: first + 1]
    longer = {"text_input": PROMPT, "max_tokens": 8, "end_id": end, "min_tokens": 7}
    assert end not in json.loads(post(server, "covey/generate", longer))["output_ids"][:7]


def slo_counts(server: Server) -> dict[tuple[str, str], float]:
    """Requests by class and outcome."""
    time.sleep(0.6)
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        samples = parse(response.read().decode())
    found = [each for each in samples if each.name == "covey_slo_requests_total"]
    return {(each.labels["slo_class"], each.labels["outcome"]): each.value for each in found}


def test_objectives_come_through_every_door(server: Server, expected: dict[str, Any]) -> None:
    before = slo_counts(server)
    for model in ("covey", "ensemble", "covey_unary"):
        for tpot_ms, attainment in ((600_000, "met"), (0.01, "missed")):
            asked = {"slo_class": "chat", "slo_ttft_ms": 600_000, "slo_tpot_ms": tpot_ms}
            answer = json.loads(post(server, f"{model}/generate", {"text_input": PROMPT, **SETTINGS, **asked}))
            assert answer["text_output"] == expected["text_output"]
            assert answer["slo_attainment"] == attainment
            assert answer["measured_ttft_ms"] > 0 < answer["measured_tpot_ms"]
    with Client(server.grpc_url) as client:
        *earlier, last = client.stream(PROMPT, slo_ttft_ms=0.01, **SETTINGS)
    assert (last.slo_attainment, {chunk.slo_attainment for chunk in earlier}) == ("missed", {""})
    assert last.usage.ttft_ms > 0.01
    grew = {key: value - before.get(key, 0.0) for key, value in slo_counts(server).items()}
    assert {key: value for key, value in grew.items() if value} == {
        ("chat", "met"): 3,
        ("chat", "missed"): 3,
        ("custom", "missed"): 1,
    }
