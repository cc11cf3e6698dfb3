"""The bytes of memory that a model takes here, by its architecture."""

from __future__ import annotations

import math

from covey.models.native import BLOCK, LANES, SMALL
from covey.models.native.architecture import EMBEDDING, HEAD, Architecture
from covey.process import cpu


def block_bytes(of: Architecture, dtype: str, taps: int = 0) -> int:
    """Return the bytes of one KV block of a model whose slots also keep so many numbers of taps."""
    number = 4 if dtype == "float32" else 2
    plane = of.kv_heads * -(-of.head_dim // LANES) * LANES * BLOCK * number
    return (2 * of.layers + planes_of_taps(taps, plane)) * plane


def planes_of_taps(numbers: int, size: int) -> int:
    """Return how many planes with blocks of `size` bytes are needed to keep so many numbers of each slot."""
    return -(-numbers * 2 * BLOCK // size)


def weight_bytes(of: Architecture, dtype: str) -> int:
    """Return the bytes of a model's weights as passes read them. Matrices in bfloat16 stay so in a float32 model. An
    embedding that is not mapped from its file is held in addition to the head."""
    matrices = {tensor.dtype for tensor in of.weights.values() if len(tensor.shape) == 2}
    each = 4 if dtype == "float32" and matrices != {"BF16"} else 2
    number = 1 if dtype == SMALL and cpu.multiplies_bytes() else each
    total = number * sum(math.prod(tensor.shape) for tensor in of.weights.values())
    embedding, counted = of.weights[EMBEDDING], number if HEAD in of.weights else 0  # else it is counted as the head
    return total if embedding.dtype == "BF16" else total + (each - counted) * math.prod(embedding.shape)
