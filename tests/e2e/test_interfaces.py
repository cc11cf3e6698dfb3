"""Every way to ask Triton itself gives the same answer: HTTP and gRPC, streaming or not, direct, unary and ensemble."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio

from covey.launcher import Server
from covey_client import Client
from tests.e2e.serving import generate, post, total
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROMPT = "Question: Anna has 12 pens and gives 5 to Ben. How many pens does she have?\nAnswer:"
SETTINGS: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "top_p": 0.95, "seed": 1234567890123456789}
TYPES = {"max_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "seed": np.uint64}


def events(server: Server, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    said = post(f"{server.http_url}/v2/models/{model}/generate_stream", {**body, "stream": True})[1]
    return [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]


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
    answer = generate(server, "covey", text_input=PROMPT, **SETTINGS)
    assert answer["num_output_tokens"] == len(answer["output_ids"]) > 0
    assert answer["used_seed"] == SETTINGS["seed"]
    return answer


@pytest.mark.parametrize("model", ["covey", "ensemble"])
def test_streams_over_http(server: Server, expected: dict[str, Any], model: str) -> None:
    own = {"tenant": f"streams of {model}"}  # a text that its tenant has had before is foreseen whole: in few pieces
    pieces = events(server, model, {"text_input": PROMPT, **SETTINGS, **own})
    assert len(pieces) > 3, "a stream must stream"
    assert "".join(piece["text_output"] for piece in pieces) == expected["text_output"]
    ids = [token for piece in pieces for token in np.atleast_1d(piece["output_ids"]).tolist()]
    assert ids == expected["output_ids"]
    assert [piece["finish_reason"] for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1]["finish_reason"] == expected["finish_reason"]


@pytest.mark.parametrize("model", ["covey", "ensemble", "covey_unary"])
def test_one_response_over_http(server: Server, expected: dict[str, Any], model: str) -> None:
    answer = generate(server, model, text_input=PROMPT, **SETTINGS)
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
    ids = generate(server, "tokenize", text_input=PROMPT)["input_ids"]
    answer = generate(server, "covey", input_ids=ids, **SETTINGS)
    assert answer["text_output"] == expected["text_output"]
    assert answer["num_input_tokens"] == len(ids) == expected["num_input_tokens"]


@pytest.mark.parametrize("model", ["covey", "ensemble", "covey_unary"])
def test_stop_words_and_the_prompt_in_the_output(server: Server, expected: dict[str, Any], model: str) -> None:
    whole = expected["text_output"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    body = {"text_input": PROMPT, **SETTINGS, "stop_words": ["never said at all", stop]}
    answer = generate(server, model, **body, exclude_input_in_output=False)
    assert answer["text_output"] == PROMPT + whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    if model != "covey_unary":
        pieces = events(server, model, body)
        assert "".join(piece["text_output"] for piece in pieces) == whole[: whole.index(stop)]


def test_log_probabilities_are_the_models_own(server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 12, "return_log_probs": True}
    cold = generate(server, "covey", **body)
    scores = np.asarray(cold["output_log_probs"])
    assert len(scores) == cold["num_output_tokens"]
    assert (scores <= 0).all()
    hot = generate(server, "covey", **body, temperature=0.01, repetition_penalty=1.0)
    assert hot["output_ids"] == cold["output_ids"]
    np.testing.assert_allclose(hot["output_log_probs"], scores, atol=1e-5)
    assert generate(server, "covey", text_input=PROMPT, max_tokens=2)["output_log_probs"] == []


def test_end_token_is_not_given_out_as_text(server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8}
    free = generate(server, "covey", **body)
    end = free["output_ids"][4]
    first = free["output_ids"].index(end)
    answer = generate(server, "covey", **body, end_id=end)
    assert answer["finish_reason"] == "eos"
    assert answer["output_ids"] == free["output_ids"][: first + 1]
    assert end not in generate(server, "covey", **body, end_id=end, min_tokens=7)["output_ids"][:7]


def test_objectives_come_through_every_door(server: Server, expected: dict[str, Any]) -> None:
    kinds = (("chat", "met"), ("chat", "missed"), ("custom", "missed"), ("custom", "met"))

    def counts() -> list[float]:
        return [total(server, "covey_slo_requests_total", slo_class=name, outcome=how) for name, how in kinds]

    time.sleep(0.6)  # figures of earlier requests are written by then
    before = counts()
    for model in ("covey", "ensemble", "covey_unary"):
        for tpot_ms, attainment in ((600_000, "met"), (0.01, "missed")):
            asked = {"slo_class": "chat", "slo_ttft_ms": 600_000, "slo_tpot_ms": tpot_ms}
            answer = generate(server, model, text_input=PROMPT, **SETTINGS, **asked)
            assert answer["text_output"] == expected["text_output"]
            assert answer["slo_attainment"] == attainment
            assert answer["measured_ttft_ms"] > 0 < answer["measured_tpot_ms"]
    with Client(server.grpc_url) as client:
        *earlier, last = client.stream(PROMPT, slo_ttft_ms=0.01, **SETTINGS)
    assert (last.slo_attainment, {chunk.slo_attainment for chunk in earlier}) == ("missed", {""})
    assert last.usage.ttft_ms > 0.01
    until(lambda: [now - then for now, then in zip(counts(), before)] == [3, 3, 1, 0], counts, 10)
