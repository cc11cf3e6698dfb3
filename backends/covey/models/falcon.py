"""Falcon's attention through transformers' attention interface, which its own code does not call.

Its keys and values come as many as its configuration has, where its own code repeats them for every head. Knows
nothing of what computes attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from covey.models.parallel.plan import heads_of


def register(name: str, attention: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Have Falcon's layers, those that are there too, call `attention` while their configuration names it."""
    from transformers.models.falcon import modeling_falcon as falcon

    if name in falcon.FALCON_ATTENTION_CLASSES:
        return
    own = falcon.FalconAttention.forward

    def forward(
        self: Any, hidden_states: torch.Tensor, alibi: Any, attention_mask: Any, **rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.config._attn_implementation != name:
            found: tuple[torch.Tensor, torch.Tensor | None] = own(self, hidden_states, alibi, attention_mask, **rest)
            return found
        shape, (batch, length, _) = heads_of(self.config), hidden_states.shape
        fused = self.query_key_value(hidden_states).view(batch, length, shape.kv_heads, -1, shape.head_dim)
        parts = fused.split((shape.share, 1, 1), 3)  # of each key head
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in parts)
        query, key = falcon.apply_rotary_pos_emb(query, key, *rest["position_embeddings"])
        values, _ = attention(self, query, key, value, attention_mask, scaling=self.inv_norm_factor)
        return self.dense(values.flatten(2)), None

    falcon.FalconAttention.forward = forward
    falcon.FALCON_ATTENTION_CLASSES[name] = falcon.FalconAttention
    falcon.FalconPreTrainedModel._can_set_attn_implementation = classmethod(lambda _: True)
