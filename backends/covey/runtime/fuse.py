"""A short forward pass for the Llama-shaped family: RMSNorm, rotary positions, gated feed-forward, any key head count.

The transformers modules cost 0.3 ms of Python per layer, more than a small layer computes. This is the same
arithmetic on the same weights in some fifteen calls per layer, with query, key and value, and gate and up, each one
product. It claims nothing about a model: whoever builds one compares it with the modules' own pass and drops it where
they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from covey.runtime.attention import Plan, Shape, attend
from covey.runtime.numerics import Matrix


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """What a layer's attention was called with."""

    scale: float
    window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class _Layer:
    before: torch.Tensor  # norm weights
    after: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    gate_up: torch.Tensor
    down: torch.Tensor
    setting: AttentionSetting
    pool: torch.Tensor


class FusedDecoder:
    """Token ids to the last hidden states; raises AttributeError when built on modules of another shape."""

    def __init__(
        self, module: Any, shape: Shape, settings: list[AttentionSetting], pools: list[torch.Tensor], positions: int
    ) -> None:
        core = module.model
        self._shape = shape
        self._embedding: torch.Tensor = core.embed_tokens.weight
        self._norm: torch.Tensor = core.norm.weight
        self._eps = float(core.norm.variance_epsilon)
        self._width = (self._embedding.shape[1],)
        self._act: Callable[[torch.Tensor], torch.Tensor] = core.layers[0].mlp.act_fn
        if isinstance(self._act, torch.nn.SiLU) or type(self._act).__name__ == "SiLUActivation":
            self._act = F.silu
        self._layers = [
            _take(layer, setting, pool) for layer, setting, pool in zip(core.layers, settings, pools, strict=True)
        ]
        at = torch.arange(positions, device=self._embedding.device)
        cos, sin = core.rotary_emb(self._embedding[:1], at[None])
        half = shape.head_dim // 2
        if cos.shape[-1] != shape.head_dim:
            raise AttributeError("partial rotary")
        self._cos = cos[0]
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)  # of x and x rolled by half a head

    def matrices(self) -> list[Matrix]:
        """The linear maps of the first layer, as they are applied."""
        layer = self._layers[0]
        return [
            Matrix(layer.qkv, layer.qkv_bias),
            Matrix(layer.out, layer.out_bias),
            Matrix(layer.gate_up, None),
            Matrix(layer.down, None),
        ]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, plan: Plan) -> torch.Tensor:
        shape = self._shape
        heads, both, dim = shape.heads, shape.heads + shape.kv_heads, shape.head_dim
        width, eps, act = self._width, self._eps, self._act
        size = tokens.shape[0]
        x = F.embedding(tokens, self._embedding)
        cos = x.new_ones(size, both + shape.kv_heads, dim)  # values turn by nothing
        sin = x.new_zeros(size, both + shape.kv_heads, dim)
        cos[:, :both] = self._cos.index_select(0, positions)[:, None]
        sin[:, :both] = self._sin.index_select(0, positions)[:, None]
        for layer in self._layers:
            h = F.rms_norm(x, width, layer.before, eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(size, -1, dim)
            if layer.query_norm is not None and layer.key_norm is not None:
                query = F.rms_norm(qkv[:, :heads], (dim,), layer.query_norm, eps)
                key = F.rms_norm(qkv[:, heads:both], (dim,), layer.key_norm, eps)
                qkv = torch.cat((query, key, qkv[:, both:]), 1)
            qkv = torch.addcmul(qkv * cos, qkv.roll(dim // 2, -1), sin)
            layer.pool.index_copy_(1, slots, qkv[:, heads:].transpose(0, 1))
            setting = layer.setting
            h = attend(plan, qkv[:, :heads], layer.pool, setting.scale, setting.window, setting.softcap)
            x = x + F.linear(h, layer.out, layer.out_bias)
            h = F.rms_norm(x, width, layer.after, eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, -1)
            x = x + F.linear(act(gate) * up, layer.down)
        return F.rms_norm(x, width, self._norm, eps)


def _take(layer: Any, setting: AttentionSetting, pool: torch.Tensor) -> _Layer:
    """The layer's weights, joined; the modules are made views of the joined ones, so that memory is held once."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [linear.bias for linear in qkv if linear.bias is not None]
    if any(linear.bias is not None for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        raise AttributeError("feed-forward biases")
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        before=layer.input_layernorm.weight,
        after=layer.post_attention_layernorm.weight,
        qkv=_join(qkv),
        qkv_bias=torch.cat(biases) if biases else None,
        query_norm=None if query_norm is None else query_norm.weight,
        key_norm=None if key_norm is None else key_norm.weight,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        gate_up=_join((mlp.gate_proj, mlp.up_proj)),
        down=mlp.down_proj.weight,
        setting=setting,
        pool=pool,
    )


def _join(linears: tuple[Any, ...]) -> torch.Tensor:
    joined = torch.cat([linear.weight for linear in linears])
    for linear, part in zip(linears, joined.split([linear.weight.shape[0] for linear in linears])):
        linear.weight = torch.nn.Parameter(part, requires_grad=False)
    return joined
