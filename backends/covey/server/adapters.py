"""Merges a LoRA adapter into its base, so that everything else sees a plain model's folder.

Each weight W that the adapter changes becomes W + scale * B A, summed in float32 and rounded once to the type of W, as
peft's merge_and_unload does. The folder is made once and kept in the server's state; what the adapter does not change
is linked. What an adapter may do beyond this is refused by its name in adapter_config.json. peft itself holds the whole
base in memory, writes all of it again, and takes half an adapter with a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.contracts.errors import SettingError
from covey.models import refusals, stored
from covey.server import derived

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
log = logging.getLogger(__name__)

# What changes nothing once an adapter is trained, and what is read below. Of the other keys, any that is set is
# refused: peft's releases add some.
_KNOWN = {
    *("base_model_name_or_path", "revision", "peft_type", "task_type", "inference_mode", "peft_version"),
    *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "bias", "init_lora_weights"),
    *("lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "eva_config"),
    *("auto_mapping", "megatron_core", "qalora_group_size", "runtime_config"),
}
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # others change the base, too
_TRANSPOSED = frozenset({"gpt2"})  # model types whose layers are stored as [inputs, outputs]
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class _Change:
    """The matrix that is added to one weight: scale * B A."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def to(self, weight: torch.Tensor, transposed: bool) -> torch.Tensor:
        added = self.b.float() @ self.a.float()
        added = (added.T if transposed else added) * self.scale
        return (weight.float() + added).to(weight.dtype)


def base_of(adapter: Path) -> str:
    """Return the folder or hub name of the adapter's base. Refuses an adapter that cannot be merged."""
    config = refusals.described(adapter, CONFIG)
    if config.get("peft_type") != "LORA":
        raise _not_at_load(adapter, f"an adapter of type {config.get('peft_type')}")
    if config.get("bias", "none") != "none":
        raise _not_at_load(adapter, f"an adapter with bias = {config['bias']}")
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        raise _not_at_load(adapter, f"an adapter with init_lora_weights = {config['init_lora_weights']}")
    for key in sorted(config.keys() - _KNOWN):
        if config[key]:
            raise _not_at_load(adapter, f"an adapter with {key}")
    if not (adapter / WEIGHTS).is_file():
        raise SettingError(f"{adapter}: no {WEIGHTS}; save the adapter with peft's save_pretrained")
    base = config.get("base_model_name_or_path")
    if not base or not isinstance(base, str) or not base.isprintable() or max(map(len, base.split("/"))) > 255:
        raise SettingError(
            f"{adapter}: {CONFIG} names no base_model_name_or_path: write the base's folder or name there"
        )
    named = config.get("revision") and not Path(base).exists()  # a folder has none
    return f"{base}@{config['revision']}" if named else base


def _not_at_load(adapter: Path, what: str) -> SettingError:
    return SettingError(
        f"{adapter}: {what} cannot be merged at load: merge it once (peft's merge_and_unload, then save_pretrained) "
        "and give the folder of the result"
    )


def merged(adapter: Path, base: Path, state: Path) -> Path:
    """Return the folder of the base with the adapter merged into it; refuses a base that does not fit."""
    refusals.by_files(base)
    written = refusals.described(base)
    refusals.by_config(base, written.get)
    files = refusals.weight_files(base)
    changed = [adapter / CONFIG, adapter / WEIGHTS, *files]
    changed += derived.matching(base, derived.SMALL) + derived.matching(adapter, TOKENIZER)

    def build(building: Path) -> None:
        log.info("merging %s into %s, once", adapter, base)
        where = stored.tensors(files)
        changes = _changes(adapter, where)
        derived.copy(derived.matching(base, derived.SMALL), building)
        derived.copy(derived.matching(adapter, TOKENIZER), building)
        for file in files:
            inside = {name: change for name, change in changes.items() if where[name].file == file}
            if inside:
                _write(file, building / file.name, inside, written.get("model_type") in _TRANSPOSED)
            else:
                (building / file.name).symlink_to(file.resolve())

    return derived.derive(state, "merged", adapter, changed, build)


def _changes(adapter: Path, where: Mapping[str, stored.Stored]) -> dict[str, _Change]:
    """Return what the adapter adds, by the names of the base's stored tensors."""
    from safetensors.torch import load_file

    config = refusals.described(adapter, CONFIG)
    stored.tensors([adapter / WEIGHTS])  # refuses a file that is not whole
    held = load_file(adapter / WEIGHTS)
    changes = {}
    for name in sorted(held):
        module, _, leaf = name.removeprefix(_PREFIX).rpartition(".lora_")
        if leaf not in ("A.weight", "B.weight") or not name.startswith(_PREFIX) or held[name].dim() != 2:
            raise _not_at_load(adapter, f"{name}, which is no LoRA matrix of a linear layer,")
        other = f"{module}.lora_{'B' if leaf == 'A.weight' else 'A'}.weight"
        if f"{_PREFIX}{other}" not in held:
            raise SettingError(f"{adapter}: {WEIGHTS} lacks {other}; copy it again")
        if leaf == "A.weight":
            a, b = held[name], held[f"{_PREFIX}{module}.lora_B.weight"]
            changes[_stored_name(adapter, f"{module}.weight", where)] = _Change(
                a, b, _scale(adapter, config, module, len(a))
            )
    if not changes:
        raise SettingError(f"{adapter}: {WEIGHTS} is empty; save the adapter with peft's save_pretrained")
    return changes


def _stored_name(adapter: Path, name: str, where: Mapping[str, stored.Stored]) -> str:
    """Return the name by which the base's files have a tensor: they may leave out its first part, as GPT-2's do."""
    found = [each for each in (name, name.partition(".")[2]) if each in where]
    if not found:
        raise SettingError(f"{adapter}: its base has no {name} of its own: it is tied to another, or of another model")
    return found[0]


def _scale(adapter: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    try:
        alphas = config.get("alpha_pattern") or {}
        own = (alpha for key, alpha in alphas.items() if re.match(rf"(.*\.)?({key})$", module))
        alpha = float(next(own, config.get("lora_alpha", 8)))
        return alpha / (rank**0.5 if config.get("use_rslora") else rank)
    except (ValueError, TypeError, AttributeError, ArithmeticError, re.error) as error:
        raise SettingError(f"{adapter}: lora_alpha or alpha_pattern of {CONFIG} is no scale: {error}") from error


def _write(source: Path, to: Path, changes: Mapping[str, _Change], transposed: bool) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(source)
    for name, change in changes.items():
        shape = tuple(weights[name].shape)
        wanted = (change.b.shape[0], change.a.shape[1])
        if (wanted[::-1] if transposed else wanted) != shape or change.a.shape[0] != change.b.shape[1]:
            raise SettingError(f"{source}: {name} is {shape}, and the adapter changes one of {wanted}: another base")
        weights[name] = change.to(weights[name], transposed)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, to, metadata={"format": "pt"})
