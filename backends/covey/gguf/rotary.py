"""Rotary positions of a GGUF file, as config.json says them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.contracts.errors import UnsupportedModel
from covey.gguf.file import GgufFile
from covey.gguf.numbers import Weight, chunks

FREQUENCIES = "rope_freqs.weight"  # a divisor of each rotary frequency
SCALING = "rope.scaling."
KEYS = frozenset({f"{SCALING}{key}" for key in ("type", "factor", "original_context_length", "finetuned")})
LOW, HIGH = 1.0, 4.0  # of Llama 3.1 to 3.3: wavelengths between them are scaled in part
ORIGINAL_LENGTHS = (8192, 4096, 2048, 16384, 32768, 65536, 131072)


def scaling(file: GgufFile, architecture: str, base: float, head_width: int) -> dict[str, Any] | None:
    """Return the `rope_scaling` of config.json, None where positions are as they are."""
    fields, within = file.fields, f"{architecture}.{SCALING}"
    factor = fields.number(f"{within}factor", 1.0)
    kind = fields.text(f"{within}type", "linear")
    by_field = None
    if factor not in (0.0, 1.0) and kind != "none":
        if kind not in ("linear", "yarn"):
            raise UnsupportedModel(f"rotary scaling {kind!r} is not supported: allowed: none, linear, yarn")
        by_field = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            length = fields.integer(f"{within}original_context_length")
            by_field |= {"original_max_position_embeddings": length}
    if FREQUENCIES not in file.tensors:
        return by_field
    if by_field is not None:
        raise UnsupportedModel(f"rotary scaling {kind!r} with {FREQUENCIES} is not supported: allowed: one of them")
    return _llama3(file, base, head_width)


def _llama3(file: GgufFile, base: float, head_width: int) -> dict[str, Any] | None:
    """Return the scaling of Llama 3 that gives the divisors in the file."""
    tensor = file.tensors[FREQUENCIES]
    if tensor.shape != (head_width // 2,):
        raise UnsupportedModel(f"{FREQUENCIES} is {list(tensor.shape)}, allowed: [{head_width // 2}]")
    divisors = next(chunks(file, Weight(FREQUENCIES, tensor))).reshape(-1)
    factor = float(f"{divisors.max():.5g}")  # as it was written before it was divided by
    if (divisors == 1.0).all():
        return None
    for length in ORIGINAL_LENGTHS:
        if np.allclose(divisors, _divisors(base, head_width, factor, length), rtol=1e-5, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": length,
            }
    raise UnsupportedModel(f"rotary divisors ({FREQUENCIES}) that are not Llama 3's are not supported")


def _divisors(base: float, head_width: int, factor: float, length: int) -> NDArray[np.float64]:
    """Return by what Llama 3 divides each frequency: 1 for short wavelengths, `factor` for long ones."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_width, 2) / head_width)
    kept = np.clip((length / wavelengths - LOW) / (HIGH - LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / factor + kept)
