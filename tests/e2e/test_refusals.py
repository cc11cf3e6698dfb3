"""What cannot be served is refused at once, by the field's name; the server and other streams go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from covey.launcher import Server
from covey_client import Client, InvalidRequest
from tests.e2e.serving import generate, post

pytestmark = pytest.mark.e2e

REFUSED: list[tuple[str, dict[str, Any]]] = [  # a few of each kind: tests/tritonio has every field's range
    ("text_input", {"text_input": ""}),
    ("text_input", {}),
    ("text_input", {"text_input": "a", "input_ids": [5]}),
    ("input_ids", {"input_ids": [5, 4096]}),
    ("text_input", {"text_input": "word " * 4000}),
    ("max_tokens", {"text_input": "a", "max_tokens": 2048}),
    ("temperature", {"text_input": "a", "temperature": -0.1}),
    ("min_tokens", {"text_input": "a", "max_tokens": 4, "min_tokens": 5}),
    ("stop_words", {"text_input": "a", "stop_words": ["", "a"]}),
    ("stop_words", {"text_input": "a", "stop_words": ["x"] * 17}),
    ("stop_words", {"text_input": "a", "stop_words": ["x" * 257]}),
    ("bad_words", {"text_input": "a", "bad_words": ["a", ""]}),
    ("end_id", {"text_input": "a", "end_id": 4096}),
    ("num_prompt_tokens", {"text_input": "a", "num_prompt_tokens": 99}),
    ("speculation", {"text_input": "a", "speculation": "sometimes"}),
    ("num_draft_tokens", {"text_input": "a", "speculation": "off", "num_draft_tokens": 3}),
    ("num_draft_tokens", {"text_input": "a", "speculation": "fixed:3", "num_draft_tokens": 4}),
    ("drafter", {"text_input": "a", "drafter": "nobody"}),
    ("drafter", {"text_input": "a", "drafter": "target"}),
    ("verification", {"text_input": "a", "verification": "hopeful"}),
    ("no_such_setting", {"text_input": "a", "no_such_setting": 1}),
    ("beam_width", {"text_input": "a", "beam_width": 4}),
]


def refusal(server: Server, model: str, body: dict[str, Any]) -> str:
    return str(generate(server, model, **body)["error"])


@pytest.mark.parametrize("model", ["covey", "covey_unary"])
def test_each_is_refused_by_name_and_a_stream_beside_it_is_untouched(server: Server, model: str) -> None:
    with Client(server.grpc_url) as client, ThreadPoolExecutor(1) as beside:
        alone = client.generate("Once", max_tokens=120).text
        running = beside.submit(client.generate, "Once", max_tokens=120)
        for field, body in REFUSED:
            text = refusal(server, model, body)
            assert text.startswith(f"[INVALID_ARG] {field}: got "), (body, text)
            assert "allowed:" in text
        assert running.result().text == alone
    assert server.control.ready()


def test_a_model_of_one_response_does_not_stream_and_the_ensemble_refuses_too(server: Server) -> None:
    assert "stream: got True" in refusal(server, "covey_unary", {"text_input": "a", "stream": True})
    assert "temperature: got" in refusal(server, "ensemble", {"text_input": "a", "temperature": -1.0})
    assert "text_input: got" in refusal(server, "ensemble", {"text_input": ""})


def test_numbers_that_are_none_and_wrong_types_and_shapes(server: Server) -> None:
    with Client(server.grpc_url) as client:
        for value in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(InvalidRequest, match="temperature"):
                client.generate("a", temperature=value)
    for body in (
        {"text_input": "a", "max_tokens": "many"},
        {"text_input": ["a", "b"]},
        {"text_input": "a", "max_tokens": [1, 2]},
        {"text_input": "a", "seed": -1},
    ):
        assert refusal(server, "covey", body)


def test_settings_as_request_parameters_are_refused(server: Server) -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    body = {"inputs": [text], "parameters": {"temperature": 0.5}}
    status, said = post(f"{server.http_url}/v2/models/covey_unary/infer", body)
    assert status >= 400
    assert "temperature: got 0.5, allowed: an input tensor of this name" in said


@pytest.mark.parametrize("model", ["covey", "covey_unary", "ensemble"])
def test_generate_makes_tensors_of_settings_wherever_a_body_has_them(server: Server, model: str) -> None:
    answer = generate(server, model, text_input="a", max_tokens=3, parameters={"min_tokens": 3})
    assert answer["num_output_tokens"] == 3
