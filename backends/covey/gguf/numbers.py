"""Numbers of tensors: from the file's types to float32, and to the type that a folder's weights have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray

from covey.contracts.errors import SettingError
from covey.gguf.file import GgufFile, Tensor

Floats = NDArray[np.float32]
BFLOAT16, FLOAT16, FLOAT32 = "BF16", "F16", "F32"  # safetensors' names of types
BYTES = {BFLOAT16: 2, FLOAT16: 2, FLOAT32: 4}
CHUNK = 1 << 20  # numbers in memory at once, but for a row that is longer


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the folder and where its numbers come from."""

    name: str
    tensor: Tensor
    paired_heads: int = 0  # the rows of this number of heads are in llama.cpp's order; 0: in Hugging Face's
    added: float = 0.0  # the file's numbers are this much larger

    @property
    def size(self) -> int:
        return int(np.prod(self.tensor.shape))


def chunks(file: GgufFile, weight: Weight) -> Iterator[Floats]:
    """Yield a weight's numbers in float32, some rows at once. Raises SettingError for a NaN or an infinite one."""
    tensor = weight.tensor
    step = max(1, CHUNK // tensor.shape[-1])
    ordered = halves_apart(file.raw(tensor), weight.paired_heads) if weight.paired_heads else None
    for first in range(0, tensor.rows, step):
        count = min(step, tensor.rows - first)
        raw = file.raw(tensor, first, count) if ordered is None else ordered[first : first + count]
        with np.errstate(all="ignore"):  # random scales overflow; the check below names the tensor
            numbers: Floats = dequantize(raw.reshape(1, -1), tensor.kind).reshape(count, -1)
            if not np.isfinite(numbers).all():
                raise SettingError(
                    f"tensor {tensor.name} has a number that is NaN or infinite, allowed: finite numbers"
                )
        yield numbers - np.float32(weight.added) if weight.added else numbers


def halves_apart(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return a projection's rows in Hugging Face's order, which pairs the two halves of a head for its rotary
    positions. llama.cpp pairs neighbours: rows 0 1 2 3 of a head of 4 are rows 0 2 1 3 there."""
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def stored_type(file: GgufFile, weights: Iterable[Weight]) -> str:
    """Return the type of the folder's weights: the smallest that keeps every value of a file in F16 and F32, bfloat16
    for a file of other types."""
    weights = list(weights)
    if any(weight.tensor.kind not in (Kind.F16, Kind.F32) for weight in weights if len(weight.tensor.shape) > 1):
        return BFLOAT16
    fitting = [BFLOAT16, FLOAT16]
    for weight in weights:
        for numbers in chunks(file, weight):
            fitting = [name for name in fitting if _keeps(numbers, name)]
            if not fitting:
                return FLOAT32
    return fitting[0]


def encoded(numbers: Floats, name: str) -> NDArray[Any]:
    """Return numbers in a type of safetensors, rounded to nearest, ties to even."""
    if name == FLOAT32:
        return np.asarray(numbers, "<f4")
    if name == FLOAT16:
        return numbers.astype("<f2")
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype("<u2")


def _keeps(numbers: Floats, name: str) -> bool:
    if name == BFLOAT16:
        return not (np.ascontiguousarray(numbers).view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16).astype(np.float32) == numbers).all())
