"""Random weights whose later layers are damped.

A matrix's numbers depend on seed, name, shape, kind of device and dtype, not on earlier draws. So damping a layer means
drawing it again with a smaller deviation, exactly and in any order. Every residual branch adds about as much as the
embedding, so undamped later layers outweigh the first ones.
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
BRANCH = 2.0  # gain of a branch's last matrix, whose inputs are smaller than its outputs should be
LAST = ("self_attn.o_proj", "mlp.down_proj")  # the last matrices of a layer's two branches
SHARP = ("q_proj", "k_proj")


def blank(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model with uninitialised weights on its device, in its dtype. Needs no more memory on the way."""
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
    """Draw all weights undamped; the head's logits have deviation 1."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            fill(parameter, seed, name, deviation(name, parameter))
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)  # norms and biases


@torch.no_grad()
def draw_head(model: PreTrainedModel, seed: int, spread: float) -> None:
    """Draw the head again, so that its logits have deviation `spread`. Special tokens are never likely, so a text ends
    only at its length limit."""
    weight = model.lm_head.weight
    fill(weight, seed, "lm_head.weight", spread / math.sqrt(weight.shape[1]))
    weight[:SPECIAL] = 0.0


@torch.no_grad()
def damp(model: PreTrainedModel, seed: int, first: int, factor: float) -> None:
    """Draw layer `first` and those after it again, with their outputs multiplied by `factor`."""
    for name, parameter in last_matrices(model, first):
        fill(parameter, seed, name, factor * deviation(name, parameter))


def first_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return the drafter. Its embedding, layers, final norm and head are the target's own tensors, not copies."""
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
