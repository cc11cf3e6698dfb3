"""EAGLE-3 heads as they lie on disk: drafters of one layer that read, beside a token, what the target knew before it.

At index i a head is given the target's state of position i and the token of position i + 1, and predicts that of i + 2.
A state is one product (`fc`) of three taps, the residual stream before three of the target's layers. The target makes
it, so that it ships one row of its width for each token, not three.

Two forms are read. SafeAILab's and SpecForge's is flat and counts layers by their outputs, so that its layer 1 is
tapped before layer 2; that of vLLM's `speculators` is nested and counts as the taps do. Reads neither torch nor
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.types import Floats, Ints, Words
from covey.models import refusals, stored
from covey.models.native import architecture
from covey.models.native.architecture import Architecture
from covey.models.stored import Stored

_EMBEDDING = "embed_tokens.weight"
_LAYER, _NESTED_LAYER, _OURS = "midlayer.", "layers.0.", "model.layers.0."
_UNREAD = ("norm_before_fc", "fc_norm")  # norms of taps, which are in neither of the forms that could be looked at
_NEEDED = ("fc.weight", "lm_head.weight", "norm.weight")


@dataclass(frozen=True, slots=True)
class Taps:
    """What a target needs to make states: the layers before which its residual stream is read, and their product."""

    layers: tuple[int, ...]
    fc: Floats  # [width, layers * the target's width]

    def states(self, tapped: Floats) -> Floats:
        """The states [tokens, width] of taps [tokens, layers, the target's width]."""
        found: Floats = tapped.reshape(len(tapped), -1) @ self.fc.T
        return found


@runtime_checkable
class StateMaker(Protocol):
    """A model whose passes leave states in the slots of their tokens."""

    state_width: int  # 0: it was given no taps

    def states(self, slots: Ints) -> Words:
        """The states [slots, width] there."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """A head's decoder, whose `vocab_size` is that of its own logits."""

    of: Architecture
    taps: tuple[int, ...]
    fc: Stored
    target_vocab: int
    ids: Ints | None  # the target's ids of its own; None where they are the same


def read(folder: Path, target: Path) -> Head:
    """The head in a folder, for the target in another. Raises SettingError where it is none, or not of that target."""
    config = refusals.described(folder)
    if not refusals.is_head(config):
        raise SettingError(f"{folder}: config.json is not of an EAGLE-3 head; one is made by covey.training head")
    for key in _UNREAD:
        if config.get(key):
            raise UnsupportedModel(f"{folder}: {key} is not supported: a head whose states are one product is")
    nested = "speculators_config" in config
    inner = config.get("transformer_layer_config") if nested else config
    if not isinstance(inner, dict):
        raise SettingError(f"{folder}: transformer_layer_config of config.json is {inner!r}, allowed: an object")
    files = refusals.weight_files(folder)
    found = stored.tensors(files)
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise SettingError(f"{folder}: the weights lack {missing[0]}: copy them whole")
    base = refusals.described(target)
    vocab, layers, width = base["vocab_size"], base["num_hidden_layers"], base["hidden_size"]
    if _EMBEDDING not in found:
        embedding = stored.tensors(refusals.weight_files(target)).get("model.embed_tokens.weight")
        if embedding is None:
            raise SettingError(f"{folder}: neither it nor {target} has an embedding that it could read tokens by")
        found[_EMBEDDING] = embedding
    taps = _taps(folder, config, nested, layers)
    own, fc = inner["hidden_size"], found["fc.weight"]
    if fc.shape != (own, len(taps) * width) or found[_EMBEDDING].shape != (vocab, own) or own % 2:
        raise SettingError(
            f"{folder} is a head of another target: its fc is {fc.shape}, its embedding {found[_EMBEDDING].shape}; "
            f"{target} has {vocab} tokens and states of {width}"
        )
    ids = _ids(folder, found, vocab)
    weights = {_ours(name): tensor for name, tensor in found.items()}
    drafted = found["lm_head.weight"].shape[0]
    described = dict(inner, vocab_size=vocab, num_hidden_layers=1, tie_word_embeddings=False)
    of = architecture.of(folder, described, weights, inputs=2)
    return Head(
        of=replace(
            of,
            vocab_size=drafted,
            normed_residual=bool(config.get("norm_before_residual")),
            normed_output=bool(config.get("norm_output")),
            end_ids=(),
        ),
        taps=taps,
        fc=fc,
        target_vocab=vocab,
        ids=ids,
    )


def taps_of(folder: Path, target: Path) -> Taps:
    """What the target must make for the head in a folder."""
    from covey.models.native.weights import floats

    head = read(folder, target)
    return Taps(head.taps, floats(head.fc))


def _taps(folder: Path, config: Mapping[str, Any], nested: bool, layers: int) -> tuple[int, ...]:
    named = config if nested else config.get("eagle_config") or {}
    chosen = named.get("eagle_aux_hidden_state_layer_ids")
    if chosen is None:
        chosen = [2, layers // 2, layers - 3] if nested else [1, layers // 2 - 1, layers - 4]
    taps = tuple(each if nested else each + 1 for each in chosen)
    if not taps or any(type(each) is not int or not 0 < each < layers for each in taps):
        raise SettingError(f"{folder}: eagle_aux_hidden_state_layer_ids are {chosen}; the target has {layers} layers")
    return taps


def _ids(folder: Path, found: Mapping[str, Stored], vocab: int) -> Ints | None:
    """The target's id of each of the head's tokens: on disk lie their differences."""
    tensor, drafted = found.get("d2t"), found["lm_head.weight"].shape[0]
    if tensor is None:
        if drafted != vocab:
            raise SettingError(f"{folder}: its lm_head has {drafted} tokens of {vocab}, and no d2t says which")
        return None
    if tensor.dtype != "I64" or tensor.shape != (drafted,):
        raise UnsupportedModel(f"{folder}: d2t is {tensor.dtype} {tensor.shape}, due is I64 ({drafted},)")
    offsets = np.fromfile(tensor.file, np.int64, drafted, offset=tensor.begin)
    ids = np.arange(drafted) + offsets
    if drafted and (ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) < drafted):
        raise SettingError(f"{folder}: d2t names tokens twice, or beyond the {vocab} of the target")
    return ids.astype(np.int32)


def _ours(name: str) -> str:
    """A tensor's name as a plain decoder of one layer has it."""
    for layer in (_LAYER, _NESTED_LAYER):
        if name.startswith(layer):
            return _OURS + name.removeprefix(layer)
    return name if name.startswith(("lm_head", "fc", "d2t", "t2d")) else f"model.{name}"
