"""Loads the models of the bench `exactness`: the target on the runtime that serves it, and random ones of several
families and head widths on PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from covey.contracts.profile import TargetSettings
from covey.models.loading import choose_device, choose_dtype, quiet
from covey.models.model import PagedModel
from covey.models.modules import Modules
from covey.runtimes.resizing import AnyModel
from covey.target.runner import open_target, typed

POSITIONS = 2048
PASS_TOKENS = 256
BLOCK_SIZE = 16


@dataclass(frozen=True)
class RandomModel:
    """Names a random model's family and what its configuration adds to `_USUAL`."""

    family: str  # transformers' configuration class, less "Config"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 1

    def modules(self) -> Modules:
        """Return the model's modules, equal ones at every call."""
        import transformers

        device = choose_device("cpu")
        torch.manual_seed(self.seed)
        with quiet():
            config = getattr(transformers, f"{self.family}Config")(**(_USUAL | self.settings))
            module = transformers.AutoModelForCausalLM.from_config(config, dtype=choose_dtype("auto", device))
        return Modules.of(module.eval().requires_grad_(False), f"random {self.family}")


_USUAL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 512**-0.5,  # the stock one leaves logits almost flat
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
SHAPES = {
    "qwen2, heads of 64": RandomModel("Qwen2", {"num_attention_heads": 8, "num_key_value_heads": 2}),
    "llama, heads of 128": RandomModel("Llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128}),
    "gemma2, heads of 256": RandomModel(
        "Gemma2",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
        },
    ),
}


def load(source: RandomModel | str, rows: int, settings: TargetSettings) -> AnyModel:
    """Return the model with room for so many rows of all positions; a folder's model has the type that the settings ask
    for."""
    if isinstance(source, RandomModel):
        blocks, modules = rows * POSITIONS // BLOCK_SIZE, source.modules()
        return PagedModel(modules, device="cpu", blocks=blocks, block_size=BLOCK_SIZE, max_pass_tokens=PASS_TOKENS)
    served = typed(source, replace(settings, device="cpu", numerics="auto"))
    served = replace(served, kv_blocks=rows * POSITIONS // served.block_size)
    _, model = open_target(source, served, PASS_TOKENS, 0, 0)
    return model
