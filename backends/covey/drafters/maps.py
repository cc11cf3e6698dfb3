"""A small Llama's linear maps in the forms that run fastest on a CPU, for few tokens and for many.

Norm weights, the square root of the width and attention's scale are inside the maps: h = x / |x| is all that is left
of a norm. Activations are float32 throughout (bfloat16's batched products of a few rows are four times slower); a
drafter's results may round differently from its model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from covey.drafters.weights import LlamaWeights
from covey.models.attention import Shape
from covey.models.product import Product, padded

Map = Callable[[torch.Tensor], torch.Tensor]

COPY_BYTES = 64 << 20  # a second copy of the weights, in float32, may take so much


@dataclass(frozen=True, slots=True)
class LayerMaps:
    qkv: Map
    out: Map
    gate_up: Map
    down: Map


@dataclass(frozen=True, slots=True)
class Maps:
    layers: tuple[LayerMaps, ...]
    head: Map
    bytes: int


@dataclass(frozen=True, slots=True)
class Folded:
    """The maps as float64 matrices: by layer qkv, out, gate_up, down; and the head."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], ...]
    head: torch.Tensor

    @property
    def count(self) -> int:
        return sum(matrix.numel() for layer in self.layers for matrix in layer) + self.head.numel()


def fold(weights: LlamaWeights, shape: Shape) -> Folded:
    root = weights.embedding.shape[1] ** 0.5
    scale = torch.ones(weights.layers[0].qkv.shape[0], 1, dtype=torch.float64)
    scale[: shape.heads * shape.head_dim] = shape.head_dim**-0.5
    layers = tuple(
        (
            layer.qkv.double() * (layer.before.double() * root) * scale,
            layer.out.double(),
            layer.gate_up.double() * (layer.after.double() * root),
            layer.down.double(),
        )
        for layer in weights.layers
    )
    return Folded(layers, weights.head.double() * (weights.norm.double() * root))


def plain_maps(folded: Folded, dtype: torch.dtype) -> Maps:
    """Maps for many tokens: in the model's own type, activations rounded to it only for the product itself."""

    def product(matrix: torch.Tensor) -> Map:
        apply = Product(matrix.to(dtype))

        def call(x: torch.Tensor) -> torch.Tensor:
            rows = len(x)
            missing = padded(rows, 1) - rows
            return apply(F.pad(x, (0, 0, 0, missing)).to(dtype))[:rows] if missing else apply(x.to(dtype))

        return call

    layers = tuple(LayerMaps(*map(product, layer)) for layer in folded.layers)
    return Maps(layers, product(folded.head), folded.count * dtype.itemsize)


def vector_maps(folded: Folded, dtype: torch.dtype) -> Maps:
    """Maps for one token or a few: float32 and, where it may be rounded so, a head of one byte per weight."""
    head = _byte_map(folded.head) if dtype == torch.bfloat16 else None
    layers = tuple(LayerMaps(*(Product(matrix.float()) for matrix in layer)) for layer in folded.layers)
    return Maps(layers, head or Product(folded.head.float()), folded.count * 4)


def _byte_map(weight: torch.Tensor) -> Map | None:
    """The product with a weight of one byte per number and a scale per row; None where that is not to be had."""
    scale = weight.abs().amax(1).clamp_min(1e-12) / 127
    small = (weight / scale[:, None]).round().to(torch.int8)
    factors = scale.bfloat16()

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch._weight_int8pack_mm(x.bfloat16(), small, factors)
        return result

    trial = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(4)).to(weight.dtype)
    try:
        rounded = product(trial).double()
    except (AttributeError, RuntimeError):
        return None
    expected = trial @ weight.t()
    return product if (rounded - expected).norm() <= 0.03 * expected.norm() else None
