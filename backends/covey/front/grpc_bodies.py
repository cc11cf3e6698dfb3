"""Parses and builds the gRPC messages of Triton's protocol. Their length has been bounded before."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from covey.front.answers import values
from covey.front.failures import refused
from covey.front.http_bodies import unpacked
from covey.front.inference_request import (
    VERSION,
    InferenceRequest,
    count,
    datatype,
    field_of,
    id_of,
    parameters,
    served,
)
from covey_client.errors import InvalidRequest
from covey_client.request import packed
from covey_client.response import Chunk
from covey_client.wire import INPUTS, OUTPUT_BY_NAME, OUTPUTS

CONTENTS = {
    "BYTES": "bytes_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "BOOL": "bool_contents",
}
FINAL = "triton_final_response"
MOST_PARAMETERS = 16
Message = TypeVar("Message")


def parsed(kind: type[Message], data: bytes) -> Message:
    try:
        message: Message = kind.FromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        raise InvalidRequest("the message is not a valid protocol buffer of this kind with texts in UTF-8") from None
    return message


def inference(message: Any, prompt_bytes: int) -> InferenceRequest:
    """Parse a ModelInferRequest. Raises InvalidRequest."""
    model = served(message.model_name, message.model_version)
    if len(message.parameters) > MOST_PARAMETERS:
        raise refused("parameters", f"{len(message.parameters)} parameters", f"at most {MOST_PARAMETERS}")
    parameters(message.parameters)
    raw, inputs = message.raw_input_contents, message.inputs
    for name, found, most in (("inputs", inputs, len(INPUTS)), ("outputs", message.outputs, len(OUTPUTS))):
        if len(found) > most:
            raise refused(name, f"{len(found)} tensors", f"at most {most}")
        for tensor in found:
            parameters(tensor.parameters)
    if raw and len(raw) != len(inputs):
        raise refused("raw_input_contents", f"{len(raw)} tensors", f"one for each of {len(inputs)} inputs, or none")
    tensors: dict[str, list[Any]] = {}
    for index, tensor in enumerate(inputs):
        name = tensor.name
        if name in tensors:
            raise refused(name, "two tensors", "one")
        tensors[name] = _tensor(tensor, raw[index] if raw else None)
    outputs = [output.name for output in message.outputs]
    return InferenceRequest.of(model, tensors, prompt_bytes=prompt_bytes, outputs=outputs, id=id_of(message.id))


def answer(chunk: Chunk, request: InferenceRequest) -> Any:
    """Return the ModelInferResponse of a chunk."""
    found = values(chunk, request.outputs)
    message = service_pb2.ModelInferResponse.FromString(
        _described(request.model, tuple(map(len, found.values())), tuple(found))
    )
    message.id = request.id
    message.raw_output_contents.extend([packed(OUTPUT_BY_NAME[name].dtype, given) for name, given in found.items()])
    return message


@lru_cache(maxsize=1024)
def _described(model: str, lengths: tuple[int, ...], outputs: tuple[str, ...]) -> bytes:
    """Return a response without its data, as bytes: parsing them takes a twentieth of building it anew."""
    message = service_pb2.ModelInferResponse(model_name=model, model_version=VERSION)
    for name, length in zip(outputs, lengths):
        message.outputs.add(name=name, datatype=OUTPUT_BY_NAME[name].dtype, shape=(length,))
    return bytes(message.SerializeToString())


def _tensor(tensor: Any, raw: bytes | None) -> list[Any]:
    name = tensor.name
    field = field_of(name)
    dtype = datatype(field, tensor.datatype)
    shape = list(tensor.shape[:16])
    if raw is not None:
        if tensor.HasField("contents"):
            raise refused(name, "values in contents and in raw_input_contents", "one of them")
        return unpacked(field, dtype, shape, raw)
    found = getattr(tensor.contents, CONTENTS[dtype])
    if count(field, shape, max(1, len(found))) != len(found):
        raise refused(name, f"{len(found)} values", "the number in the shape")
    return list(found)
