"""The work of a layer around its attention, in two forms that agree up to rounding: `ByLibrary` uses the library's
products; `Fixed` uses blocks of one shape, so a row's bits do not depend on the rest of the pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton

from covey.contracts.errors import UnsupportedModel
from covey.gpu.kernels.norms import add_and_norm, gate
from covey.gpu.kernels.products import fixed, multiply

GATE_PIECE = 1024


class Layer:
    """The weights of one layer; maps of the same input are joined."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.beside = layer.hidden_norm.weight if hasattr(layer, "hidden_norm") else None  # of a head's states
        self.normed_residual = bool(getattr(layer, "normed_residual", False))
        self.qkv, self.qkv_bias = _join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.out_bias = _join(attention.o_proj)
        self.gate_up, self.gate_up_bias = _join(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = _join(mlp.down_proj)
        norms = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.normed = norms[0] is not None
        self.query_norm = norms[0].weight if norms[0] is not None else self.before
        self.key_norm = norms[1].weight if norms[1] is not None else self.before

    @property
    def bytes(self) -> int:
        parts = (self.before, self.after, self.qkv, self.out, self.gate_up, self.down)
        return sum(part.numel() * part.element_size() for part in parts)


class ByLibrary:
    """The residual stream of one pass. It overwrites `start` [tokens, width], and launches nine kernels a layer,
    attention included."""

    def __init__(self, start: torch.Tensor, epsilon: float) -> None:
        self.stream, self._epsilon = start, epsilon
        self._delta: torch.Tensor | None = None  # still to be added to the stream
        self._normed = torch.empty_like(start)

    def queries_keys_values(self, layer: Layer) -> torch.Tensor:
        return self.product(self.last(layer.before), layer.qkv, layer.qkv_bias)

    def of_pair(self, layer: Layer, told: torch.Tensor) -> torch.Tensor:
        """Return the same for a head's layer, which reads normed embeddings `told` beside the stream."""
        assert layer.beside is not None, "only a head's layer reads two"
        beside = self.last(layer.beside)
        if layer.normed_residual:
            self.stream = beside.clone()
        return self.product(torch.cat([told, beside], -1), layer.qkv, layer.qkv_bias)

    def take(self, layer: Layer, attended: torch.Tensor) -> None:
        """Add the output of attention [tokens, heads * head_dim]."""
        self._delta = F.linear(attended, layer.out, layer.out_bias)

    def feed_forward(self, layer: Layer) -> None:
        both = F.linear(self.last(layer.after), layer.gate_up, layer.gate_up_bias)
        size, inner = len(both), both.new_empty(len(both), both.shape[1] // 2)
        gate[(size, triton.cdiv(inner.shape[1], GATE_PIECE))](both, inner, SIZE=inner.shape[1], S=GATE_PIECE)
        self._delta = F.linear(inner, layer.down, layer.down_bias)

    def last(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the normed stream."""
        size, width = self.stream.shape
        add_and_norm[(size,)](
            self.stream,
            self.stream if self._delta is None else self._delta,
            norm,
            self._normed,
            self._epsilon,
            ADDED=self._delta is not None,
            WIDTH=width,
            W=triton.next_power_of_2(width),
            num_warps=8 if width > 2048 else 4,
        )
        self._delta = None
        return self._normed

    @staticmethod
    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)


class Fixed(ByLibrary):
    """The form in which a row's bits depend neither on the other rows nor on their number. The shape of a block depends
    only on its matrix. Its products add to the stream themselves."""

    def take(self, layer: Layer, attended: torch.Tensor) -> None:
        self._add(attended, layer.out, layer.out_bias)

    def feed_forward(self, layer: Layer) -> None:
        before = self.last(layer.after)
        inner = before.new_empty(len(before), len(layer.gate_up) // 2)
        block = fixed(inner.shape[1], before.itemsize, gated=True)
        multiply(block, before, layer.gate_up, layer.gate_up_bias, inner, gated=True)
        self._add(inner, layer.down, layer.down_bias)

    @staticmethod
    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = x.new_empty(len(x), len(weight))
        multiply(fixed(len(weight), x.itemsize), x, weight, bias, out)
        return out

    def _add(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        multiply(fixed(len(weight), x.itemsize), x, weight, bias, self.stream, added=True)


def _join(*linears: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Join weights and biases of linear maps of the same input. Raises UnsupportedModel if only some have a bias."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if biases and len(biases) != len(linears):
        raise UnsupportedModel("the kernels need a bias in all or none of a layer's maps that share an input")
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    weight = torch.cat([linear.weight for linear in linears])
    return weight, torch.cat(biases) if biases else None
