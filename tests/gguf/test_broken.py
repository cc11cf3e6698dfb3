"""A GGUF file that is broken, or that says what is not supported, is refused in one line; no folder is left."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

from covey.contracts.errors import SettingError
from covey.gguf import folder
from tests.gguf import written

HUGE = 10**9
MOST_MEMORY = 30 << 20


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    of = written.model("llama", num_hidden_layers=1)
    return written.tiny(tmp_path_factory.mktemp("good") / "tiny.gguf", of=of).read_bytes()


@contextmanager
def refused(at: Path, match: str | None = None) -> Iterator[None]:
    with pytest.raises(SettingError, match=match) as caught:
        yield
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 1500
    assert not [path for path in at.iterdir() if path.suffix != ".gguf"]


def is_refused(at: Path, why: str, *, architecture: str = "llama", **how: Any) -> None:
    """Write a file of a Llama, but for what `how` says, and see that it is refused."""
    path = written.tiny(at / "tiny.gguf", architecture, written.model("llama"), **how)
    with refused(at, why):
        folder.write(path, at / "folder")


def head(*numbers: int, version: int = 3) -> bytes:
    """Return the beginning of a file: how many tensors and fields it says to have."""
    return b"GGUF" + struct.pack("<IQQ", version, *numbers)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(kind: int, count: int) -> bytes:
    return text("a") + struct.pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cut short"),
        (b"GGML" + bytes(60), "does not begin with GGUF"),
        (head(0, 0, version=1), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "a big-endian file"),
        (head(0, HUGE), "1000000000 fields .* allowed: 65536 of each"),
        (head(HUGE, 0), "1000000000 tensors, allowed: 65536 of each"),
        (head(0, 9), "cut short, or its sizes are wrong"),
        (head(9, 0), "cut short, or its sizes are wrong"),
        (head(2**63, 2**63), "allowed: 65536 of each"),
        (head(0, 1) + struct.pack("<Q", 2**62), "a text at byte 24 has .* bytes, allowed"),
        (head(0, 1) + array(8, HUGE), "cut short, or its sizes are wrong"),
        (head(0, 1) + array(6, HUGE), "cut short, or its sizes are wrong"),
        (head(0, 1) + array(9, HUGE), "lists in a list"),
        (head(0, 1) + text("a") + struct.pack("<I", 77), "is of type 77"),
        (head(0, 1) + text("a") + struct.pack("<I", 8) + struct.pack("<Q", 2) + b"\xff\xff", "not UTF-8"),
        (head(0, 2) + 2 * (text("a") + struct.pack("<IB", 0, 1)), "two fields a"),
        (head(1, 0) + text("t") + struct.pack("<I", 2**31) + bytes(40), "dimensions, allowed: 1 to 4"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 2**30, 2**30, 0, 0) + bytes(90), "the file has"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 2**63, 2**63, 0, 0) + bytes(90), "allowed: rows"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 0, 8, 0, 0) + bytes(90), "allowed: rows"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 8, 8, 8, 0) + bytes(990), "whole blocks of 32"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 32, 8, 20, 0) + bytes(990), "of type IQ4_NL is not"),
        (head(1, 0) + text("t") + struct.pack("<IQQIQ", 2, 32, 8, 999, 0) + bytes(990), "of type 999 is not"),
        (head(2, 0) + 2 * (text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)) + bytes(990), "two tensors t"),
        (
            head(2, 0)
            + b"".join(text(name) + struct.pack("<IQIQ", 1, 16, 0, 32 * at) for at, name in enumerate("ab"))
            + bytes(990),
            "tensors a and b lie over each other",
        ),
        (head(0, 0), "no field general.architecture"),
    ],
)
def test_a_broken_file_is_refused_in_little_memory(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    tracemalloc.start()
    with refused(tmp_path, why):
        folder.write(tmp_path / "broken.gguf", tmp_path / "folder")
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    tracemalloc.stop()


def test_a_file_that_was_cut_short_anywhere_is_refused(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for end in range(0, len(good) - 1, 997):
        path.write_bytes(good[:end])
        with refused(tmp_path):
            folder.write(path, tmp_path / "folder")


def test_random_bytes_in_the_fields_are_refused_or_served(good: bytes, tmp_path: Path) -> None:
    draw, path, others = random.Random(11), tmp_path / "changed.gguf", 0
    fields = good.index(b"blk.0.attn_q.weight") + 2_000
    for number in range(150):
        changed = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(4, fields)
            changed[at : at + draw.choice((1, 4, 8))] = draw.randbytes(draw.choice((1, 4, 8)))
        path.write_bytes(changed)
        with suppress(SettingError):  # anything else fails the test
            folder.write(path, tmp_path / f"folder-{number}")
            others += 1
    assert len(list(tmp_path.iterdir())) == 1 + others


@pytest.mark.parametrize(
    ("make", "why"),
    [(os.mkfifo, "no regular file"), (os.mkdir, "no regular file"), (lambda _: None, "no such file")],
    ids=["pipe", "folder", "nothing"],
)
def test_what_is_no_file_is_not_opened(make: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    make(tmp_path / "pipe.gguf")
    with refused(tmp_path, why):
        folder.write(tmp_path / "pipe.gguf", tmp_path / "folder")


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"expert_count": 8}, "a mixture of experts"),
    ({"attention.scale": 0.5}, "field llama.attention.scale is not supported"),
    ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "rotary scaling 'longrope'"),
    ({"rope.dimension_count": 4}, "rope.dimension_count 4 with heads of 8"),
    ({"block_count": HUGE}, "allowed: 1 to"),
    ({"block_count": 1 << 20}, "tensors for 1048576 layers"),
    ({"block_count": 3}, "it has no tensor blk.2"),
    ({"block_count": 0}, "block_count is 0"),
    ({"block_count": "two"}, "block_count is 'two', allowed: a whole number"),
    ({"embedding_length": 64}, "by the fields"),
    ({"attention.head_count": 3, "attention.key_length": None}, "by the fields"),
    ({"attention.layer_norm_rms_epsilon": 1}, "allowed: a number"),
    ({"rope.freq_base": math.nan}, "rope.freq_base is nan, allowed: finite numbers"),
]
TENSORS = [
    ("blk.0.attn_q.bias", 32, "tensor blk.0.attn_q.bias is not supported"),
    ("rope_freqs.weight", 4, "that are not Llama 3's"),
    ("rope_freqs.weight", 5, "rope_freqs.weight is .5., allowed: .4."),
]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"architecture": "falcon"}, "architecture 'falcon' is not supported: allowed: llama, qwen2, qwen3, gemma3"),
        ({"split__count": 3}, "one of 3 parts"),
        ({"general__type": "adapter"}, "type 'adapter'"),
        *(({"said": said}, why) for said, why in FIELDS),
        *(({"numbers": {name: np.linspace(1, 5, size, dtype=np.float32)}}, why) for name, size, why in TENSORS),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(how: dict[str, Any], why: str, tmp_path: Path) -> None:
    is_refused(tmp_path, why, **how)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16])
def test_infinite_numbers_are_refused(kind: Kind, tmp_path: Path) -> None:
    name = "blk.1.ffn_up.weight"
    numbers = written.tensors("llama", written.model("llama"))[name]
    numbers[3, 4] = np.inf
    is_refused(tmp_path, f"{name} has a number that is NaN or infinite", numbers={name: numbers}, kind=kind)


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    words = [sys.executable, "-m", "covey.gguf", str(tmp_path / "broken.gguf"), str(tmp_path / "folder")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    why = "it is cut short, or its sizes are wrong: 8 bytes wanted, it has 4"
    assert done.stderr == f"covey: {tmp_path / 'broken.gguf'}: {why}\n"
