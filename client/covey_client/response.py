"""Decodes answers: one Chunk per response of the server, a Completion for the whole."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from covey_client.errors import ServerError
from covey_client.wire import CHUNK, FORMATS, OUTPUT_BY_NAME, OUTPUTS, USAGE, Field

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2

_KINDS: dict[str, Callable[..., Any]] = {"INT32": int, "UINT64": int, "FP32": float, "BOOL": bool, "BYTES": str}
_Made = TypeVar("_Made")
Places = tuple[tuple[tuple[int, float], ...], ...]  # of tokens: ids with their log-probabilities
_OF_PROMPT = ("prompt_ids", "prompt_log_probs", "prompt_top_ids", "prompt_top_log_probs")  # of the first chunk
_LISTS = ("tokens", "log_probs", "top_ids", "top_log_probs", *_OF_PROMPT)


@dataclass(frozen=True)
class Usage:
    """Totals of the request. Chunks before the last have none."""

    input_tokens: int = 0
    output_tokens: int = 0
    reused_tokens: int = 0  # of the input, found in the prefix cache
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    acceptance_rate: float = 0.0
    mean_acceptance_length: float = 0.0  # tokens per verified draft, including the target's own one
    acceptance_histogram: tuple[int, ...] = ()  # index j: drafts with j accepted tokens
    drafters: tuple[str, ...] = ()  # names, and tokens drafted and accepted by each of them
    draft_tokens_by_drafter: tuple[int, ...] = ()
    accepted_draft_tokens_by_drafter: tuple[int, ...] = ()
    ttft_ms: float = 0.0  # as the server measured them; 0: no such token
    tpot_ms: float = 0.0


@dataclass(frozen=True)
class Chunk:
    """The content of one response."""

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str  # "" until the last: eos, stop, length or cancelled
    seed: int
    usage: Usage
    slo_attainment: str = ""  # on the last: met, missed or unknown; "" where there was no objective
    emulated: bool = False  # an emulated device made this: the text is no model's
    top_ids: tuple[int, ...] = ()  # see `top`
    top_log_probs: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()  # on the first chunk if `return_prompt_log_probs` is set; so are the next fields
    prompt_log_probs: tuple[float, ...] = ()  # from the second token on
    prompt_top_ids: tuple[int, ...] = ()  # see `prompt_top`
    prompt_top_log_probs: tuple[float, ...] = ()

    @property
    def top(self) -> Places:
        """Return, for each token, the `top_logprobs` likeliest ones at its place with their log-probabilities, the
        likeliest first."""
        return _places_of(len(self.tokens), self.top_ids, self.top_log_probs)

    @property
    def prompt_top(self) -> Places:
        """Return the same for each of `prompt_log_probs`."""
        return _places_of(len(self.prompt_log_probs), self.prompt_top_ids, self.prompt_top_log_probs)


def _places_of(places: int, ids: Sequence[int], log_probs: Sequence[float]) -> Places:
    count, pairs = len(ids) // max(1, places), list(zip(ids, log_probs))
    return tuple(tuple(pairs[place * count : (place + 1) * count]) for place in range(places))


@dataclass(frozen=True)
class Completion(Chunk):
    """A whole answer. Its seed gives the same answer again, also if the server chose it."""

    @classmethod
    def join(cls, chunks: Iterable[Chunk]) -> Completion:
        """Join all chunks of an answer, including the last one."""
        parts = list(chunks)
        joined = {name: tuple(value for part in parts for value in getattr(part, name)) for name in _LISTS}
        return cls(**vars(parts[-1]) | joined | {"text": "".join(part.text for part in parts)})


def from_grpc(message: service_pb2.ModelInferResponse) -> Chunk | None:
    """Return the chunk in one response; None for the empty final response."""
    if not message.outputs:
        return None
    chunk, usage = dict(_NOTHING[CHUNK]), dict(_NOTHING[USAGE])
    places = _places(tuple([(tensor.name, tensor.datatype) for tensor in message.outputs]))
    for place, data in zip(places, message.raw_output_contents):
        if place is not None:
            part, attribute, read = place
            (usage if part == USAGE else chunk)[attribute] = read(data)
    return _made(Chunk, {**chunk, "usage": _made(Usage, usage)})


def _foreign(names: Iterable[str]) -> ServerError:
    return ServerError(f"the answer has none of Covey's outputs, only {sorted(names)}")


def _value(field: Field, found: Sequence[Any]) -> Any:
    return tuple(found) if field.many else _KINDS[field.dtype](*found[:1])


@lru_cache(maxsize=64)
def _places(tensors: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str, Callable[[bytes], Any]] | None, ...]:
    """Return, for each output, where it belongs and how its bytes are read; None for an unknown one."""
    fields = [OUTPUT_BY_NAME.get(name) for name, _ in tensors]
    if not any(fields):
        raise _foreign(name for name, _ in tensors)
    return tuple(
        None if field is None else (field.part, field.attribute, _reader(field, dtype))
        for field, (_, dtype) in zip(fields, tensors)
    )


def _reader(field: Field, dtype: str) -> Callable[[bytes], Any]:
    if dtype not in FORMATS or field.many:
        return lambda data: _value(field, _unpack(dtype, data))
    one, nothing = struct.Struct(f"<{FORMATS[dtype]}"), _value(field, ())
    return lambda data: one.unpack_from(data)[0] if data else nothing


def _made(cls: type[_Made], values: Mapping[str, Any]) -> _Made:
    """Return a frozen dataclass with all its fields set. Its own constructor sets them one by one, which takes several
    times as long, and answers come token by token."""
    made = object.__new__(cls)
    vars(made).update(values)
    return made


def _unpack(dtype: str, data: bytes) -> list[Any]:
    if dtype == "BYTES":
        found: list[Any] = []
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            found.append(data[at + 4 : at + 4 + length].decode(errors="replace"))
            at += 4 + length
        return found
    if dtype not in FORMATS:
        return []
    size = struct.calcsize(FORMATS[dtype])
    return list(struct.unpack(f"<{len(data) // size}{FORMATS[dtype]}", data))


_NOTHING = {
    part: {field.attribute: _value(field, ()) for field in OUTPUTS if field.part == part} for part in (CHUNK, USAGE)
}
