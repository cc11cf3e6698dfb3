"""Building requests and reading answers, without a server."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from covey_client import Cancelled, Chunk, Completion, InvalidRequest, Overloaded, ServerError, Usage
from covey_client.address import Address
from covey_client.errors import CoveyClientError, from_message
from covey_client.request import Request
from covey_client.response import from_grpc


def _build(prompt: Any = "x", **settings: Any) -> Request:
    return Request.build(prompt, settings, stream=True)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1 << 31}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"return_log_probs": 1}, "return_log_probs"),
        ({"stop_words": "one"}, "stop_words"),
        ({"stop_words": 5}, "stop_words"),
        ({"stop_words": [5]}, "stop_words"),
        ({"tenant": "\ud800"}, "tenant"),
        ({"stream": False}, "stream"),
        ({"text_input": "y"}, "text_input"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_what_a_wire_cannot_carry_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _build(**settings)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_message_carries_what_is_set() -> None:
    request = _build(np.array([1, 2], np.int32), temperature=1, stop_words=["é", ""], seed=np.uint64(3), top_k=None)
    message = request.to_grpc()
    raw = dict(zip([tensor.name for tensor in message.inputs], message.raw_input_contents))
    assert raw["input_ids"] == struct.pack("<2i", 1, 2)
    assert raw["stop_words"] == b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00"
    assert raw["seed"] == struct.pack("<Q", 3)
    assert raw["temperature"] == struct.pack("<f", 1.0)
    assert raw.keys() == {"input_ids", "stream", "temperature", "stop_words", "seed"}
    assert [tuple(tensor.shape) for tensor in message.inputs if tensor.name == "input_ids"] == [(2,)]


def test_an_answer_is_read() -> None:
    message = service_pb2.ModelInferResponse()
    for name, dtype, data in (
        ("text_output", "BYTES", b"\x02\x00\x00\x00\xc3\xa9"),
        ("output_ids", "INT32", struct.pack("<i", 9)),
        ("finish_reason", "BYTES", b"\x03\x00\x00\x00eos"),
        ("num_output_tokens", "INT32", struct.pack("<i", 1)),
        ("mean_acceptance_length", "FP32", struct.pack("<f", 2.25)),
        ("acceptance_histogram", "INT32", struct.pack("<3i", 1, 1, 2)),
        ("drafters", "BYTES", b"\x01\x00\x00\x00a\x02\x00\x00\x00bc"),
        ("draft_tokens_by_drafter", "INT32", struct.pack("<2i", 3, 1)),
        ("new_in_a_later_version", "FP64", b"12345678"),
    ):
        message.outputs.add(name=name, datatype=dtype, shape=[1])
        message.raw_output_contents.append(data)
    usage = Usage(
        output_tokens=1,
        mean_acceptance_length=2.25,
        acceptance_histogram=(1, 1, 2),
        drafters=("a", "bc"),
        draft_tokens_by_drafter=(3, 1),
    )
    chunk = Chunk("é", (9,), (), "eos", 0, usage)
    assert from_grpc(message) == chunk
    assert from_grpc(service_pb2.ModelInferResponse()) is None
    assert Completion.join([chunk, chunk]).text == "éé"


def test_alternatives_come_by_place_and_in_their_order() -> None:
    top = {"top_ids": (9, 4, 7, 1, 2, 3), "top_log_probs": (-0.1, -2.0, -3.0, -0.5, -1.0, -4.0)}
    scored = {"prompt_top_ids": (5, 6), "prompt_top_log_probs": (-1.0, -2.0)}
    chunk = Chunk("ab", (9, 1), (-0.1, -0.5), "", 0, Usage(), **top, prompt_log_probs=(-1.0,), **scored)  # type: ignore[arg-type]
    assert chunk.top == (((9, -0.1), (4, -2.0), (7, -3.0)), ((1, -0.5), (2, -1.0), (3, -4.0)))
    assert chunk.prompt_top == (((5, -1.0), (6, -2.0)),)
    joined = Completion.join([chunk, chunk])
    assert joined.top == chunk.top * 2
    assert Chunk("ab", (9, 1), (), "", 0, Usage()).top == ((), ())


def test_an_answer_that_is_none() -> None:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="logits", datatype="FP32", shape=[1])
    with pytest.raises(ServerError, match="none of Covey's outputs"):
        from_grpc(message)


@pytest.mark.parametrize(
    ("message", "status", "kind", "field"),
    [
        ("in ensemble 'ensemble', [INVALID_ARG] top_p: got 2.0, allowed: (0, 1]", 400, InvalidRequest, "top_p"),
        ("[INVALID_ARG] a prompt is needed", 400, InvalidRequest, ""),
        ("[UNAVAILABLE] the queue is full (256 waiting)", 0, Overloaded, None),
        ("[CANCELLED] given up", 0, Cancelled, None),
        ("[INTERNAL] the target failed", 0, ServerError, None),
        ("Request for unknown model: 'covey' has no available versions", 400, Overloaded, None),
        ("Request for unknown model: 'x' is not found", 404, InvalidRequest, "model"),
        ("unexpected inference input 'nope' for model 'covey'", 400, InvalidRequest, "nope"),
        ("anything", 503, Overloaded, None),
        ("", 500, ServerError, None),
    ],
)
def test_messages_become_errors(message: str, status: int, kind: type[CoveyClientError], field: str | None) -> None:
    error = from_message(message, status)
    assert type(error) is kind
    assert str(error)
    if isinstance(error, InvalidRequest):
        assert error.field == field


def test_addresses() -> None:
    def short(url: str) -> tuple[str, int, bool]:
        found = Address.parse(url, port=8001)
        return found.host, found.port, found.tls

    assert short("box") == ("box", 8001, False)
    assert short("box:9") == ("box", 9, False)
    assert short("https://box:9/") == ("box", 9, True)
    assert short("[::1]:9") == ("::1", 9, False)
    assert short("[::1]") == ("::1", 8001, False)
    assert Address.parse("[::1]:9", port=1).target == "[::1]:9"
    assert Address.parse("localhost", port=1).loopback
    for wrong in ("ftp://box", "box:port", ":80", "box:65536", "box:0", "box:²"):
        with pytest.raises(ValueError, match="url"):
            Address.parse(wrong, port=1)
