"""EAGLE-3 heads as they lie on disk: drafters of one layer. They read a token and what the target knew before it.

At index i a head is given the target's state of position i and the token of position i + 1, and predicts that of i + 2.
A state is one product (`fc`) of three taps, the residual stream before three of the target's layers. EAGLE-3.1 norms
the taps first. The target keeps the taps of every token together with its KV: a head may ask for them late, or find a
prompt in the cache. The target makes the states: it ships one row of its width for each token, not three.

Two forms are read. SafeAILab's and SpecForge's is flat and counts layers by their outputs, so that its layer 1 is
tapped before layer 2; that of vLLM's `speculators` is nested and counts as the taps do. A flat form may say its
settings in `eagle_config`. Matrices may lie in bytes, with a scale for each row. Reads neither torch nor transformers.
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

_EMBEDDING = "model.embed_tokens.weight"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_LAYER, _NESTED_LAYER, _OURS = "midlayer.", "layers.0.", "model.layers.0."
_WHOLE, _EACH = "norm_before_fc", "fc_norm"  # norms of all taps together, and of each; vLLM applies them in this order
_WHOLE_NORM = "model.input_norm.weight"
_READ = ("BF16", "F16", "F32")
_UNREAD = ("use_aux_norm", "eh_proj_before_attn", "parallel_drafting")


@dataclass(frozen=True, slots=True)
class Taps:
    """The layers before which a target's residual stream is read, and the product that makes states of that."""

    layers: tuple[int, ...]
    fc: Floats  # [width, layers * the target's width]
    norms: tuple[Floats, ...]  # applied in turn, each [parts, numbers of a part]: the factors of RMS norms
    eps: float

    @property
    def numbers(self) -> int:
        """Return how many numbers a token has in all taps together."""
        return int(self.fc.shape[1])


def planes(width: int, kv_heads: int, head_dim: int) -> int:
    """Return how many planes of a pool, each as large as a layer's keys and values, hold states of this width."""
    return -(-width // (2 * kv_heads * head_dim))


@runtime_checkable
class StateMaker(Protocol):
    """A model whose passes leave in the slots of their tokens what states are made of."""

    state_width: int  # 0: it was given no taps

    def states(self, slots: Ints) -> Words:
        """Return the states [slots, width] of the tokens in these slots."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """A head's decoder, whose `vocab_size` is that of its own logits."""

    of: Architecture
    taps: tuple[int, ...]
    fc: Stored
    norms: tuple[tuple[Stored, ...], ...]  # of taps: one for all of them, or one for each
    target_vocab: int
    ids: Ints | None  # the target's ids of its own; None where they are the same


def read(folder: Path, target: Path) -> Head:
    """Return the head in a folder, for the target in another. Raises SettingError where it is none, or another's."""
    config = refusals.described(folder)
    if not refusals.is_head(config):
        raise SettingError(f"{folder}: config.json is not of an EAGLE-3 head; one is made by covey_training head")
    for key in _UNREAD:
        if _said(folder, config, key):
            raise UnsupportedModel(f"{folder}: {key} of config.json is not supported: take a head without it")
    nested = "speculators_config" in config
    inner = config.get("transformer_layer_config") if nested else config
    if not isinstance(inner, dict):
        raise SettingError(f"{folder}: transformer_layer_config of config.json is {inner!r}, allowed: an object")
    try:
        base = architecture.read(target)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"{folder}: heads draft only for targets of {', '.join(sorted(architecture.FAMILIES))} ({error}): take a "
            "small model as DRAFTER, or none"
        ) from error
    described = dict(inner, vocab_size=base.vocab_size, num_hidden_layers=1, tie_word_embeddings=False)
    refusals.by_values(folder, described)
    taps = _taps(folder, config, nested, base.layers)
    found = stored.scaled(stored.tensors(refusals.weight_files(folder)))
    weights = {_ours(name): tensor for name, tensor in found.items()}
    if _EMBEDDING not in weights:
        weights[_EMBEDDING], width = base.weights[_EMBEDDING], described.get("hidden_size")
        if width != base.width:
            raise SettingError(f"{folder}: it is a head for a target of width {width}; this one has {base.width}")
    of = architecture.of(folder, described, weights, inputs=2)
    norms = _norms(folder, config, len(taps))
    drafted = _check_shapes(folder, of, len(taps), base.width, norms)
    return Head(
        of=replace(
            of,
            vocab_size=drafted,
            normed_residual=_said(folder, config, "norm_before_residual"),
            normed_output=_said(folder, config, "norm_output") or _said(folder, config, "return_hidden_post_norm"),
            end_ids=(),
        ),
        taps=taps,
        fc=weights["fc.weight"],
        norms=tuple(tuple(weights[name] for name in names) for names in norms),
        target_vocab=base.vocab_size,
        ids=_ids(folder, weights, drafted, base.vocab_size),
    )


def taps_of(folder: Path, target: Path) -> Taps:
    """Return what the target must make for the head in a folder."""
    from covey.models.native.weights import floats

    head = read(folder, target)
    norms = tuple(np.stack([floats(norm) for norm in each]) for each in head.norms)
    return Taps(head.taps, floats(head.fc), norms, head.of.eps)


def _taps(folder: Path, config: Mapping[str, Any], nested: bool, layers: int) -> tuple[int, ...]:
    named = config if nested else config.get("eagle_config") or {}
    chosen: Any = named.get(_LAYER_IDS) if isinstance(named, dict) else str(named)
    if chosen is None:
        chosen = [2, layers // 2, layers - 3] if nested else [1, layers // 2 - 1, layers - 4]
    whole = isinstance(chosen, list) and bool(chosen) and all(type(each) is int for each in chosen)
    taps = tuple(each if nested else each + 1 for each in chosen) if whole else ()
    if not taps or len(set(taps)) < len(taps) or not all(0 < each < layers for each in taps):
        raise SettingError(
            f"{folder}: {_LAYER_IDS} are {chosen!r}, allowed: different ones; the target has {layers} layers"
        )
    return taps


def _said(folder: Path, config: Mapping[str, Any], key: str) -> bool:
    """Return a setting of config.json, which NVIDIA's heads have in `eagle_config`."""
    inner = config.get("eagle_config")
    value = (inner if isinstance(inner, dict) and key in inner else config).get(key) or False
    if type(value) is not bool:
        raise SettingError(f"{folder}: {key} of config.json is {value!r}, allowed: true, false")
    return value


def _norms(folder: Path, config: Mapping[str, Any], taps: int) -> list[list[str]]:
    """Return the tensors of the norms that config.json asks for, in the order in which they are applied."""
    found = []
    if _said(folder, config, _WHOLE):
        found.append([_WHOLE_NORM])
    if _said(folder, config, _EACH):
        found.append([f"{_EACH}.{tap}.weight" for tap in range(taps)])
    return found


def _check_shapes(folder: Path, of: Architecture, taps: int, tap: int, normed: list[list[str]]) -> int:
    """Refuse tensors that are missing or not of the sizes that config.json and the target, whose taps have `tap`
    numbers, have. Returns how many tokens the head can draft."""
    width, query, key = of.width, of.heads * of.head_dim, of.kv_heads * of.head_dim
    head = of.weights.get("lm_head.weight")
    drafted = head.shape[0] if head is not None and head.shape else 0
    read = {f"self_attn.{name}_proj": (rows, 2 * width) for name, rows in (("q", query), ("k", key), ("v", key))}
    fed = {"mlp.gate_proj": (of.inner, width), "mlp.up_proj": (of.inner, width), "mlp.down_proj": (width, of.inner)}
    norms = dict.fromkeys(("input_layernorm", "hidden_norm", "post_attention_layernorm"), (width,))
    layer = {**read, "self_attn.o_proj": (width, query), **fed, **norms}
    due = {f"{_OURS}{name}.weight": shape for name, shape in layer.items()}
    due |= {_EMBEDDING: (of.vocab_size, width), "lm_head.weight": (max(1, drafted), width)}
    due["fc.weight"] = (width, taps * tap)
    for names in normed:
        due |= dict.fromkeys(names, (taps * tap // len(names),))
    due["model.norm.weight"] = (width,)
    for name, shape in due.items():
        tensor = of.weights.get(name)
        if tensor is None or tensor.shape != shape or not (tensor.dtype in _READ or tensor.scales):
            there = "missing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
            raise SettingError(
                f"{folder}: {name} is {there}, for this target {shape} is due: is it another one's head?"
            )
    read_in = ("model.layers.", "fc.", f"{_EACH}.", _WHOLE_NORM, "lm_head.")
    more = [name for name in of.weights.keys() - due.keys() if name.startswith(read_in)]
    if unsaid := [name for name in more if name.startswith((f"{_EACH}.", _WHOLE_NORM))]:
        flag = _WHOLE if _WHOLE_NORM in unsaid else _EACH
        raise SettingError(f"{folder}: it has {min(unsaid)}, but {flag} of config.json is not true: copy both from one")
    if any(not name.endswith("inv_freq") for name in more):
        raise UnsupportedModel(f"{folder}: {min(more)} is not supported: a head of one layer without biases is")
    if width % 2:
        raise UnsupportedModel(f"{folder}: states of an odd width, {width}, are not supported")
    return drafted


def _ids(folder: Path, weights: Mapping[str, Stored], drafted: int, vocab: int) -> Ints | None:
    """Return the target's id of each of the head's tokens: on disk lie their differences."""
    tensor = weights.get("d2t")
    if tensor is None:
        if drafted != vocab:
            raise SettingError(f"{folder}: its lm_head has {drafted} tokens of {vocab}, and no d2t says which")
        return None
    if tensor.dtype != "I64" or tensor.shape != (drafted,):
        raise UnsupportedModel(f"{folder}: d2t is {tensor.dtype} {tensor.shape}, due is I64 ({drafted},)")
    ids = np.arange(drafted) + np.fromfile(tensor.file, np.int64, drafted, offset=tensor.begin)
    if drafted and (ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) < drafted):
        raise SettingError(f"{folder}: d2t names tokens twice, or beyond the {vocab} of the target")
    return ids.astype(np.int32)


def _ours(name: str) -> str:
    """Return a tensor's name as a plain decoder of one layer has it."""
    name = name.removeprefix("model.")
    for layer in (_LAYER, _NESTED_LAYER):
        if name.startswith(layer):
            return _OURS + name.removeprefix(layer)
    return name if name.startswith(("lm_head", "fc", "d2t", "t2d")) else f"model.{name}"
