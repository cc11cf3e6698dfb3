"""Bytes that no client library sends: the sender is told what is wrong, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from covey.launcher import Server
from covey_client import Client
from tests.e2e.serving import post

pytestmark = pytest.mark.e2e

PROMPT = "Once upon a time"
SETTINGS: dict[str, Any] = {"max_tokens": 100, "min_tokens": 100, "temperature": 1.0, "seed": 7}
BAD_NAME = b'{"text_input":"a","max_tokens":2,"x\xff":1}'
BAD_VALUE = b'{"text_input":"a","max_tokens":2,"x":"\xc3("}'
BAD_SURROGATE = b'{"text_input":"a","max_tokens":2,"\xed\xa0\x80":1}'
BAD_TEXT = b'{"text_input":"a\xff","max_tokens":2}'
BAD_WORDS = b'{"text_input":"a","max_tokens":2,"stop_words":["\xfe"]}'
BAD_CHOICE = b'{"text_input":"a","max_tokens":2,"speculation":"\xff\xff"}'
BODIES = (BAD_NAME, BAD_VALUE, BAD_SURROGATE, BAD_TEXT, BAD_WORDS, BAD_CHOICE)
MODELS = ("covey_unary", "covey", "ensemble")


def said(server: Server, path: str, body: bytes) -> tuple[int, str]:
    return post(f"{server.http_url}/v2/models/{path}", body, 30)


@pytest.fixture(scope="module")
def alone(server: Server) -> tuple[int, ...]:
    with Client(server.grpc_url) as client:
        return client.generate(PROMPT, **SETTINGS).tokens


@pytest.fixture
def beside(server: Server, alone: tuple[int, ...]) -> Iterator[None]:
    """A stream runs meanwhile, and says what it said alone."""
    with Client(server.grpc_url) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.generate, PROMPT, **SETTINGS)
        yield
        assert running.result().tokens == alone
    assert server.control.ready()
    server.check()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", ["generate", "generate_stream"])
def test_what_is_not_utf8_is_refused(server: Server, model: str, way: str) -> None:
    for body in BODIES:
        for _ in range(2):  # the first closes a sender, the second finds out who still uses it
            answer = said(server, f"{model}/{way}", body)
            assert "INVALID_ARG" in answer[1], (body, answer)
    assert said(server, f"{model}/{way}", b'{"text_input":"a","max_tokens":2}')[0] == 200


@pytest.mark.usefixtures("beside")
def test_the_small_models_survive_them_too(server: Server) -> None:
    for _ in range(2):
        assert "INVALID_ARG" in said(server, "tokenize/generate", BAD_TEXT)[1]
        for body in (BAD_NAME, BAD_VALUE, BAD_SURROGATE):
            assert said(server, "tokenize/generate", body)[0] in (200, 400)
    assert json.loads(said(server, "tokenize/generate", b'{"text_input":"a"}')[1])["input_ids"]


def parameterised(model: str, name: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"\xff\xfe")
    request.parameters[name].string_param = "\x00\x01"
    return request


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("model", MODELS)
def test_over_grpc_too(server: Server, model: str) -> None:
    """Strings that are not UTF-8 are no valid protocol buffers: Triton ends the stream without a word."""
    names = ("x\ud7ff\x00", "\U0001f40d" * 50, "\x7f")
    messages = [parameterised(model, name).SerializeToString() for name in names]
    invalid = parameterised(model, "name").SerializeToString().replace(b"name", b"na\xff\xfe")
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        for message in messages:
            answers = list(call(iter([message, message]), timeout=30))
            assert len(answers) == 2
            assert all("INVALID_ARG" in answer.error_message for answer in answers), (message, answers)
        assert not list(call(iter([invalid, invalid]), timeout=30))
