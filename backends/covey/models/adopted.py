"""Families whose own code computes attention, brought to transformers' attention interface, which it does not call:
Falcon, Bloom and MPT.

Only what lies between their layers' linear maps is replaced, while a pass of ours is `on`. Keys and values come as many
as their configuration has, where Falcon's code repeats them for every head. Knows nothing of what computes attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from covey.models.parallel.plan import heads_of

Attention: TypeAlias = Callable[..., tuple[torch.Tensor, None]]


def adopt(family: str, name: str, attention: Attention, on: Callable[[], bool]) -> None:
    """Have the layers of a family, those that are there too, call `attention` while it is `on`; other families do by
    themselves what their configuration names. `name` becomes an implementation that they may be asked for."""
    register = {"falcon": _falcon, "bloom": _bloom, "mpt": _mpt}.get(family)
    if register is not None:
        register(name, attention, on)


def _replace(layer: Any, model: Any, ours: Callable[..., torch.Tensor], on: Callable[[], bool]) -> None:
    if "_covey" in vars(layer):
        return
    own = layer.forward

    def forward(self: Any, hidden_states: torch.Tensor, *given: Any, **named: Any) -> tuple[Any, ...]:
        if on():
            return ours(self, hidden_states, *given, **named), None
        found: tuple[Any, ...] = own(self, hidden_states, *given, **named)
        return found

    layer.forward = forward
    layer._covey = True
    model._can_set_attn_implementation = classmethod(lambda _: True)


def _falcon(name: str, attention: Attention, on: Callable[[], bool]) -> None:
    from transformers.models.falcon import modeling_falcon as falcon

    def ours(self: Any, hidden: torch.Tensor, alibi: Any, attention_mask: Any, **rest: Any) -> torch.Tensor:
        shape, (batch, length, _) = heads_of(self.config), hidden.shape
        fused = self.query_key_value(hidden).view(batch, length, shape.kv_heads, -1, shape.head_dim)
        parts = fused.split((shape.share, 1, 1), 3)  # of each key head
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in parts)
        if alibi is None:
            query, key = falcon.apply_rotary_pos_emb(query, key, *rest["position_embeddings"])
        values, _ = attention(self, query, key, value, attention_mask, scaling=self.inv_norm_factor)
        attended: torch.Tensor = self.dense(values.flatten(2))
        return attended

    falcon.FALCON_ATTENTION_CLASSES.setdefault(name, falcon.FalconAttention)
    _replace(falcon.FalconAttention, falcon.FalconPreTrainedModel, ours, on)


def _bloom(_: str, attention: Attention, on: Callable[[], bool]) -> None:
    from transformers.models.bloom import modeling_bloom as bloom

    def ours(
        self: Any, hidden: torch.Tensor, residual: torch.Tensor, attention_mask: Any, **_rest: Any
    ) -> torch.Tensor:
        parts = self.query_key_value(hidden).view(*hidden.shape[:2], self.num_heads, 3, self.head_dim)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(3))
        values, _ = attention(self, query, key, value, attention_mask, scaling=self.inv_norm_factor)
        attended: torch.Tensor = self.dense(values.flatten(2))
        return residual + attended

    _replace(bloom.BloomAttention, bloom.BloomPreTrainedModel, ours, on)


def _mpt(_: str, attention: Attention, on: Callable[[], bool]) -> None:
    from transformers.models.mpt import modeling_mpt as mpt

    def ours(self: Any, hidden: torch.Tensor, **_rest: Any) -> torch.Tensor:
        fused = self.Wqkv(hidden)
        if self.clip_qkv:
            fused = fused.clamp(-self.clip_qkv, self.clip_qkv)
        parts = fused.view(*hidden.shape[:2], 3, self.n_heads, self.head_dim)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        values, _ = attention(self, query, key, value, None, scaling=self.softmax_scale)
        attended: torch.Tensor = self.out_proj(values.flatten(2))
        return attended

    if "_covey" not in vars(mpt.MptAttention):
        own = mpt.create_causal_mask  # whose result its code converts, though there is none of ours
        mpt.create_causal_mask = lambda **asked: torch.zeros(0) if on() else own(**asked)
    _replace(mpt.MptAttention, mpt.MptPreTrainedModel, ours, on)
