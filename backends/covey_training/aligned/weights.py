"""Random weights whose later layers are damped.

A matrix's numbers depend on seed, name and shape, on the kind of device and on the type, never on what was drawn
before it: damping a layer anew is drawing it anew with a smaller deviation, exactly and in any order. Every residual
branch adds about as much as the embedding brought, so that undamped later layers outweigh the first ones.

Knows nothing of agreement.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from covey.contracts.errors import SettingError
from covey.process.footprint import available
from covey_training.aligned.shapes import SPECIAL

SHARPNESS = 2.0  # standard deviation of attention scores: a few tokens of a context weigh most
BRANCH = 2.0  # deviation of a branch's last matrix, for inputs that are smaller than its outputs should be
LAST = ("self_attn.o_proj", "mlp.down_proj")  # the ends of a layer's two branches: all that it adds goes through them
SHARP = ("q_proj", "k_proj")


def blank(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model on its device, in its type, with nothing in it yet: nothing larger was there on the way."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    needed = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    if device.type == "cpu" and needed > available():
        raise SettingError(f"not enough memory: the target needs {needed / 2**30:.1f} GiB, choose another size")
    model.to_empty(device=device)
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)  # its table is computed, not loaded
    served: PreTrainedModel = model.eval().requires_grad_(False)
    return served


@torch.no_grad()
def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Draw all weights, nothing damped; the logits of the head have deviation 1."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            fill(parameter, seed, name, deviation(name, parameter))
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)  # norms and biases


@torch.no_grad()
def draw_head(model: PreTrainedModel, seed: int, spread: float) -> None:
    """Draw the head anew, its logits with this deviation. No special token is ever likely: nothing ends a text but its
    length."""
    weight = model.lm_head.weight
    fill(weight, seed, "lm_head.weight", spread / math.sqrt(weight.shape[1]))
    weight[:SPECIAL] = 0.0


@torch.no_grad()
def damp(model: PreTrainedModel, seed: int, first: int, factor: float) -> None:
    """Draw layer `first` and those after it anew, all that they add multiplied by `factor`."""
    for name, parameter in last_matrices(model, first):
        fill(parameter, seed, name, factor * deviation(name, parameter))


def first_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return the drafter: embedding, first layers, final norm and head are the target's own tensors, not copies."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):
        drafter = AutoModelForCausalLM.from_config(config, dtype=model.dtype, attn_implementation="sdpa")
    wanted = drafter.state_dict().keys()
    drafter.load_state_dict({k: v for k, v in model.state_dict().items() if k in wanted}, assign=True)
    drafter.model.rotary_emb = model.model.rotary_emb
    shared: PreTrainedModel = drafter.eval().requires_grad_(False)
    return shared


def last_matrices(model: PreTrainedModel, first: int) -> Iterator[tuple[str, Tensor]]:
    for index in range(first, len(model.model.layers)):
        for part in LAST:
            name = f"model.layers.{index}.{part}.weight"
            yield name, model.get_parameter(name)


def deviation(name: str, weight: Tensor) -> float:
    module = name.removesuffix(".weight")
    if module.endswith("embed_tokens"):
        return 1.0
    gain = math.sqrt(SHARPNESS) if module.endswith(SHARP) else BRANCH if module.endswith(LAST) else 1.0
    return gain / math.sqrt(weight.shape[1])


def fill(weight: Tensor, seed: int, name: str, spread: float) -> None:
    key = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
    generator = torch.Generator(weight.device).manual_seed(int.from_bytes(key, "little"))
    weight.normal_(0.0, spread, generator=generator)
