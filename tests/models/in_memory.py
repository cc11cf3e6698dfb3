"""Tiny random models that were never in a folder."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from covey.models.loading import quiet
from covey.models.modules import Modules
from tests.models.tiny_models import FAMILIES, MORE


def in_memory(family: str, **changes: Any) -> Modules:
    """A model of the family; `changes` overwrite configuration keys."""
    name, settings = (FAMILIES | MORE)[family]
    return random(getattr(transformers, name)(**(settings | changes)))


def random(config: Any, dtype: torch.dtype = torch.float32) -> Modules:
    torch.manual_seed(0)
    with quiet(), torch.no_grad():
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
        for name, weight in module.named_parameters():
            weight.copy_(torch.randn(weight.shape) * (1.5 * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.2))
            if weight.dim() == 1 and not name.endswith("bias"):
                weight.add_(1.0)
    return Modules.of(module.to(dtype), "memory")
