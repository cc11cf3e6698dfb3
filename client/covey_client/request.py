"""A request, checked for types that the wire can carry, and its encoding. The server checks ranges."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey_client.errors import InvalidRequest
from covey_client.wire import FORMATS, INPUT_BY_NAME, MODEL, PROMPT, WHOLE, Field

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2


@dataclass(frozen=True)
class Request:
    """A generation: every tensor that is set, as a list of values."""

    tensors: Mapping[str, Sequence[Any]]
    model: str = MODEL
    outputs: tuple[str, ...] = ()  # the wanted ones; empty: all
    id: str = ""  # its name in the server's log
    trace: str = ""  # the W3C `traceparent` that its spans continue

    @classmethod
    def build(
        cls, prompt: str | Sequence[int], settings: Mapping[str, object], *, stream: bool, model: str = MODEL
    ) -> Request:
        """Build a request. Raises InvalidRequest for unknown settings and values that a setting's type cannot hold."""
        given: dict[str, object] = {"text_input" if isinstance(prompt, str) else "input_ids": prompt, "stream": stream}
        for name, value in settings.items():
            if name in given or name in PROMPT or name not in INPUT_BY_NAME:
                raise InvalidRequest(f"{name}: no such setting", name)
            if value is not None:
                given[name] = value
        return cls({name: _values(INPUT_BY_NAME[name], value) for name, value in given.items()}, model)

    def to_grpc(self) -> service_pb2.ModelInferRequest:
        """Return the message of one request on a stream, which asks for a recognisable final response."""
        from tritonclient.grpc import service_pb2  # takes half a second, for which the server's processes do not wait

        message = service_pb2.ModelInferRequest(model_name=self.model, id=self.id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        if self.trace:
            message.parameters["traceparent"].string_param = self.trace
        for name, values in self.tensors.items():
            dtype = INPUT_BY_NAME[name].dtype
            message.inputs.add(name=name, datatype=dtype, shape=[len(values)])
            message.raw_input_contents.append(packed(dtype, values))
        for name in self.outputs:
            message.outputs.add(name=name)
        return message


def _values(field: Field, value: object) -> list[Any]:
    if not field.many:
        return [_scalar(field, value)]
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidRequest(f"{field.name}: got {value!r}, allowed: a list", field.name)
    return [_scalar(field, item) for item in value]


def _scalar(field: Field, value: Any) -> Any:
    if hasattr(value, "item"):  # a numpy number
        value = value.item()
    if field.dtype == "BYTES" and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{field.name}: got text that is not Unicode (a lone surrogate)", field.name) from None
        return value
    if field.dtype == "BOOL" and isinstance(value, bool):
        return value
    if field.dtype == "FP32" and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InvalidRequest(f"{field.name}: got {value!r}, allowed: a finite number", field.name)
        return float(value)
    if field.dtype in WHOLE and isinstance(value, int) and not isinstance(value, bool):
        low, high = WHOLE[field.dtype]
        if not low <= value <= high:
            raise InvalidRequest(f"{field.name}: got {value}, allowed: {low} to {high}", field.name)
        return value
    raise InvalidRequest(f"{field.name}: got {value!r}, allowed: {field.dtype}", field.name)


def packed(dtype: str, values: Sequence[Any]) -> bytes:
    """Return values as the bytes of a tensor."""
    if dtype == "BYTES":
        encoded = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(item)) + item for item in encoded)
    return struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
