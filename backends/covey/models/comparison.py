"""Refuses a config.json and weights that are not of one model, by the headers of the weights' files.

Knows the names that most families share: the numbers of layers, and the tensors between which a token's state travels.
Reads no tensor. What it lets pass, a family's own module refuses after seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey.models.stored import Stored

_LAYERS = ("num_hidden_layers", "n_layer")
_VOCABULARY, _INNER, _WIDTH = ("vocab_size",), ("intermediate_size",), ("hidden_size", "n_embd")
_EMBEDDED = ("word_embed_proj_dim", *_WIDTH)
_ANY: tuple[str, ...] = ()
_Sizes = tuple[tuple[str, ...], ...]  # for each dimension, the keys of config.json of which the first one says its size
_SHAPES: tuple[tuple[re.Pattern[str], _Sizes], ...] = tuple(
    (re.compile(rf"(?:^|\.){name}\.weight$"), sizes)
    for name, sizes in (
        (r"(?:embed_tokens|wte|embed_in|word_embeddings)", (_VOCABULARY, _EMBEDDED)),
        (r"\d+\.(?:input|post_attention)_layernorm", (_WIDTH,)),
        (r"\d+\.self_attn\.[qkv]_proj", (_ANY, _WIDTH)),
        (r"\d+\.self_attn\.o_proj", (_WIDTH, _ANY)),
        (r"\d+\.mlp\.(?:gate|up)_proj", (_INNER, _WIDTH)),
        (r"\d+\.mlp\.down_proj", (_WIDTH, _INNER)),
    )
)
_NUMBER = re.compile(r"\.(\d+)\.")


def check(folder: Path, config: Mapping[str, Any], found: Mapping[str, Stored]) -> None:
    """Raise SettingError if the weights have fewer layers than config.json says, or a tensor of another size."""
    inner = config.get("text_config")
    said = {**inner, **config} if isinstance(inner, dict) else config
    _check_layers(folder, said, found)
    for name, tensor in found.items():
        for pattern, sizes in _SHAPES:
            if pattern.search(name):
                _check_shape(folder, said, name, tensor, sizes)


def _check_layers(folder: Path, config: Mapping[str, Any], found: Mapping[str, Stored]) -> None:
    numbers = {int(match[1]) for name in found if (match := _NUMBER.search(name))}
    there = next(number for number in range(len(numbers) + 1) if number not in numbers)
    for key in _LAYERS:
        layers = config.get(key)
        if type(layers) is int and layers > there:
            raise SettingError(
                f"{folder}: {key} of config.json is {layers}, allowed: at most {there}, the number of layers in the "
                "weights; copy both from one model"
            )


def _check_shape(folder: Path, config: Mapping[str, Any], name: str, tensor: Stored, sizes: _Sizes) -> None:
    keys = [next((key for key in each if type(config.get(key)) is int), "") for each in sizes]
    due = [config.get(key, 0) for key in keys]
    if len(tensor.shape) == len(due) and all(size in (0, own) for size, own in zip(due, tensor.shape)):
        return
    said = ", ".join(f"{key} {size}" for key, size in zip(keys, due) if key)
    if said:
        shape = [size or "any" for size in due]
        raise SettingError(
            f"{folder}: {name} of {tensor.file.name} is {list(tensor.shape)}, allowed by config.json ({said}): "
            f"[{', '.join(map(str, shape))}]; copy both from one model"
        )
