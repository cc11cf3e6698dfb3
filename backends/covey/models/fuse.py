"""A short forward pass for the Llama-shaped family: RMSNorm, rotary positions, gated feed-forward, any key head count.

The transformers modules cost 0.3 ms of Python per layer, more than a small layer computes. This is the same
arithmetic on the same weights in some fifteen calls per layer, with query, key and value, and gate and up, each one
product. It is made for `refusals.FAMILIES`. Whoever builds one compares it with the modules' own pass too and drops it
where they differ, but a comparison over few positions cannot tell a family that only differs beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from covey.models.attention import Plan, Shape, attend
from covey.models.modules import AttentionSetting
from covey.models.product import Product, by_rows

_Map = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    before: _Map
    after: _Map
    qkv: Product
    query_norm: _Map | None
    key_norm: _Map | None
    out: Product
    gate_up: Product
    down: Product
    setting: AttentionSetting
    pool: torch.Tensor


class FusedDecoder:
    """Token ids to the last hidden states. Built on a module's `parts` by their names; raises KeyError or
    AttributeError where they are not of this shape."""

    def __init__(
        self,
        parts: Mapping[str, Any],
        shape: Shape,
        settings: list[AttentionSetting],
        pools: list[torch.Tensor],
        positions: int,
        *,
        alike: bool,
    ) -> None:
        self._shape = shape
        self._embedding: torch.Tensor = parts["model.embed_tokens"].weight
        self._norm = _norm(parts["model.norm"])
        self.head = _join(parts["lm_head"], alike=alike)
        self._act: _Map = parts["model.layers.0.mlp.act_fn"]
        if isinstance(self._act, torch.nn.SiLU) or type(self._act).__name__ == "SiLUActivation":
            self._act = F.silu
        if alike:
            self._act = partial(by_rows, self._act)
        self._layers = [
            _take(parts, f"model.layers.{index}", setting, pool, alike)
            for index, (setting, pool) in enumerate(zip(settings, pools, strict=True))
        ]
        self.width = self._layers[0].down.width
        at = torch.arange(positions, device=self._embedding.device)
        cos, sin = parts["model.rotary_emb"](self._embedding[:1], at[None])
        if cos.shape[-1] != shape.head_dim:
            raise AttributeError("partial rotary")
        half = shape.head_dim // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)  # for x, and x rolled

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """Return the activation of each row's first half, the gate's results, times its second half."""
        gate, up = both.chunk(2, -1)
        return self._act(gate) * up

    def products(self) -> list[Product]:
        """Return the linear maps of the first layer and the head."""
        layer = self._layers[0]
        return [layer.qkv, layer.out, layer.gate_up, layer.down, self.head]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, plan: Plan) -> torch.Tensor:
        shape = self._shape
        heads, both, dim = shape.heads, shape.heads + shape.kv_heads, shape.head_dim
        size = tokens.shape[0]
        x = F.embedding(tokens, self._embedding)
        cos = x.new_ones(size, both + shape.kv_heads, dim)  # values turn by nothing
        sin = x.new_zeros(size, both + shape.kv_heads, dim)
        cos[:, :both] = self._cos.index_select(0, positions)[:, None]
        sin[:, :both] = self._sin.index_select(0, positions)[:, None]
        for layer in self._layers:
            h = layer.before(x)
            qkv = layer.qkv(h).view(size, -1, dim)
            if layer.query_norm is not None and layer.key_norm is not None:
                query = layer.query_norm(qkv[:, :heads])
                key = layer.key_norm(qkv[:, heads:both])
                qkv = torch.cat((query, key, qkv[:, both:]), 1)
            qkv = torch.addcmul(qkv * cos, qkv.roll(dim // 2, -1), sin)
            layer.pool.index_copy_(1, slots, qkv[:, heads:].transpose(0, 1))
            setting = layer.setting
            h = attend(plan, qkv[:, :heads], layer.pool, setting.scale, setting.window, setting.softcap)
            x = x + layer.out(h)
            h = layer.after(x)
            x = x + layer.down(self.gated(layer.gate_up(h)))
        return self._norm(x)


def _take(parts: Mapping[str, Any], at: str, setting: AttentionSetting, pool: torch.Tensor, alike: bool) -> _Layer:
    def join(*names: str) -> Product:
        return _join(*(parts[f"{at}.{name}_proj"] for name in names), alike=alike)

    query_norm, key_norm = (parts.get(f"{at}.self_attn.{name}_norm") for name in "qk")
    return _Layer(
        before=_norm(parts[f"{at}.input_layernorm"]),
        after=_norm(parts[f"{at}.post_attention_layernorm"]),
        qkv=join("self_attn.q", "self_attn.k", "self_attn.v"),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        out=join("self_attn.o"),
        gate_up=join("mlp.gate", "mlp.up"),
        down=join("mlp.down"),
        setting=setting,
        pool=pool,
    )


def _norm(module: Any) -> _Map:
    return partial(F.rms_norm, normalized_shape=module.weight.shape, weight=module.weight, eps=module.variance_epsilon)


def _join(*linears: Any, alike: bool) -> Product:
    """Return one product for several linear maps of the same input; of maps spread over ranks, one whose results these
    bring together, or several whose results stay apart. Raises AttributeError where only some have a bias."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if biases and len(biases) != len(linears):
        raise AttributeError("some biases only")
    after = getattr(linears[0], "after", None)
    weight, bias = torch.cat([linear.weight for linear in linears]), torch.cat(biases) if biases else None
    return Product(weight, bias, after, alike=alike)
