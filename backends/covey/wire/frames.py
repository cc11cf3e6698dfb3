"""One message of the private link between two models (`covey.tritonio.link`), as bytes.

    |<- 4 bytes: length of the head ->|<- head, JSON ->|<- the arrays' bytes, one after the other ->|

The head is [exchange, kind, value, arrays], and gives each array's name, type, shape and number of bytes. Decoding runs
no code of the sender: there are only numbers, texts, lists of them, and arrays of a few types. The head holds an array
of bytes objects itself, in place of a number of bytes. safetensors has no texts, and takes three times as long to
write.
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

MOST_BYTES = (1 << 30) + (1 << 26)  # the longest prompt that a profile can allow, and 64 MiB for all else
_HEAD = struct.Struct("=I")
_TEXTS, _BYTES = "texts", "latin-1"  # an encoding that makes each byte one character
_NUMBERS = {dtype.str: dtype for dtype in map(np.dtype, "?bBhHiIqQefd")}

Array = npt.NDArray[Any]


class Message(NamedTuple):
    """`exchange` is the caller's id of the request that this belongs to; `value` is anything that JSON can hold."""

    exchange: int
    kind: str
    value: Any = None
    arrays: Mapping[str, Array] = MappingProxyType({})


def encode(message: Message) -> bytes:
    """Return the frame. Raises BadField if it is too long, TypeError for an array that a frame cannot hold."""
    described: list[list[Any]] = []
    parts: list[bytes] = []
    for name, array in message.arrays.items():
        if array.dtype == np.object_:
            described.append([name, _TEXTS, array.shape, [str(text, _BYTES) for text in array.reshape(-1)]])
        elif array.dtype.str in _NUMBERS:
            parts.append(np.ascontiguousarray(array).tobytes())
            described.append([name, array.dtype.str, array.shape, len(parts[-1])])
        else:
            raise TypeError(f"{name}: the link cannot carry arrays of {array.dtype}")
    text = json.dumps([message.exchange, message.kind, message.value, described], ensure_ascii=False)
    head = text.encode(errors="surrogatepass")
    length = _HEAD.size + len(head) + sum(map(len, parts))
    if length > MOST_BYTES:
        raise BadField("request", f"{length} bytes", f"at most {MOST_BYTES} bytes in all")
    return b"".join((_HEAD.pack(len(head)), head, *parts))


def decode(frame: bytes) -> Message:
    """Return the message. Raises PortError for a frame that `encode` did not make."""
    must(len(frame) >= _HEAD.size, "%d bytes", len(frame))
    at = _HEAD.size + _HEAD.unpack_from(frame)[0]
    must(at <= len(frame), "a head that ends at byte %d of %d", at, len(frame))
    try:
        exchange, kind, value, described = json.loads(frame[_HEAD.size : at].decode(errors="surrogatepass"))
        arrays = {}
        for name, dtype, shape, given in described:
            if dtype == _TEXTS:
                arrays[name] = _texts(given).reshape(shape)
            else:
                arrays[name], at = _numbers(frame, at, dtype, tuple(shape), given), at + given
    except (TypeError, ValueError, KeyError, struct.error) as error:
        raise PortError(f"damaged message: {type(error).__name__}: {error}") from None
    must(at == len(frame), "%d bytes, but its arrays end after %d", len(frame), at)
    must(isinstance(exchange, int) and isinstance(kind, str), "its exchange is %r, its kind %r", exchange, kind)
    return Message(exchange, kind, value, arrays)


def _numbers(frame: bytes, at: int, dtype: str, shape: tuple[int, ...], size: int) -> Array:
    count, kind = math.prod(shape), _NUMBERS[dtype]
    must(min(shape, default=0) >= 0 and 0 <= size <= len(frame) - at, "%d bytes for an array of %s", size, shape)
    must(count * kind.itemsize == size, "%d bytes for an array of %s", size, shape)
    return np.frombuffer(frame, kind, count, at).reshape(shape).copy()


def _texts(given: list[str]) -> Array:
    array = np.empty(len(given), np.object_)
    array[:] = [bytes(text, _BYTES) for text in given]
    return array
