"""Parses and builds the HTTP bodies of Triton's protocol: JSON for `generate`, and JSON with optional binary tensors
after it for `infer`.

A body's length has been bounded before. The parser bounds how deep JSON nests, at Python's recursion limit.
tritonclient's own reader of texts can read more than the shape allows: half a million fit into a message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from covey.front.answers import values
from covey.front.failures import refused
from covey.front.inference_request import UNARY, VERSION, InferenceRequest, count, datatype, field_of, id_of, parameters
from covey_client.errors import InvalidRequest
from covey_client.request import packed
from covey_client.response import Chunk
from covey_client.wire import INPUTS, OUTPUT_BY_NAME, OUTPUTS, Field

BINARY_LENGTH = "inference-header-content-length"
SIZE = "binary_data_size"
BINARY, ALL_BINARY = "binary_data", "binary_data_output"
BODY = ("id", "parameters", "inputs", "outputs")
FORMATS = {"INT32": "i", "INT64": "q", "UINT32": "I", "UINT64": "Q", "FP32": "f"}


def generation(model: str, body: bytes, prompt_bytes: int) -> InferenceRequest:
    """Parse a body of `generate` or `generate_stream`: a JSON object of fields. Raises InvalidRequest."""
    given = json_object(body)
    identity = id_of(given.pop("id", ""))
    tensors = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    return InferenceRequest.of(model, tensors, prompt_bytes=prompt_bytes, id=identity)


def inference(
    model: str, body: bytes, header: str | None, prompt_bytes: int
) -> tuple[InferenceRequest, frozenset[str]]:
    """Parse a body of `infer`. Also returns the outputs wanted in binary form. Raises InvalidRequest."""
    length = len(body)
    if header is not None:
        if not header.isdecimal() or len(header) > 10 or int(header) > length:
            raise refused(BINARY_LENGTH, header, f"the length of the JSON in a body of {length} bytes")
        length = int(header)
    given = json_object(body[:length])
    for name in given:
        if name not in BODY:
            raise refused("body", name, ", ".join(BODY))
    common = _object("parameters", given.get("parameters", {}))
    parameters(common, (ALL_BINARY,))
    rest = _Rest(body, length)
    tensors: dict[str, list[Any]] = {}
    for entry in _objects("inputs", given.get("inputs"), len(INPUTS)):
        name = str(entry.get("name"))[:100]
        if name in tensors:
            raise refused(name, "two tensors", "one")
        tensors[name] = _tensor(name, entry, rest)
    rest.end()
    outputs, binary = [], set()
    for entry in _objects("outputs", given.get("outputs", []), len(OUTPUTS)):
        own = _object("outputs", entry.get("parameters", {}))
        parameters(own, (BINARY,))
        name = str(entry.get("name"))[:100]
        outputs.append(name)
        if own.get(BINARY, common.get(ALL_BINARY, False)) is True:
            binary.add(name)
    if not outputs and common.get(ALL_BINARY) is True:
        binary = {field.name for field in OUTPUTS}
    identity = id_of(given.get("id", ""))
    request = InferenceRequest.of(model, tensors, prompt_bytes=prompt_bytes, outputs=outputs, id=identity)
    return request, frozenset(binary)


def answer(chunk: Chunk, request: InferenceRequest, binary: frozenset[str]) -> tuple[bytes, int | None]:
    """Return the body that answers `infer`, and the length of its JSON if binary data follows."""
    described, blobs = [], []
    for name, found in values(chunk, request.outputs).items():
        dtype = OUTPUT_BY_NAME[name].dtype
        entry: dict[str, Any] = {"name": name, "datatype": dtype, "shape": [len(found)]}
        if name in binary:
            blobs.append(packed(dtype, found))
            entry["parameters"] = {SIZE: len(blobs[-1])}
        else:
            entry["data"] = found
        described.append(entry)
    head = {"model_name": UNARY, "model_version": VERSION} | ({"id": request.id} if request.id else {})
    text = json.dumps({**head, "outputs": described}).encode()
    return b"".join((text, *blobs)), len(text) if blobs else None


class _Rest:
    """The binary data after the JSON, read from start to end."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body, self._at = body, at

    def take(self, name: str, size: object) -> bytes:
        if type(size) is not int or not 0 <= size <= len(self._body) - self._at:
            raise refused(name, size, f"a {SIZE} of at most the rest of the body")
        self._at += size
        return self._body[self._at - size : self._at]

    def end(self) -> None:
        if self._at != len(self._body):
            raise InvalidRequest(f"body: {len(self._body) - self._at} bytes belong to no tensor")


def _tensor(name: str, entry: Mapping[str, Any], rest: _Rest) -> list[Any]:
    field = field_of(name)
    dtype = datatype(field, entry.get("datatype"))
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise refused(name, shape, "a shape, a list of sizes")
    own = _object(name, entry.get("parameters", {}))
    parameters(own, (SIZE,))
    if SIZE in own:
        data = rest.take(name, own[SIZE])
        return unpacked(field, dtype, shape, data)
    found = _flat(name, entry.get("data"))
    if count(field, shape, max(1, len(found))) != len(found):
        raise refused(name, f"{len(found)} values", "the number in the shape")
    return found


def unpacked(field: Field, dtype: str, shape: Sequence[Any], data: bytes) -> list[Any]:
    """Return the values of a tensor of that shape. Raises InvalidRequest unless they take all of the data."""
    wanted, name = count(field, shape, len(data)), field.name
    if dtype == "BYTES":
        return _texts(name, wanted, data)
    size = 1 if dtype == "BOOL" else struct.calcsize(FORMATS[dtype])
    if len(data) != wanted * size:
        raise refused(name, f"{len(data)} bytes", f"{wanted * size} for {wanted} values")
    if dtype == "BOOL":
        return [byte != 0 for byte in data]
    return list(struct.unpack(f"<{wanted}{FORMATS[dtype]}", data))


def _texts(name: str, wanted: int, data: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(data) and len(found) < wanted:
        length = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data) or len(found) != wanted:
        raise refused(name, f"{len(data)} bytes", f"{wanted} texts, each after its length in four bytes")
    return found


def _flat(name: str, data: Any) -> list[Any]:
    """Return the values of nested lists in order."""
    if not isinstance(data, list):
        raise refused(name, data, "data, a list")
    depth = 0
    while any(isinstance(item, list) for item in data):
        depth += 1
        if depth > 4 or not all(isinstance(item, list) for item in data):
            raise refused(name, data, "a list of values")
        data = [value for item in data for value in item]
    return list(data)


def json_object(body: bytes) -> dict[str, Any]:
    """Parse a body that must be one JSON object. Raises InvalidRequest."""
    return _object("body", _json(body))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise refused("body", body[max(0, error.start - 8) : error.end + 8], "JSON in UTF-8") from None
    except RecursionError:
        raise InvalidRequest("body: nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(f"body: failed to parse the JSON: {str(error)[:100]}") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(name, value, "a JSON object")
    return value


def _objects(name: str, value: Any, most: int) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > most:
        raise refused(name, value, f"a list of at most {most} objects")
    return [_object(name, item) for item in value]
