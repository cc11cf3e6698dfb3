"""A caller's request as plain values, checked against the table of public fields. Independent of the protocol.

The server itself checks everything that depends on the model or profile: context length, drafter names, classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.front.failures import NotServed, refused
from covey.process.log_about import only
from covey_client.request import Request
from covey_client.wire import INPUT_BY_NAME, MODEL, OUTPUT_BY_NAME, OUTPUTS, PROMPT, WHOLE, Field, unknown

UNARY = "covey_unary"
MODELS = (MODEL, UNARY)
NOT_IN_PARTS = f"{UNARY} for infer; this one answers in parts, to streams"
VERSION = "1"
STREAM = "stream"
# A broken answer can be resumed only with these outputs.
NEEDED = ("text_output", "output_ids", "finish_reason", "used_seed")
INSPECT = "inspect"  # the parameter by which Triton's own port is asked about the server
OF_THE_SERVER = "Triton's own HTTP port (usually 8000) to ask: a front tells strangers nothing of its server"
OWN_PARAMETER = "triton_"  # prefix of Triton's own parameter names
SHARED_MEMORY = "shared_memory_"  # prefix of the parameters that place a tensor's data
MOST_ID = 256  # characters of a request's id
MOST_DIMENSIONS = 8
BYTES_OF_A_TOKEN = 4  # typical for text: a prompt of ids may be as long as one of text
MOST_TEXTS = 4096  # in a list: no profile can allow more stop or bad words
# The datatypes that are accepted for a field: whole numbers of any type, range-checked like those in JSON.
DATATYPES = {"INT32": ("INT32", "INT64", "UINT32", "UINT64"), "UINT64": ("UINT64", "INT64", "UINT32", "INT32")}


@dataclass(frozen=True)
class InferenceRequest:
    """A generation request, and how to deliver its answer."""

    model: str
    prompt: str | list[int]
    settings: Mapping[str, Any]
    stream: bool
    outputs: tuple[str, ...]  # as the client named them, in the order of their table (`covey_client.wire.EARLY`)
    id: str = ""
    trace: str = ""  # the front's `traceparent`

    @classmethod
    def of(
        cls,
        model: str,
        tensors: Mapping[str, Sequence[Any]],
        *,
        prompt_bytes: int,
        outputs: Sequence[str] = (),
        id: str = "",
    ) -> InferenceRequest:
        """Make a request from values by field; single values are lists of one. Raises InvalidRequest."""
        values = {name: checked(field_of(name), given) for name, given in tensors.items()}
        prompts = [name for name in PROMPT if name in values]
        if len(prompts) != 1:
            raise refused("text_input", f"{len(prompts)} prompts", "exactly one of text_input and input_ids")
        prompt = values.pop(prompts[0])
        text = prompts == ["text_input"]
        if not prompt or prompt == [""]:
            raise refused(prompts[0], "", "at least one character or token")
        if text and len(prompt[0].encode()) > prompt_bytes:
            raise refused("text_input", f"{len(prompt[0])} characters", f"at most {prompt_bytes} bytes")
        if not text and len(prompt) > prompt_bytes // BYTES_OF_A_TOKEN:
            raise refused("input_ids", prompt, f"at most {prompt_bytes // BYTES_OF_A_TOKEN} token ids")
        stream = bool(values.pop(STREAM, [False])[0])
        settings = {name: given if field_of(name).many else given[0] for name, given in values.items()}
        return cls(model, prompt[0] if text else prompt, settings, stream, _outputs(outputs), id)

    def upstream_request(self, settings: Mapping[str, object]) -> Request:
        """Return the request for `covey`, built from checked values."""
        prompt = {"text_input": [self.prompt]} if isinstance(self.prompt, str) else {"input_ids": self.prompt}
        rest = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
        outputs = tuple(dict.fromkeys((*self.outputs, *NEEDED))) if self.outputs else ()
        return Request({**prompt, STREAM: [self.stream], **rest}, outputs=outputs, id=only(), trace=self.trace)


def served(model: object, version: object = "") -> str:
    """Return the name of a public model. Raises NotServed."""
    if model not in MODELS:
        raise NotServed(str(refused("model", model, ", ".join(MODELS))), "model")
    if version not in ("", VERSION):
        raise NotServed(str(refused("model_version", version, VERSION)), "model_version")
    return str(model)


def id_of(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_ID:
        raise refused("id", value, f"a text of at most {MOST_ID} characters")
    return value


def parameters(given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Refuse parameters of a request or tensor except Triton's own and the protocol's: settings must be tensors."""
    for name in given:
        if name in INPUT_BY_NAME:
            raise refused(name, "a parameter", "an input tensor of this name: settings are no request parameters")
        if name.startswith(SHARED_MEMORY):
            raise refused(name, "a parameter", "the data in the message: shared memory is only on Triton's own ports")
        if not name.startswith(OWN_PARAMETER) and name not in known:
            raise refused(name, "a parameter", unknown(name))


def datatype(field: Field, given: object) -> str:
    """Return the datatype of a tensor's values. Raises InvalidRequest if the field does not take it."""
    allowed = DATATYPES.get(field.dtype, (field.dtype,))
    if given not in allowed:
        raise refused(field.name, given, f"the datatype {' or '.join(allowed)}")
    return str(given)


def count(field: Field, shape: Sequence[Any], most: int) -> int:
    """Return the number of values in a shape. Refuses shapes that the field cannot have or the message cannot hold."""
    name = field.name
    if len(shape) > MOST_DIMENSIONS:
        raise refused(name, f"{len(shape)} dimensions", "a shape of one dimension")
    total = 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= most:
            raise refused(name, size, f"shapes of at most {most} values, which the message holds")
        total *= size
    if total > most:
        raise refused(name, f"a shape of {total} values", f"at most {most}, which the message holds")
    _check_count(field, total)
    return total


def _check_count(field: Field, found: int) -> None:
    if not field.many and found != 1:
        raise refused(field.name, f"{found} values", "one value")
    if field.dtype == "BYTES" and found > MOST_TEXTS:
        raise refused(field.name, f"{found} texts", f"at most {MOST_TEXTS}")


def checked(field: Field, values: Sequence[Any]) -> list[Any]:
    """Return the values if the table allows them. Raises InvalidRequest."""
    _check_count(field, len(values))
    if field.many and field.dtype in WHOLE and values:  # too many in a long prompt to check one by one in Python
        low, high = WHOLE[field.dtype]
        if set(map(type, values)) != {int} or min(values) < low or max(values) > high:
            raise refused(field.name, values, f"a list of whole numbers, {field.dtype}")
        return list(values)
    return [_value(field, value) for value in values]


def _value(field: Field, value: Any) -> Any:
    if field.dtype == "BYTES":
        return _text(field, value)
    if field.dtype == "BOOL":
        if type(value) is not bool:
            raise refused(field.name, value, "true or false")
        if value and not field.high:
            raise refused(field.name, value, "false")
        return value
    if type(value) is not int and (field.dtype != "FP32" or type(value) is not float):
        raise refused(field.name, value, "a number" if field.dtype == "FP32" else "a whole number")
    low = struct.unpack("<f", struct.pack("<f", field.low))[0] if field.dtype == "FP32" else field.low
    high = field.high if field.dtype == "FP32" else min(field.high, WHOLE[field.dtype][1])
    if not low <= value <= high or (field.above and value == low):  # NaN is in no range
        raise refused(field.name, value, f"{'above ' if field.above else ''}{field.low} to {high}")
    return value


def _text(field: Field, value: Any) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise refused(field.name, value, "UTF-8 text") from None
    if not isinstance(value, str):
        raise refused(field.name, value, "a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise refused(field.name, "a lone surrogate", "Unicode text") from None
    if not field.many and size > field.high:
        raise refused(field.name, value, f"at most {field.high} bytes")
    if field.choices and value not in field.choices:
        raise refused(field.name, value, ", ".join(map(repr, field.choices)))
    return value


def field_of(name: str) -> Field:
    field = INPUT_BY_NAME.get(name)
    if field is None:
        raise refused(name, "an input", OF_THE_SERVER if name == INSPECT else unknown(name))
    return field


def _outputs(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in OUTPUT_BY_NAME:
            raise refused("outputs", name, "names of the response, which the model's metadata has")
    every = len({*names, *NEEDED}) == len(OUTPUTS)  # with those that resuming needs, which `covey` takes for none
    return () if every else tuple(field.name for field in OUTPUTS if field.name in names)
