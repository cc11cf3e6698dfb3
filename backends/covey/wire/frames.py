"""One message of the private link between two models (`covey.tritonio.link`), as bytes.

    |<- 4 bytes: length of the head ->|<- head, JSON ->|<- the arrays' bytes, one behind the other ->|

The head is [exchange, kind, value, arrays], and says of each array its name, type, shape and bytes. Nothing that is
read can run: numbers, texts and lists of them, and arrays of a few types. Texts are arrays of bytes objects; each has
its length in 4 bytes before it. safetensors has no texts, and takes three times as long to write a message.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from covey.contracts.errors import BadField, PortError
from covey.wire.checks import must

MOST_BYTES = (1 << 30) + (1 << 26)  # the longest prompt that a profile can allow, and room for the rest
_HEAD = struct.Struct("=I")
_TEXTS = "texts"
_NUMBERS = {dtype.str: dtype for dtype in map(np.dtype, "?bBhHiIqQefd")}

Array = npt.NDArray[Any]


class Message(NamedTuple):
    """`exchange` is the caller's id of what this belongs to, `value` what JSON can say."""

    exchange: int
    kind: str
    value: Any = None
    arrays: Mapping[str, Array] = MappingProxyType({})


def encode(message: Message) -> bytes:
    """Raises BadField for what is longer than a frame may be, TypeError for what has no place in one."""
    described, parts = [], []
    for name, array in message.arrays.items():
        texts = array.dtype == np.object_
        data = _texts_out(array) if texts else np.ascontiguousarray(array).tobytes()
        if not texts and array.dtype.str not in _NUMBERS:
            raise TypeError(f"{name}: arrays of {array.dtype} do not go over the link")
        described.append([name, _TEXTS if texts else array.dtype.str, array.shape, len(data)])
        parts.append(data)
    head = json.dumps([message.exchange, message.kind, message.value, described]).encode()
    length = _HEAD.size + len(head) + sum(map(len, parts))
    if length > MOST_BYTES:
        raise BadField("request", f"{length} bytes", f"at most {MOST_BYTES} bytes in all")
    return b"".join((_HEAD.pack(len(head)), head, *parts))


def decode(frame: bytes) -> Message:
    """Raises PortError for anything that `encode` did not make."""
    must(len(frame) >= _HEAD.size, "%d bytes", len(frame))
    at = _HEAD.size + _HEAD.unpack_from(frame)[0]
    must(at <= len(frame), "a head of %d bytes in %d", at, len(frame))
    try:
        exchange, kind, value, described = json.loads(frame[_HEAD.size : at])
        arrays = {}
        for name, dtype, shape, size in described:
            arrays[name], at = _array(frame, at, dtype, tuple(shape), size), at + size
    except (TypeError, ValueError, KeyError, struct.error) as error:
        raise PortError(f"damaged message: {type(error).__name__}: {error}") from None
    must(at == len(frame), "%d bytes where its arrays end after %d", len(frame), at)
    must(isinstance(exchange, int) and isinstance(kind, str), "its exchange is %r, its kind %r", exchange, kind)
    return Message(exchange, kind, value, arrays)


def _array(frame: bytes, at: int, dtype: str, shape: tuple[int, ...], size: int) -> Array:
    count = math.prod(shape)
    must(min(shape, default=0) >= 0 and 0 <= size <= len(frame) - at, "%d bytes for an array of %s", size, shape)
    if dtype == _TEXTS:
        return _texts_in(frame, at, size, count).reshape(shape)
    kind = _NUMBERS[dtype]
    must(count * kind.itemsize == size, "%d bytes for an array of %s", size, shape)
    return np.frombuffer(frame, kind, count, at).reshape(shape).copy()


def _texts_out(array: Array) -> bytes:
    pieces = []
    for text in array.reshape(-1):
        if not isinstance(text, bytes):
            raise TypeError(f"{type(text).__name__} among texts: due are bytes")
        pieces += [_HEAD.pack(len(text)), text]
    return b"".join(pieces)


def _texts_in(frame: bytes, at: int, size: int, count: int) -> Array:
    end, texts = at + size, []
    must(count * _HEAD.size <= size, "%d texts in %d bytes", count, size)
    for _ in range(count):
        start = at + _HEAD.size
        must(start <= end, "a text begins behind the last")
        at = start + _HEAD.unpack_from(frame, at)[0]
        must(at <= end, "a text ends behind the last")
        texts.append(frame[start:at])
    must(at == end, "bytes behind the last text")
    array = np.empty(count, np.object_)
    array[:] = texts
    return array
