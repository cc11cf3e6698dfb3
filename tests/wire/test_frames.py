"""Frames of the private link: what is sent arrives, and nothing else is read."""

from __future__ import annotations

import pickle
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import BadField, PortError
from covey.wire import frames
from covey.wire.frames import Message, decode, encode

ARRAYS = {
    "text_input": np.array(["Jörg".encode(), b"", b"\xff\x00"], np.object_),
    "input_ids": np.array([1, -2, 1 << 30], np.int32),
    "temperature": np.array([0.7], np.float32),
    "seed": np.array([(1 << 64) - 1], np.uint64),
    "stream": np.array([True, False]),
    "of_two_dimensions": np.arange(6, dtype=np.int64).reshape(2, 3),
    "every_other": np.arange(6, dtype=np.int16)[::2],
    "none": np.zeros((0, 4), np.float64),
}
WHOLE = Message(7, "submit", {"a": [1, 2.5, None, "\ud800"], "\0": True}, ARRAYS)


def test_a_message_survives() -> None:
    found = decode(encode(WHOLE))
    assert found[:3] == WHOLE[:3]
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype, name
        assert found.arrays[name].shape == array.shape, name
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].flags.writeable
    assert decode(encode(Message(0, "drain"))) == Message(0, "drain")


@pytest.mark.parametrize(
    "arrays", [{"a": np.array(["text"], np.object_)}, {"a": np.array(["2026"], "M8[Y]")}, {"a": np.zeros(1, "V4")}]
)
def test_what_has_no_place_in_a_frame_is_not_sent(arrays: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        encode(Message(1, "submit", None, arrays))


def test_a_frame_is_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(WHOLE)
    monkeypatch.setattr(frames, "MOST_BYTES", len(frame))
    assert encode(WHOLE) == frame
    monkeypatch.setattr(frames, "MOST_BYTES", len(frame) - 1)
    with pytest.raises(BadField, match=f"{len(frame)} bytes"):
        encode(WHOLE)


def framed(head: str, body: bytes = b"") -> bytes:
    return struct.pack("=I", len(head)) + head.encode() + body


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        struct.pack("=I", 1 << 31),
        framed("{"),
        framed("[1, null]"),
        framed("5"),
        framed('["1", "submit", null, []]'),
        framed('[1, "submit", null, []]', b"behind"),
        framed('[1, "submit", null, [["a", "<i4", [2], 4]]]', bytes(4)),
        framed('[1, "submit", null, [["a", "<i4", [1], 4]]]'),
        framed('[1, "submit", null, [["a", "<i4", [-1], -4]]]', bytes(4)),
        framed('[1, "submit", null, [["a", "<i4", [-1, -1], 4]]]', bytes(4)),
        framed('[1, "submit", null, [["a", "|O", [1], 8]]]', bytes(8)),
        framed('[1, "submit", null, [["a", "texts", [1], 4]]]', bytes(4)),
        framed('[1, "submit", null, [["a", "texts", [1], [4]]]]'),
        framed('[1, "submit", null, [["a", "texts", [1], ["\u0100"]]]]'),
        framed('[1, "submit", null, [["a", "texts", [1000000000000], ["a"]]]]'),
        framed('[1, "submit", null, [["a", "<i4", ["1"], 4]]]', bytes(4)),
        pickle.dumps((1, "submit", None)),
    ],
)
def test_anything_else_is_refused(frame: bytes) -> None:
    with pytest.raises(PortError, match="damaged message"):
        decode(frame)


def test_frames_that_are_cut_or_changed_are_refused_or_harmless() -> None:
    frame, rng = encode(WHOLE), np.random.default_rng(0)
    for count in range(len(frame)):
        with pytest.raises(PortError):
            decode(frame[:count])
    for place in range(len(frame)):
        changed = bytearray(frame)
        changed[place] = int(rng.integers(256))
        with suppress(PortError):
            decode(bytes(changed))
