"""Bodies and messages of strangers: what is allowed becomes plain values, everything else a named error."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from covey.front import answers, failures, grpc_bodies, http_bodies
from covey.front.inference_request import NEEDED, InferenceRequest, checked, field_of
from covey_client.errors import InvalidRequest, from_message
from covey_client.request import Request
from covey_client.response import Chunk, Usage, from_grpc
from covey_client.wire import INPUTS, OUTPUTS
from tests.over_http import chunk

PROMPT_BYTES = 1000
CHUNK = Chunk("Grüße", (5,), (-0.5,), "eos", (1 << 64) - 1, Usage(3, 1, drafters=("draft_ngram",)), "met")
GOOD: dict[str, Any] = {
    "text_input": "Once",
    "max_tokens": 3,
    "temperature": 1,
    "seed": (1 << 64) - 1,
    "stop_words": ["a", "b"],
    "stream": True,
    "tenant": "gold",
}


def generation(body: bytes | dict[str, Any]) -> InferenceRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http_bodies.generation("covey", raw, PROMPT_BYTES)


def message_of(tensors: dict[str, Any]) -> service_pb2.ModelInferRequest:
    """As the client's library makes it."""
    given = dict(tensors)
    prompt, stream = given.pop("text_input"), given.pop("stream", False)
    return Request.build(prompt, given, stream=stream).to_grpc()


def sent(asked: InferenceRequest) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in asked.upstream_request(asked.settings).tensors.items()}


def test_every_door_rebuilds_the_same_request() -> None:
    over_json = generation(GOOD)
    message = message_of(GOOD)
    over_grpc = grpc_bodies.inference(message, PROMPT_BYTES)
    typed = service_pb2.ModelInferRequest(model_name="covey")
    for tensor, raw in zip(message.inputs, message.raw_input_contents):
        kind = grpc_bodies.CONTENTS[tensor.datatype]
        values = http_bodies.unpacked(field_of(tensor.name), tensor.datatype, list(tensor.shape), raw)
        added = typed.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        getattr(added.contents, kind).extend(values)
    assert sent(over_json) == sent(over_grpc) == sent(grpc_bodies.inference(typed, PROMPT_BYTES))
    assert sent(over_json)["seed"] == [(1 << 64) - 1]
    assert sent(over_json)["stop_words"] == ["a", "b"]
    assert over_json.stream


@pytest.mark.parametrize("more", [-1, 1])
def test_a_message_has_the_data_of_each_of_its_tensors_or_of_none(more: int) -> None:
    message = message_of(GOOD)
    if more > 0:
        message.raw_input_contents.append(b"")
    else:
        message.raw_input_contents.pop()
    with pytest.raises(InvalidRequest, match=f"one for each of {len(message.inputs)} inputs, or none"):
        grpc_bodies.inference(message, PROMPT_BYTES)


def test_lists_within_lists_are_values_up_to_a_depth() -> None:
    def read(data: Any) -> list[int]:
        found = inferred({"name": "input_ids", "datatype": "INT32", "shape": [2], "data": data})
        return list(found.prompt)  # type: ignore[arg-type]

    assert read([[1], [2]]) == read([[[[[1, 2]]]]]) == [1, 2]
    for wrong in ([[[[[[1, 2]]]]]], [1, [2]]):
        with pytest.raises(InvalidRequest, match="allowed: a list of values"):
            read(wrong)


@pytest.mark.parametrize(
    "value",
    ["\0" * 9000, b"\xff" * 9000, 10**5000, [1] * 9000, {"a": 1}, 1e300],
    ids=["text", "bytes", "int", "list", "object", "float"],
)
def test_an_error_shows_the_beginning_of_a_value_alone(value: object) -> None:
    said = str(failures.refused("x", value, "less"))
    assert said.startswith("x: got ")
    assert len(said) <= failures.MOST_SHOWN + len("x: got , allowed: less")


def test_answers_say_the_whole_chunk_and_lists_stay_lists() -> None:
    asked = generation(GOOD)
    said = answers.event(CHUNK, "covey", asked.outputs)
    assert said["output_ids"] == [5]
    assert said["drafters"] == ["draft_ngram"]
    assert chunk(json.loads(json.dumps(said))) == CHUNK == from_grpc(grpc_bodies.answer(CHUNK, asked))
    assert set(said) == {field.name for field in OUTPUTS} | {"model_name", "model_version"}


def test_counts_come_at_the_end_or_where_they_are_named() -> None:
    early = replace(CHUNK, finish_reason="", slo_attainment="")
    lean = ["text_output", "output_ids", "output_log_probs", "finish_reason", "used_seed", "emulated"]
    for names in ([], [field.name for field in OUTPUTS]):  # Triton names all for a client that names none
        message = message_of(GOOD)
        for name in names:
            message.outputs.add(name=name)
        asked = grpc_bodies.inference(message, PROMPT_BYTES)
        assert [tensor.name for tensor in grpc_bodies.answer(early, asked).outputs] == lean
        assert list(answers.event(early, "covey", asked.outputs))[2:] == lean
        assert len(grpc_bodies.answer(CHUNK, asked).outputs) == len(OUTPUTS)
        assert from_grpc(grpc_bodies.answer(early, asked)) == replace(early, usage=Usage())
        assert asked.upstream_request({}).outputs == ()
    message = message_of(GOOD)
    message.outputs.add(name="num_input_tokens")
    asked = grpc_bodies.inference(message, PROMPT_BYTES)
    assert answers.values(early, asked.outputs) == {"num_input_tokens": [3]}
    assert [tensor.name for tensor in grpc_bodies.answer(CHUNK, asked).outputs] == ["num_input_tokens"]
    assert set(asked.upstream_request({}).outputs) == {"num_input_tokens", *NEEDED}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"text_input":"a","x\xff":1}', ""),
        (b"[" * 100_000, ""),
        (b'{"a":' * 100_000, ""),
        (b'{"text_input":"a","temperature":NaN}', ""),
        (b'{"text_input":"a","max_tokens":' + b"9" * 10_000 + b"}", ""),
        ({"text_input": "a", "temperature": 1e39}, "temperature"),
        (b'{"text_input":"a","temperature":1e999}', "temperature"),
        ({"text_input": "a", "top_p": 0}, "top_p"),
        ({"text_input": "a", "max_tokens": -1}, "max_tokens"),
        ({"text_input": "a", "max_tokens": True}, "max_tokens"),
        ({"text_input": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"text_input": "a", "max_tokens": [1, 2]}, "max_tokens"),
        ({"text_input": "a", "max_tokens": 10**400}, ""),
        ({"text_input": "a", "seed": -1}, "seed"),
        ({"text_input": "a", "stream": 1}, "stream"),
        ({"text_input": "a", "beam_width": 4}, "beam_width"),
        ({"text_input": "a", "num_return_sequences": 2}, "num_return_sequences"),
        ({"text_input": "a", "return_generation_logits": True}, "return_generation_logits"),
        ({"text_input": "a", "verification": "none"}, "verification"),
        ({"text_input": "a", "tenant": "x" * 257}, "tenant"),
        ({"text_input": "a", "stop_words": [["a"]]}, "stop_words"),
        ({"text_input": "a", "stop_words": ["a"] * 5000}, "stop_words"),
        ({"text_input": "\ud800"}, "text_input"),
        (b'{"text_input":"a","\\ud800":1}', ""),
        ({"text_input": "a" * 1001}, "text_input"),
        ({"text_input": "ü" * 501}, "text_input"),
        ({"text_input": ""}, "text_input"),
        ({"text_input": "a", "input_ids": [1]}, "text_input"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, 1 << 31]}, "input_ids"),
        ({"input_ids": [1, True]}, "input_ids"),
        ({"input_ids": [1] * 1001}, "input_ids"),
        ({"text_input": "a", "id": 5}, "id"),
        ({}, "text_input"),
        (b"7", ""),
        (b"", ""),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(body: bytes | dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generation(body)
    if field:
        assert caught.value.field == field
        assert from_message(failures.text(caught.value), 400).field == field, "the client's library reads it as well"
    assert len(failures.text(caught.value).encode()) < 600


def tensor(name: str, dtype: str, shape: list[int], raw: bytes) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="covey")
    message.inputs.add(name=name, datatype=dtype, shape=shape)
    message.raw_input_contents.append(raw)
    return message


def twice(message: service_pb2.ModelInferRequest) -> service_pb2.ModelInferRequest:
    message.inputs[0].contents.bytes_contents.append(b"other")
    return message


@pytest.mark.parametrize(
    "message",
    [
        twice(tensor("text_input", "BYTES", [1], b"\1\0\0\0a")),
        tensor("text_input", "INT32", [1 << 40], b""),
        tensor("input_ids", "INT32", [1 << 40], b"abcd"),
        tensor("input_ids", "INT32", [1 << 32, 1 << 32], b"abcd"),
        tensor("input_ids", "INT32", [-1], b"abcd"),
        tensor("input_ids", "INT32", [1] * 10, b"abcd"),
        tensor("input_ids", "INT32", [1], b"abc"),
        tensor("stream", "BOOL", [8589934592], b"a"),
        tensor("text_input", "BYTES", [1], struct.pack("<I", (1 << 32) - 1) + b"a"),
        tensor("text_input", "BYTES", [1], b"\1\0"),
        tensor("text_input", "BYTES", [1], b"\1\0\0\0\xff"),
        tensor("stop_words", "BYTES", [100_000], bytes(400_000)),
    ],
)
def test_shapes_and_bytes_that_do_not_agree_are_refused(message: service_pb2.ModelInferRequest) -> None:
    with pytest.raises(InvalidRequest, match="got"):
        grpc_bodies.inference(message, PROMPT_BYTES)


def inferred(*inputs: dict[str, Any], **body: Any) -> InferenceRequest:
    raw = json.dumps({"inputs": inputs, **body}).encode()
    return http_bodies.inference("covey_unary", raw, None, PROMPT_BYTES)[0]


def test_shapes_that_kill_triton_are_refused_over_http_too() -> None:
    for name, dtype, shape in (
        ("text_input", "BYTES", 1 << 40),
        ("input_ids", "INT32", 1 << 40),
        ("input_ids", "INT32", 0),
    ):
        with pytest.raises(InvalidRequest, match=f"^{name}: got .*shape"):
            inferred({"name": name, "datatype": dtype, "shape": [shape], "data": [1]})


@pytest.mark.parametrize("dtype", ["INT32", "INT64", "UINT32", "UINT64"])
@pytest.mark.parametrize("way", ["http", "http in binary", "grpc", "grpc typed"])
def test_whole_numbers_come_in_any_type_and_in_two_dimensions(way: str, dtype: str) -> None:
    """As TensorRT-LLM's clients send them."""
    shape = [1, 1]

    def asked(tokens: int) -> InferenceRequest:
        raw = struct.pack("<" + http_bodies.FORMATS[dtype], tokens)
        if way.startswith("grpc"):
            message = service_pb2.ModelInferRequest(model_name="covey")
            text = message.inputs.add(name="text_input", datatype="BYTES", shape=shape)
            number = message.inputs.add(name="max_tokens", datatype=dtype, shape=shape)
            if way == "grpc":
                message.raw_input_contents.extend([b"\1\0\0\0a", raw])
            else:
                text.contents.bytes_contents.append(b"a")
                getattr(number.contents, grpc_bodies.CONTENTS[dtype]).append(tokens)
            return grpc_bodies.inference(message, PROMPT_BYTES)
        tensor = {"name": "max_tokens", "datatype": dtype, "shape": shape}
        tensor |= {"data": [[tokens]]} if way == "http" else {"parameters": {"binary_data_size": len(raw)}}
        text = {"name": "text_input", "datatype": "BYTES", "shape": shape, "data": [["a"]]}
        head = json.dumps({"inputs": [text, tensor]}).encode()
        body = head if way == "http" else head + raw
        return http_bodies.inference("covey_unary", body, str(len(head)), PROMPT_BYTES)[0]

    assert sent(asked(7)) == {"text_input": ["a"], "stream": [False], "max_tokens": [7]}
    beyond = (1 << 31) - 1 if dtype == "INT32" else (1 << 31) + 5
    with pytest.raises(InvalidRequest, match=r"^max_tokens: got"):
        asked(beyond)


def test_other_types_than_whole_numbers_are_as_the_table_says() -> None:
    for name, dtype in (("max_tokens", "FP32"), ("temperature", "INT32"), ("stream", "INT32"), ("max_tokens", "INT8")):
        with pytest.raises(InvalidRequest, match=f"^{name}: got '{dtype}', allowed: the datatype "):
            grpc_bodies.inference(tensor(name, dtype, [1], bytes(4)), PROMPT_BYTES)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_tokens", 1 << 40, "0 to 1073741824"),
        ("min_tokens", 1 << 31, "0 to 2147483647"),
        ("min_tokens", -(1 << 40), "0 to 2147483647"),
        ("seed", 1 << 64, "0 to 18446744073709551615"),
        ("temperature", 1e300, "0 to 100.0"),
        ("top_p", float("nan"), "above 0 to 1.0"),
    ],
)
def test_a_number_that_is_too_large_is_told_the_range(name: str, value: float, allowed: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name}: got .*, allowed: {allowed}$"):
        checked(field_of(name), [value])


def test_an_unknown_field_is_told_the_nearest_names_or_where_to_ask() -> None:
    for wrong, right in (("random_seed", "seed"), ("min_length", "min_tokens"), ("max_new_tokens", "max_tokens")):
        with pytest.raises(InvalidRequest, match=rf"^{wrong}: got .*no such setting; near it: .*\b{right}\b"):
            generation({"text_input": "a", wrong: 1})
    with pytest.raises(InvalidRequest, match=r"^inspect: .*Triton's own HTTP port \(usually 8000\)"):
        generation({"inspect": "facts"})
    with pytest.raises(InvalidRequest, match="no such setting; the model's metadata has them all"):
        generation({"text_input": "a", "§" * 300: 1})


def test_parameters_are_no_way_around_the_table() -> None:
    for name in ("tenant", "priority", "sequence_id", "x"):
        message = message_of(GOOD)
        message.parameters[name].int64_param = 1
        with pytest.raises(InvalidRequest) as caught:
            grpc_bodies.inference(message, PROMPT_BYTES)
        assert caught.value.field == name


@pytest.mark.parametrize("name", ["shared_memory_region", "classification", "temperature"])
@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_parameters_of_tensors_that_would_be_ignored_are_refused_by_name(part: str, name: str) -> None:
    message = message_of(GOOD)
    message.outputs.add(name="text_output")
    getattr(message, part)[0].parameters[name].string_param = "mine"
    with pytest.raises(InvalidRequest, match=f"^{name}: got"):
        grpc_bodies.inference(message, PROMPT_BYTES)
    body: dict[str, Any] = {
        "inputs": {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]},
        "outputs": {"name": "text_output"},
    }
    body[part]["parameters"] = {name: "mine"}
    with pytest.raises(InvalidRequest, match=f"^{name}: got"):
        inferred(body["inputs"], outputs=[body["outputs"]])


def test_bytes_behind_the_json_belong_to_a_tensor() -> None:
    head = json.dumps(
        {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}]}
    ).encode()
    body = head + b"\1\0\0\0a"
    asked, _ = http_bodies.inference("covey_unary", body, str(len(head)), PROMPT_BYTES)
    assert asked.prompt == "a"
    for wrong, header in ((body + b"x", str(len(head))), (body[:-1], str(len(head))), (body, "-1"), (body, "99999")):
        with pytest.raises(InvalidRequest):
            http_bodies.inference("covey_unary", wrong, header, PROMPT_BYTES)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
NAMES = st.sampled_from([field.name for field in INPUTS]) | st.text(max_size=5)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "datatype": st.sampled_from(["BYTES", "INT32", "FP32", "UINT64", "BOOL", "FP16", 3]),
        "shape": st.lists(st.integers(-2, 3) | st.just(1 << 40), max_size=3) | ANY,
        "data": ANY,
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "x"]), st.integers(-1, 9)) | ANY,
    },
)
BODY = st.fixed_dictionaries(
    {}, optional={"inputs": st.lists(TENSOR, max_size=3) | ANY, "outputs": ANY, "parameters": ANY, "id": ANY}
)


def _only_named_errors(act: Any) -> None:
    """And what is taken can be sent."""
    with suppress(InvalidRequest):
        asked = act()
        asked.upstream_request(asked.settings).to_grpc().SerializeToString()


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, ANY, max_size=4))
def test_fuzz_generate(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    _only_named_errors(lambda: http_bodies.generation("covey", raw, PROMPT_BYTES))


@settings(max_examples=150, deadline=None)
@given(BODY, st.binary(max_size=20), st.none() | st.integers(-1, 300))
def test_fuzz_infer(body: dict[str, Any], rest: bytes, header: int | None) -> None:
    head = json.dumps(body).encode()
    for said in (None if header is None else str(header), str(len(head))):
        _only_named_errors(lambda said=said: http_bodies.inference("covey_unary", head + rest, said, PROMPT_BYTES)[0])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_fuzz_grpc(garbage: bytes, at: int, byte: int) -> None:
    """Random bytes, and a right message with one byte changed."""
    right = bytearray(message_of(GOOD).SerializeToString())
    right[at % len(right)] = byte
    for raw in (garbage, bytes(right)):
        _only_named_errors(
            lambda raw=raw: grpc_bodies.inference(grpc_bodies.parsed(service_pb2.ModelInferRequest, raw), PROMPT_BYTES)
        )
