"""The weights of a Llama, as its files have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from covey.models.model import PagedModel
from covey.models.refusals import weight_files


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    before: torch.Tensor  # norm weights
    after: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """Matrices are [out, in]; queries, keys and values are joined, and so are gate and up. `sin` goes with a head
    rolled by half of itself."""

    embedding: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    eps: float
    layers: tuple[LlamaLayer, ...]
    cos: torch.Tensor
    sin: torch.Tensor


def read_llama(folder: Path, model: PagedModel) -> LlamaWeights:
    """The weights of the model in a folder. Raises KeyError where it is of another shape, by its configuration or its
    weights' names."""
    config = model.config
    if config.model_type != "llama" or config.hidden_act != "silu":
        raise KeyError(f"{config.model_type} with {getattr(config, 'hidden_act', 'no activation')}")
    stored: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        stored.update(load_file(path))

    def take(*names: str) -> torch.Tensor:
        return torch.cat([stored.pop(f"{name}.weight") for name in names])

    layers = []
    for index in range(config.num_hidden_layers):
        at = f"model.layers.{index}"
        layers.append(
            LlamaLayer(
                before=take(f"{at}.input_layernorm"),
                after=take(f"{at}.post_attention_layernorm"),
                qkv=take(*(f"{at}.self_attn.{kind}_proj" for kind in "qkv")),
                out=take(f"{at}.self_attn.o_proj"),
                gate_up=take(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
                down=take(f"{at}.mlp.down_proj"),
            )
        )
    embedding = take("model.embed_tokens")
    norm = take("model.norm")
    head = take("lm_head") if "lm_head.weight" in stored else embedding
    if stored:
        raise KeyError(next(iter(stored)))
    with torch.inference_mode():
        cos, sin = model.turns(torch.ones(1))
    return LlamaWeights(embedding, head, norm, float(config.rms_norm_eps), tuple(layers), cos, sin)
