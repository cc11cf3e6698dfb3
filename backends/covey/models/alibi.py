"""ALiBi: instead of positions, a penalty on scores that grows with how far a key lies behind its query, each head with
a slope of its own.

A key's bias is taken relative to its query's own. Added to all scores of a query, a number changes no weight, so this
is what families add that count from the text's beginning; but scores stay small where keys are near, and bfloat16 keeps
them apart. It depends on the two positions alone, as results must that are the same in any company.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Alibi:
    """The slopes of one layer's heads; the same for all layers."""

    slopes: tuple[float, ...]
    scale: float = 1.0  # of a bias, beside the scores' own
    coarse: bool = False  # slopes and biases are rounded to bfloat16, counted from the text's beginning

    def of_heads(self, count: int) -> Alibi:
        """Return the first heads alone."""
        return Alibi(self.slopes[:count], self.scale, self.coarse)

    def bias(self, keys: int, at: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what is added to scores, [heads, *at.shape, keys], of queries at the positions `at` over the first
        `keys` keys, their own among them. Values of keys that a query does not see mean nothing."""
        wide = torch.promote_types(dtype, torch.float32)
        slopes = torch.tensor(self.slopes, dtype=wide, device=at.device)
        places = torch.arange(keys, device=at.device)
        if self.coarse:
            every = (slopes.bfloat16()[:, None] * places).to(wide)
            far = every.view(-1, *[1] * at.dim(), keys) - every[:, at][..., None]
        else:
            far = slopes.view(-1, *[1] * (at.dim() + 1)) * (places - at[..., None]).to(wide)
        return (far * self.scale).to(dtype)


def alibi_of(config: Any) -> Alibi | None:
    """Return the bias of a family that has one, with the slopes that its code in transformers makes."""
    if config.model_type not in ("bloom", "mpt") and not (config.model_type == "falcon" and config.alibi):
        return None
    heads, both = int(config.num_attention_heads), torch.ones(1, 2, dtype=torch.long)  # a text of two tokens
    if config.model_type == "bloom":
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor as of_bloom

        return Alibi(tuple(of_bloom(both, heads, torch.float32)[:, 0, 1].tolist()))
    if config.model_type == "mpt":
        from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor as of_mpt

        return Alibi(tuple((-of_mpt(heads, 2)[:, 0, 0]).tolist()))
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor as of_falcon

    slopes = of_falcon(both, heads, torch.float32)[:, 0, 1].tolist()
    return Alibi(tuple(slopes), scale=(int(config.hidden_size) // heads) ** -0.5, coarse=True)
